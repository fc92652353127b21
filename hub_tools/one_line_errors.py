"""Running a command line so that a user's mistake gives one line with its cure, and a bug its traceback."""

import errno
import io
import os
import re
import shutil
import sys
import traceback
import warnings
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from .endpoint import current_endpoint
from .places import config_folder
from .printing.extras import missing_extra
from .printing.printable import one_line, printable_output
from .waiting.retry_after import asked_seconds

if TYPE_CHECKING:
    from huggingface_hub.errors import HfHubHTTPError
    from typer import Typer

TRACEBACK_VARIABLE = "DALLE_COLLAB_TRACEBACK"
OUR_PACKAGES = frozenset({"hub_tools", "pipelines", "modeling_dalle_collab", "dalle_collab"})
CLIENT_PACKAGES = frozenset({"huggingface_hub", "httpx", "httpx2", "datasets"})
CANNOT_REACH = "Cannot reach the Hub at"
"""How the line of an error begins, if nothing answers."""

INTERRUPTED_EXIT_CODE = 130
DISK_IS_FULL = re.compile(r"no space left|file too large|quota exceeded|disk is full", re.IGNORECASE)
"""What libraries that are not written in Python say of it, in errors of their own."""
MOST_OF_EXAMPLE = 74
"""Characters of a line of an example, before its indentation and what joins it to the next one."""

NOT_WRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR)


NAMELESS_RUN = re.compile(r"((?:dalle-collab (?:[\w-]+ )+|bucket=))ORG/RUN\b")
"""A command in a message of what does not know which run it works for."""

_run_of_command: list[str] = []


def note_run(place: str) -> str:
    """Note which run this process's command is for, if the place is a repository; return the place."""
    _run_of_command[:] = [place] if re.fullmatch(r"[\w.-]+/[\w.-]+", place) and not Path(place).exists() else []
    return place


def with_run_named(text: str) -> str:
    """Return a message whose commands have the name of the run that was noted, so that they can be pasted."""
    return NAMELESS_RUN.sub(rf"\g<1>{_run_of_command[0]}", text) if _run_of_command else text


def run_command_line(app: "Typer", prog_name: str) -> NoReturn:
    """Run a typer app and exit: 0 on success, 1 with one line on stderr for an error that the user can fix.

    Usage errors exit with 2 and Ctrl-C with 130. With DALLE_COLLAB_TRACEBACK=1 the traceback is shown too, and what
    libraries warn of, which Python's own options also show. Errors that come from a bug of ours rather than from input
    propagate with their traceback.
    """
    from typer.main import get_command

    if os.environ.get(TRACEBACK_VARIABLE) != "1" and not sys.warnoptions:
        warnings.simplefilter("ignore")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a caption may have letters that this terminal's encoding lacks
            stream.reconfigure(errors="replace")
    command = get_command(app)
    _join_help_lines(command)
    # A shell's completion is a script or a list that typer writes at once.
    completes = "--show-completion" in sys.argv or any(name.endswith("_COMPLETE") for name in os.environ)
    with printable_output(keeps_lines=completes):
        _run(command, prog_name)
    sys.exit(0)


def _run(command: Any, prog_name: str) -> None:
    try:
        command(prog_name=prog_name)
    except KeyboardInterrupt:
        _leave(prog_name, "stopped by Ctrl-C.", INTERRUPTED_EXIT_CODE)
    except SystemExit as leaving:
        # typer turns Ctrl-C into this code without a message.
        if leaving.code == INTERRUPTED_EXIT_CODE:
            _leave(prog_name, "stopped by Ctrl-C.", INTERRUPTED_EXIT_CODE)
        raise
    except Exception as error:
        shown = _error_for_people(error)
        if shown is None:
            raise
        if os.environ.get(TRACEBACK_VARIABLE) == "1":
            sys.stderr.writelines("".join(traceback.format_exception(error)).splitlines(keepends=True))
        _leave(prog_name, explain_error(shown), 1)


def _join_help_lines(command: Any) -> None:
    """Join the lines of each paragraph of all help texts: typer keeps line breaks of the source in all but the first.

    Examples, which are indented, are broken so that they can be pasted. What a backspace marks stays as it is.
    """
    paragraphs = (command.help or "").split("\n\n")
    command.help = "\n\n".join(
        text if text.startswith("\b") else _to_paste(text) if text.startswith(" ") else " ".join(text.split("\n"))
        for text in paragraphs
    )
    for subcommand in getattr(command, "commands", {}).values():
        _join_help_lines(subcommand)


def _to_paste(example: str) -> str:
    """Return a command in lines that fit a terminal and that a shell joins, broken before options alone."""
    lines = [""]
    for part in re.split(r" (?=--)", " ".join(example.split())):
        if lines[-1] and len(lines[-1]) + len(part) > MOST_OF_EXAMPLE:
            lines[-1] += " \\"
            lines.append("    " + part)
        else:
            lines[-1] += (" " if lines[-1] else "") + part
    return "\n".join("  " + line for line in lines)


def explain_error(error: BaseException) -> str:
    """Return one line that says what happened, what was expected, and what to do."""
    if isinstance(error, FileNotFoundError) and error.errno is None:
        is_client_s = type(error).__module__.partition(".")[0] in CLIENT_PACKAGES  # `datasets` hides what was the cause
        cause = error.__cause__ or (error.__context__ if is_client_s else None)
        if cause is not None:  # why it is neither on the Hub nor in the cache
            return explain_error(cause)
    explanation = missing_extra(error) or _explain_hub_error(error) or _explain_connection_error(error)
    if explanation is None and isinstance(error, OSError) and error.strerror:
        explanation = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
        explanation += _cure_of_home(error)
    if isinstance(error, shutil.Error) and isinstance(error.args[0], list):  # of a folder's copy: one for each file
        explanation = str(error.args[0][0][-1])
    cure = ". Free some space, or choose a folder on another disk" if _is_full_disk(error) else ""
    return one_line((explanation or str(error) or type(error).__name__) + cure)


def _error_for_people(error: BaseException | None) -> BaseException | None:
    """Return the error that the user can act on: this one or the one that caused it. None for a bug."""
    while error is not None:
        package = type(error).__module__.partition(".")[0]
        if isinstance(error, (ValueError, OSError)) or package in OUR_PACKAGES | CLIENT_PACKAGES:
            return error
        if _is_full_disk(error) or missing_extra(error):
            return error
        error = error.__cause__
    return None


def _is_full_disk(error: BaseException) -> bool:
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    is_ours = not isinstance(error, ValueError) and not hasattr(error, "response")  # the Hub's disk is another
    return is_ours and DISK_IS_FULL.search(str(error)) is not None


def _explain_hub_error(error: BaseException) -> str | None:
    errors = sys.modules.get("huggingface_hub.errors")
    if errors is None:
        return None
    endpoint = current_endpoint()
    if isinstance(error, errors.LocalTokenNotFoundError):
        return f"No token for the Hub at {endpoint}. Set HF_TOKEN, or run: hf auth login"
    if not isinstance(error, errors.HfHubHTTPError):
        return None
    return _explain_answer(error, endpoint)


def _explain_answer(error: "HfHubHTTPError", endpoint: str) -> str:
    response = error.response
    said = _server_words(error)
    kind, status = type(error).__name__, response.status_code
    if kind == "GatedRepoError":
        return (
            f"{_repository_in(error)} is gated ({said}). Ask for access on its page, and log in: hf auth login; a "
            f"fine-grained token must be allowed to read gated repositories: {endpoint}/settings/tokens"
        )
    if status == HTTPStatus.UNAUTHORIZED and (
        kind != "RepositoryNotFoundError" or "authorization" in response.request.headers
    ):
        return (
            f"The Hub at {endpoint} refuses the token ({said}), which may have expired. "
            "Set HF_TOKEN to a valid one, or run: hf auth login"
        )
    if kind == "RepositoryNotFoundError":
        return (
            f"{_repository_in(error)} is not on the Hub at {endpoint}, or your token has no access to it. "
            "Check the name; for a private repository set HF_TOKEN, or run: hf auth login"
        )
    if kind == "RevisionNotFoundError":
        return f"{_repository_in(error)} has no such revision ({said}). Check the branch, tag or commit"
    if kind == "RemoteEntryNotFoundError":
        return f"{_repository_in(error)} has no such file ({said}). Check the path and the revision"
    if status == HTTPStatus.FORBIDDEN:
        return (
            f"The Hub at {endpoint} forbids this ({said}). Use a write token of a member with write access, or a "
            "fine-grained token that names this repository"
        )
    if status == HTTPStatus.PROXY_AUTHENTICATION_REQUIRED:
        return f"The proxy on the way to {endpoint} wants a login ({said}). Put name and password into HTTPS_PROXY"
    if status == HTTPStatus.INSUFFICIENT_STORAGE or (status < 500 and status != HTTPStatus.TOO_MANY_REQUESTS):
        return f"The Hub at {endpoint} answers {status}: {said}"
    wait = asked_seconds(error)
    return (
        f"The Hub at {endpoint} answers {status}: {said}. Try again in {f'{wait:.0f} s' if wait else 'a few minutes'}"
    )


def _server_words(error: "HfHubHTTPError") -> str:
    said = error.server_message or error.response.headers.get("X-Error-Message")
    return said or str(error).strip().partition("\n")[0]


def _repository_in(error: BaseException) -> str:
    repo_id, repo_type = getattr(error, "repo_id", None), getattr(error, "repo_type", None)
    return f"The {repo_type or 'model'} repository {repo_id}" if repo_id else "The repository"


def _cure_of_home(error: OSError) -> str:
    """Return what to do if the Hub client's folder or that of keys, or one above, cannot be written.

    HOME may belong to others.
    """
    constants = sys.modules.get("huggingface_hub.constants")
    if constants is None or error.errno not in NOT_WRITABLE or not isinstance(error.filename, str):
        return ""
    place = Path(error.filename)
    for what, home, variable in (
        ("Downloads and peers' keys", Path(constants.HF_HOME), "HF_HOME"),
        ("Organisers' keys", config_folder(), "XDG_CONFIG_HOME"),
    ):
        if home.is_relative_to(place) or place.is_relative_to(home):
            return f". {what} are kept in {home}: set {variable} to a folder that you may write"
    return ""


def _explain_connection_error(error: BaseException) -> str | None:
    if type(error).__module__.partition(".")[0] not in ("httpx", "httpx2"):
        return None
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        return (
            f"The certificate of what answers for {current_endpoint()} is not known here ({error}): a proxy may put "
            "its own in place of the Hub's. Set SSL_CERT_FILE to the file with your network's certificates"
        )
    if type(error).__name__ == "ProxyError":
        return (
            f"The proxy on the way to {current_endpoint()} refuses ({error}). "
            "Check HTTPS_PROXY and ALL_PROXY, with name and password if it wants a login"
        )
    return (
        f"{CANNOT_REACH} {current_endpoint()} ({error}). Check HF_ENDPOINT and that the Hub runs; "
        "for a Hub on this machine: hub-tools serve --root FOLDER"
    )


def _leave(prog_name: str, message: str, code: int) -> NoReturn:
    print(f"{prog_name}: {with_run_named(message)}", file=sys.stderr, flush=True)
    sys.exit(code)
