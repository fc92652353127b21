"""Options whose text is more than one plain value: `--set NAME=VALUE`, settings of a run, and numbers or `auto`.

Also which options were given, so that none of them is ignored.
"""

import json
from collections.abc import Sequence
from typing import Annotated, Any

import typer

TokenHost = Annotated[
    str | None,
    typer.Option(metavar="HOST", help="Show the Hub token, if it can only read, to an admission service of old there."),
]


def parse_settings(texts: Sequence[str] | None) -> dict[str, Any]:
    """Return values by name; a value that is not JSON is text.

    Raises:
        ValueError: one of them is not NAME=VALUE.
    """
    return dict(_parse_setting(text) for text in texts or ())


def number_or_auto(option: str, text: str) -> int | None:
    """Return the value of an option that is a whole number or, for None, `auto`.

    Raises:
        ValueError: it is neither.
    """
    if text == "auto":
        return None
    try:
        return int(text)
    except ValueError as error:
        raise ValueError(f"{option} is {text!r}; expected auto or a whole number.") from error


def refuse_given(context: typer.Context, reason: str, *names: str) -> None:
    """Refuse parameters of a command that its command line has and that would have no effect, for this reason.

    Raises:
        ValueError: one of these was given.
    """
    sources = {name: context.get_parameter_source(name) for name in names}
    given = {name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"}
    if options := [parameter.opts[0] for parameter in context.command.params if parameter.name in given]:
        raise ValueError(f"Leave out {', '.join(options)}: {reason}.")


def _parse_setting(text: str) -> tuple[str, Any]:
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise ValueError(f"--set got {text!r}; expected NAME=VALUE, for example --set target_batch_size=256.")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value
