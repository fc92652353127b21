"""`dalle-collab demo`: the whole system, small, on one machine; its data and its judges."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hub_tools.printing.consoles import open_progress

if TYPE_CHECKING:
    from rich.console import Console

app = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")

OutputOption = Annotated[Path, typer.Option("--output", help="Folder to write to; created if missing.")]
ResumedOutputOption = Annotated[
    Path, typer.Option("--output", help="Folder to write to; a demo that is begun there goes on.")
]
ShortOption = Annotated[bool, typer.Option("--short", help="Within minutes, for a look at it: what it learns is poor.")]


@contextlib.contextmanager
def opened_demo() -> "Iterator[Console]":
    """Yield where a demo prints; on a signal that ends it, it ends what it has started."""
    import signal

    from hub_tools.printing.consoles import open_console

    def interrupt(number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    numbers = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
    # A shell that starts a program in the background lets it ignore Ctrl-C; nohup lets it ignore a hang-up, on purpose.
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
        numbers.remove(signal.SIGHUP)
    before = {number: signal.signal(number, interrupt) for number in numbers}
    console = open_console()
    console.print("Starting.")
    try:
        yield console
    except KeyboardInterrupt:
        console.print("Stopped; nothing of it runs any more. The same command goes on where it was.")
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def loading(console: "Console") -> contextlib.AbstractContextManager[None]:
    """Say that libraries are being loaded: on a busy machine that takes a minute."""
    from pipelines.tools.demo.running.progress_lines import ProgressLines

    return ProgressLines(console).doing("Loading libraries")


@app.command("run")
def run_demo(
    output: ResumedOutputOption = Path("demo-output"),
    num_pictures: Annotated[int | None, typer.Option(help="How many scenes to draw; default: 16000.")] = None,
    short: ShortOption = False,
    long: Annotated[bool, typer.Option("--long", help="Train on nearly twice as many samples.")] = False,
) -> None:
    """Run the whole system on this machine: scenes, codes, a Hub, two peers and an auxiliary one, pictures, a score.

    It trains from random weights with the public commands, within a quarter of an hour on two free cores. Five pages
    show the run while it trains and, on a terminal, afterwards until Ctrl-C. Look at OUTPUT/progress.png after a fifth
    of the training, then at OUTPUT/grid.png and OUTPUT/summary.html. Interrupted by whatever, the same command goes on
    where it was.

    \b
    Examples:
      dalle-collab demo run
      dalle-collab demo run --output my-demo --num-pictures 8000
      dalle-collab demo run --output short-demo --short
      dalle-collab demo run --output long-demo --long
    """
    with opened_demo() as console:
        with loading(console):
            from pipelines.tools.demo.running_spaces import look_around
            from pipelines.tools.demo.scenes_demo import run_scenes_demo
            from pipelines.tools.demo.summary import show_end

        summary = run_scenes_demo(output, console, num_pictures=num_pictures, is_short=short, is_long=long)
        show_end(summary, output, "demo/scenes", console)
        if console.is_terminal:
            look_around(output, console)


@app.command("language")
def run_language(output: ResumedOutputOption = Path("demo-language-output"), short: ShortOption = False) -> None:
    """Train a small language model on real text on this machine, with two peers, and compare it with n-grams.

    The text is the documentation of Python's standard library, which every machine has. It takes about a quarter of
    an hour on two cores. Look at OUTPUT/summary.html afterwards.

    \b
    Examples:
      dalle-collab demo language
      dalle-collab demo language --output my-language
    """
    with opened_demo() as console:
        with loading(console):
            from pipelines.tools.demo.language import language_demo

        settings = language_demo.SHORT_SETTINGS if short else language_demo.RUN_SETTINGS
        language_demo.show_language_end(language_demo.run_language_demo(output, console, settings), output, console)


@app.command()
def text(
    output: OutputOption,
    vocabulary_size: Annotated[int, typer.Option(help="Tokens of the tokenizer.")] = 2048,
    sequence_length: Annotated[int, typer.Option(help="Longest sequence that the tokenizer expects.")] = 128,
    masks: Annotated[bool, typer.Option("--masks", help="A tokenizer for fill-mask.")] = False,
) -> None:
    """Write the documentation of Python's standard library as a text dataset, and a tokenizer trained on it.

    \b
    Examples:
      dalle-collab demo text --output text
      dalle-collab demo text --output text --vocabulary-size 4096 --masks
    """
    from pipelines.tools.demo.language.text import TEXT_FOLDER, TOKENIZER_FOLDER, documents, write_text_dataset
    from pipelines.tools.demo.language.tokenizer import train_text_tokenizer

    train, validation = write_text_dataset(output / TEXT_FOLDER, documents())
    tokenizer = train_text_tokenizer(train, vocabulary_size, fills_masks=masks, sequence_length=sequence_length)
    tokenizer.save_pretrained(output / TOKENIZER_FOLDER)
    num_characters = sum(map(len, train))
    typer.echo(
        f"Wrote {len(train)} documents ({num_characters:,} characters), {len(validation)} held out, to {output}."
    )


@app.command()
def judge_text(
    repository: Annotated[str, typer.Argument(metavar="ORG/RUN", help="Run of a language model.")],
) -> None:
    """Print as JSON the perplexity of a run's newest checkpoint, that of n-grams for such text, and sample text.

    The run is of text as `demo text` writes it.

    \b
    Example:
      dalle-collab demo judge-text demo/language
    """
    import json

    from pipelines.tools.demo.language.language_judge import judge_language_run

    typer.echo(json.dumps(judge_language_run(repository)))


@app.command()
def spaces(
    output: Annotated[Path, typer.Option(help="Folder of a finished demo.")] = Path("demo-output"),
) -> None:
    """Open the Hub and the five pages of a finished demo, until Ctrl-C.

    \b
    Examples:
      dalle-collab demo spaces
      dalle-collab demo spaces --output my-demo
    """
    with opened_demo() as console:
        with loading(console):
            from pipelines.tools.demo.running_spaces import look_around

        look_around(output, console)


@app.command()
def scenes(
    output: OutputOption,
    num_pictures: Annotated[int, typer.Option(help="How many pictures in all, including dirty ones.")] = 16_000,
    seed: Annotated[int, typer.Option(help="Another seed gives different pictures of the same kind.")] = 0,
    pictures_per_tar: Annotated[int, typer.Option(help="Pictures per tar, at most 10000.")] = 2_000,
    clean: Annotated[bool, typer.Option("--clean", help="Write no dirty pictures.")] = False,
) -> None:
    """Draw captioned scenes into webdataset tars in img2dataset's layout with LAION's fields.

    A scene is a shape of one colour and size, somewhere on a plain background. About one picture in eleven is dirty
    (empty caption, NSFW label, extreme ratio, corrupt file) and must be dropped by `data prepare`. Some combinations
    are held out: they occur in no tar, whatever the seed.

    \b
    Examples:
      dalle-collab demo scenes --output scenes
      dalle-collab demo scenes --output scenes --num-pictures 2000 --seed 1 --clean
    """
    from pipelines.tools.demo.scenes.scene_tars import SceneTarsConfig, write_scene_tars

    shares = {"dirt_shares": {}} if clean else {}
    config = SceneTarsConfig(num_pictures=num_pictures, seed=seed, pictures_per_tar=pictures_per_tar, **shares)
    with _progress() as progress:
        task = progress.add_task("drawing scenes", total=num_pictures)
        counts = write_scene_tars(output, config, lambda done: progress.update(task, completed=done))
    kinds = ", ".join(f"{count} {dirt}" for dirt, count in sorted(counts.items()) if dirt != "none")
    typer.echo(f"Wrote {num_pictures} pictures to {output}: {counts['none']} good ones{', ' if kinds else ''}{kinds}.")


@app.command()
def captions(
    num_captions: Annotated[int, typer.Option(help="How many; at most one for each held-out combination.")] = 16,
    num_pairs: Annotated[int, typer.Option(help="As many of two shapes among them.")] = 0,
) -> None:
    """Print captions of held-out scenes, which no training picture shows.

    \b
    Examples:
      dalle-collab demo captions
      dalle-collab demo captions --num-captions 200 --num-pairs 100 > prompts.txt
    """
    from pipelines.tools.demo.scenes.caption_judge import held_out_scene_captions

    for caption in held_out_scene_captions(num_captions, num_pairs):
        typer.echo(caption)


@app.command()
def judge(
    pictures: Annotated[list[Path], typer.Argument(help="Square pictures, such as generated ones.")],
    caption: Annotated[str | None, typer.Option(help="A scene's caption to compare every picture with.")] = None,
) -> None:
    """Say which scene each picture shows, by matching it with rendered shapes.

    With --caption, also say whether colour, background, shape and position, or relation, are all correct.

    \b
    Examples:
      dalle-collab demo judge picture.png
      dalle-collab demo judge *.png --caption "a small red star on the left of a blue background"
    """
    from pipelines.tools.demo.scenes.caption_judge import describe_scene, judge_caption, parse_scene_caption
    from pipelines.tools.demo.scenes.scene_judge import read_picture

    if caption is not None:
        parse_scene_caption(caption)  # a caption of something else is refused before any picture is read
    for path in pictures:
        picture = read_picture(path)
        verdict = ""
        if caption is not None:
            right = judge_caption(caption, picture)
            verdict = ", as asked for" if right and all(right.values()) else ", not as asked for"
        typer.echo(f"{path}: {describe_scene(picture)}{verdict}")


def _progress() -> "rich.progress.Progress":  # noqa: F821 - imported below, so that --help stays fast
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn

    return open_progress(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
