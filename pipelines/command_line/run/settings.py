"""`dalle-collab run settings`: what `run create --set` takes."""

from itertools import groupby
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from pipelines.tasks.setting_list import Setting


def settings(
    words: Annotated[list[str] | None, typer.Argument(metavar="WORD", help="Only settings that mention it.")] = None,
    task: Annotated[str, typer.Option(help="text-to-image, fill-mask or text-generation.")] = "text-to-image",
    model_type: Annotated[str | None, typer.Option(help="Also what a transformers model of this type takes.")] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown.")] = False,
) -> None:
    """List the settings of a run: name, default, meaning.

    Examples:

      dalle-collab run settings

      dalle-collab run settings batch

      dalle-collab run settings --task text-generation --model-type gpt2
    """
    from pipelines.tasks.choice import settings_of

    found = [
        setting
        for setting in settings_of(task, model_type)
        if all(word.lower() in f"{setting.name} {setting.meaning}".lower() for word in words or ())
    ]
    if not found:
        raise ValueError(f"No setting mentions {' and '.join(words or ())}. All of them: dalle-collab run settings")
    for group, members in groupby(found, key=lambda setting: setting.group):
        if markdown:
            for line in (f"## {group}", "", "| setting | default | meaning |", "|---|---|---|"):
                typer.echo(line)
            for setting in members:
                typer.echo(f"| `{setting.name}` | {_default(setting)} | {setting.meaning} |")
            typer.echo("")
        else:
            _print_table(group, list(members))


def _print_table(group: str, members: "list[Setting]") -> None:
    from rich import box
    from rich.table import Table

    from hub_tools.printing.consoles import open_console

    table = Table("setting", "default", "meaning", title=group, title_justify="left", box=box.SIMPLE_HEAD)
    for setting in members:
        table.add_row(setting.name, _default(setting), setting.meaning.replace("`", ""))
    open_console().print(table)


def _default(setting: "Setting") -> str:
    import json

    if setting.name == "run_id":
        return "the repository's name"
    return (
        setting.default
        if isinstance(setting.default, str) and setting.default
        else json.dumps(setting.default, default=str)
    )
