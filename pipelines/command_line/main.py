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
VOLUNTEERS, USERS = "For volunteers", "For users of a model"
ORGANISERS, DEVELOPERS = "For organisers of a run", "To try it out, and for developers"

app.command("join", rich_help_panel=VOLUNTEERS)(join.join)
app.command("serve", rich_help_panel=VOLUNTEERS)(serve.serve)
app.command("doctor", rich_help_panel=VOLUNTEERS)(doctor.doctor)
app.command("generate", rich_help_panel=USERS)(generate.generate)
app.command("write", rich_help_panel=USERS)(write.write)
app.command("evaluate", rich_help_panel=USERS)(evaluate.evaluate)
app.add_typer(model.app, name="model", help="Convert and fine-tune models.", rich_help_panel=USERS)
app.command("start", rich_help_panel=ORGANISERS)(start.start)
for name, group, does in (
    ("data", data.app, "Turn captioned pictures into a streamable dataset of image codes."),
    ("codec", codec.app, "Train, inspect and convert VQGAN codecs."),
    ("clip", clip.app, "Train a CLIP that ranks pictures, and rank with it."),
    ("run", run.app, "Create, assist and inspect a training run."),
):
    app.add_typer(group, name=name, help=does, rich_help_panel=ORGANISERS)
app.add_typer(demo.app, name="demo", help="Run the whole system, small, on this machine.", rich_help_panel=DEVELOPERS)
app.command("chaos", rich_help_panel=DEVELOPERS)(chaos.chaos)


def main() -> None:
    """Run the command line; end with exit code 1 and one line for an error that the user can fix."""
    # bitsandbytes warns of missing 4-bit kernels on every CPU with bfloat16; nothing here uses them.
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    prepare_hub_client()
    run_command_line(app, prog_name="dalle-collab")


if __name__ == "__main__":
    main()
