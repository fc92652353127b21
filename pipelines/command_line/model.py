"""`dalle-collab model`: for those who take a trained model further."""

import typer

from pipelines.command_line import finetune

app = typer.Typer(no_args_is_help=True)
app.command("finetune")(finetune.finetune)
