"""`dalle-collab model`: for those who bring a trained model here, or take one further."""

import typer

from pipelines.command_line.model import convert, finetune

app = typer.Typer(no_args_is_help=True)
app.command("convert")(convert.convert)
app.command("finetune")(finetune.finetune)
