"""The commands of `dalle-collab` that a volunteer's machine runs, as a separate program: `join` and `doctor`.

Pages and notebooks start it as their child; it imports only what a peer needs of the project.
"""

import logging

import typer

from hub_tools.endpoint import prepare_hub_client
from hub_tools.one_line_errors import run_command_line
from pipelines.command_line.doctor import doctor
from pipelines.command_line.join import join

app = typer.Typer(add_completion=False, no_args_is_help=True)
app.command()(join)
app.command()(doctor)


def main() -> None:
    """Run the command."""
    # bitsandbytes warns of missing 4-bit kernels on every CPU with bfloat16; nothing here uses them.
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    prepare_hub_client()
    run_command_line(app, prog_name="dalle-collab")


if __name__ == "__main__":
    main()
