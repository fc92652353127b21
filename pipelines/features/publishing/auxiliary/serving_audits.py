"""An auxiliary peer's audits of those who serve the model, in a process of its own, and the credit for who draws right.

The program is `dalle-collab run audit`: it draws like anybody who asks, with a prompt and a seed that no other knows.
"""

import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx2
from huggingface_hub import CommitOperationAdd

from hub_tools.foreign.json_texts import read_json
from hub_tools.processes.process_group import WHOLE_PROGRAM
from hub_tools.run_files import METRICS_FOLDER
from pipelines.features.publishing.auxiliary.evaluating.bounded_command import BoundedCommand
from pipelines.features.publishing.auxiliary.evaluating.checkpoint_evaluator import bounded_environment
from pipelines.features.publishing.metrics.credit.served import (
    day_of,
    read_served,
    served_file,
    to_parquet,
    with_credit,
)
from pipelines.features.publishing.repository.commits import commit_changes
from pipelines.features.publishing.repository.snapshot import RunSnapshot

logger = logging.getLogger(__name__)

AUDIT = (sys.executable, "-m", WHOLE_PROGRAM, "run", "audit")
LIMIT_SECONDS = 1800.0
LARGEST_REPORT_BYTES = 2**20
MOST_PROMPT_BYTES = 2**24


@dataclass(frozen=True, kw_only=True)
class ServingAuditOptions:
    """How often servers are audited, with what."""

    prompts: Path
    """A file with a prompt in each line. Keep it secret: a server that knows it can draw right for these alone."""

    interval_seconds: float = 3600.0
    num_candidates: int = 32
    num_threads: int = 1

    def __post_init__(self) -> None:
        if not self.interval_seconds > 0:
            raise ValueError(f"The interval of audits is {self.interval_seconds} s; expected more than 0.")
        read_prompts(self.prompts)


def read_prompts(path: Path) -> list[str]:
    """Return the prompts of a file, one in each line that is not empty; raises ValueError if there are none."""
    try:
        if path.stat().st_size > MOST_PROMPT_BYTES:
            raise ValueError(f"{path} has {path.stat().st_size} bytes; expected at most {MOST_PROMPT_BYTES}.")
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(
            f"{path} cannot be read ({error}); expected a text file with a prompt in each line."
        ) from error
    if not (prompts := [line.strip() for line in lines if line.strip()]):
        raise ValueError(f"{path} has no prompts; expected one in each line.")
    return prompts


class ServingAudits:
    """Audits one after the other; `look` is called now and then. Use as a context manager: what runs ends with it."""

    def __init__(
        self,
        repository: str,
        options: ServingAuditOptions,
        folder: Path,
        *,
        program: Sequence[str] = AUDIT,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`folder` is for the report and the log of the audits; `program` gets the arguments of `run audit`."""
        self._repository, self._options, self._folder = repository, options, folder
        self._program, self._clock, self._next = tuple(program), clock, clock()
        self._command: BoundedCommand | None = None
        self._owed: Counter[tuple[str, str]] = Counter()
        """Credit that is not published yet, by day and user."""

    def __enter__(self) -> "ServingAudits":
        self._folder.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(self, *exception: object) -> None:
        if self._command is not None:
            self._command.stop()

    @property
    def is_busy(self) -> bool:
        """Whether an audit goes on."""
        return self._command is not None

    def look(self) -> dict[str, int] | None:
        """Start an audit if one is due; return who drew how many right in one that has ended since the last call."""
        if self._command is None:
            if self._clock() >= self._next:
                self._start()
            return None
        if (code := self._command.exit_code()) is None:
            return None
        command, self._command = self._command, None
        if code != 0:
            logger.warning("The audit of servers ended with exit code %d: %s", code, command.last_line())
            return None
        try:
            right = read_report(self._report)
        except (OSError, ValueError) as error:
            logger.warning("The audit's report cannot be read: %s", error)
            return None
        self._owed.update({(day_of(time.time()), user): number for user, number in right.items()})
        self._publish()
        return right

    @property
    def _report(self) -> Path:
        return self._folder / "audit.json"

    def _start(self) -> None:
        self._next = self._clock() + self._options.interval_seconds
        self._report.unlink(missing_ok=True)
        options = self._options
        arguments = ["--prompts", str(options.prompts), "--candidates", str(options.num_candidates)]
        try:
            self._command = BoundedCommand(
                [*self._program, self._repository, *arguments, "--output", str(self._report)],
                limit_seconds=LIMIT_SECONDS,
                environment=bounded_environment(os.environ, num_threads=options.num_threads, device="cpu"),
                log=self._folder / "audit.log",
            )
        except OSError as error:
            logger.warning("The audit of servers cannot start: %s", error)

    def _publish(self) -> None:
        """Add what is owed to the repository's files; what cannot be published is owed until the next audit."""
        if not self._owed:
            return
        try:
            commit_changes(self._repository, self._changes, "Credit servers that draw right")
        except (OSError, ValueError, httpx2.HTTPError) as error:
            logger.warning("The credit for servers is published with the next audit: %s", error)
            return
        self._owed.clear()

    def _changes(self, head: RunSnapshot) -> list[CommitOperationAdd]:
        operations = []
        for month in sorted({day[:7] for day, _ in self._owed}):
            name = f"{METRICS_FOLDER}/{served_file(month)}"
            held = head.download(name)
            owed = {key: number for key, number in self._owed.items() if key[0].startswith(month)}
            days = with_credit(read_served(held) if held is not None else {}, owed)
            operations.append(CommitOperationAdd(path_in_repo=name, path_or_fileobj=to_parquet(days)))
        return operations


def read_report(path: Path) -> dict[str, int]:
    """Return how many candidates each user has drawn right, by an audit's report; raises ValueError if it is none."""
    right: Counter[str] = Counter()
    try:
        for server in read_json(path, LARGEST_REPORT_BYTES)["servers"]:
            right[str(server["username"])] += int(server["num_right"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"It is no report of an audit ({error!r}).") from error
    return dict(right)
