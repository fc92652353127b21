"""`dalle-collab`: from captioned pictures to a jointly trained model, and pictures drawn by it."""

import logging

import typer

from hub_tools.endpoint import prepare_hub_client
from hub_tools.one_line_errors import run_command_line
from pipelines.command_line import chaos, clip, codec, demo, doctor, evaluate, generate, join, serve, write
from pipelines.command_line.data import commands as data
from pipelines.command_line.data import start
from pipelines.command_line.model import commands as model
from pipelines.command_line.run import commands as run

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help=(
        "Train transformers together, over the Internet, through the Hugging Face Hub.\n\n"
        "Set HF_ENDPOINT to use a Hub other than huggingface.co, and HF_TOKEN (or `hf auth login`) to write to it."
    ),
)
app.command("start")(start.start)
app.add_typer(data.app, name="data", help="Turn captioned pictures into a streamable dataset of image codes.")
app.add_typer(codec.app, name="codec", help="Train, inspect and convert VQGAN codecs.")
app.add_typer(clip.app, name="clip", help="Train a CLIP that ranks pictures, and rank with it.")
app.add_typer(model.app, name="model", help="Convert and fine-tune models.")
app.add_typer(run.app, name="run", help="Create, assist and inspect a training run.")
app.command("join")(join.join)
app.command("serve")(serve.serve)
app.command("doctor")(doctor.doctor)
app.command("generate")(generate.generate)
app.command("write")(write.write)
app.command("evaluate")(evaluate.evaluate)
app.command("chaos")(chaos.chaos)
app.add_typer(demo.app, name="demo", help="Run the whole system, small, on this machine.")


def main() -> None:
    """Run the command line; end with exit code 1 and one line for an error that the user can fix."""
    # bitsandbytes warns of missing 4-bit kernels on every CPU with bfloat16; nothing here uses them.
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    prepare_hub_client()
    run_command_line(app, prog_name="dalle-collab")


if __name__ == "__main__":
    main()
