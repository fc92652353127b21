"""`dalle-collab model`: convert a trained model from elsewhere, or fine-tune one."""

import typer

from pipelines.command_line.model import convert, finetune

app = typer.Typer(no_args_is_help=True)
app.command("convert")(convert.convert)
app.command("finetune")(finetune.finetune)
