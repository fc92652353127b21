"""`dalle-collab start`: from a folder of pictures to a run that others can join."""

from pathlib import Path
from typing import Annotated

import typer

from pipelines.command_line.data.filter_options import CaptionFrom, CaptionLines
from pipelines.command_line.demo import loading, opened_demo
from pipelines.command_line.terminal.setting_options import Announce


def start(
    pictures: Annotated[Path, typer.Argument(help="Folder of pictures, with captions beside them or in their names.")],
    name: Annotated[str, typer.Option(metavar="ORG/NAME", help="Name of the run; others join it under this name.")],
    hours: Annotated[float, typer.Option(help="How long all of it may take on this machine.")] = 1.0,
    output: Annotated[
        Path | None, typer.Option(help="Folder for everything; one that is begun goes on. Default: NAME-run.")
    ] = None,
    caption_from: CaptionFrom = "files",
    caption_lines: CaptionLines = "first",
    online: Annotated[
        bool,
        typer.Option("--online", help="Publish to the Hub that is configured, for everybody; else to one in OUTPUT."),
    ] = False,
    announce: Announce = None,
) -> None:
    """Go all the way from a folder of pictures to a run with pages, on this machine; others can join while it trains.

    It trains a codec and a CLIP on the pictures, publishes them with the dataset of image codes, creates a run whose
    model and schedule fit pictures and hours, assists it, joins it, opens its pages and draws. Each step is an ordinary
    command, which is printed before it runs. Interrupted by whatever, the same command goes on where it was.

    Without `--online` nothing leaves this machine: everything is on a Hub in OUTPUT, and volunteers are other terminals
    of it. With it, volunteers connect to TCP port 31337 of this machine.

    \b
    Examples:
      dalle-collab start pictures/ --name my-org/birds
      dalle-collab start icons/ --name my-org/icons --caption-from name --hours 0.25
      dalle-collab start pictures/ --name my-org/birds --hours 8 --online
    """
    from pipelines.tasks.text_to_image.data_preparation.reading.reading_options import ReadingOptions
    from pipelines.tools.demo.demo_plan import split_name

    reading = ReadingOptions(caption_from=caption_from, caption_lines=caption_lines)
    folder = output or Path(f"{split_name(name)[1]}-run")
    if not pictures.is_dir():
        raise ValueError(f"{pictures} is not a folder; expected one of captioned pictures.")
    if folder.resolve().is_relative_to(pictures.resolve()):
        raise ValueError(f"{folder} is inside {pictures}, whose pictures are read. Choose another: --output NAME")
    if announce and not online:
        raise ValueError("--announce is for --online: without it nobody connects from elsewhere.")
    with opened_demo() as console:
        with loading(console):
            from pipelines.features.torch_devices import num_cores
            from pipelines.tools.demo.own_pictures import run_own_pictures
            from pipelines.tools.demo.running_spaces import look_around
            from pipelines.tools.demo.summary import show_end

        summary = run_own_pictures(
            pictures,
            name,
            folder,
            console,
            hours=hours,
            reading=reading,
            is_online=online,
            announce=announce or (),
            num_trainers=min(2, num_cores()),
        )
        show_end(summary, folder, name, console, is_online=online)
        if console.is_terminal:
            look_around(folder, console)
