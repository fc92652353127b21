"""`dalle-collab demo`: the whole system, small, on one machine; its data and its judges."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")

OutputOption = Annotated[Path, typer.Option("--output", help="Folder to write to; created if missing.")]


@app.command("run")
def run_demo(
    output: OutputOption = Path("demo-output"),
    num_pictures: Annotated[int, typer.Option(help="How many scenes to draw.")] = 16_000,
) -> None:
    """Run the whole system on this machine: scenes, codes, a Hub, two peers and an auxiliary one, pictures, a score.

    It trains from random weights with the public commands and takes about a quarter of an hour on two cores. Five pages
    show the run while it trains and, on a terminal, afterwards until Ctrl-C. Look at OUTPUT/grid.png and
    OUTPUT/summary.html too.

    \b
    Examples:
      dalle-collab demo run
      dalle-collab demo run --output my-demo --num-pictures 8000
    """
    from rich.console import Console

    from pipelines.demo.running_spaces import look_around
    from pipelines.demo.scenes_demo import run_scenes_demo
    from pipelines.demo.summary import show_end

    console = Console(stderr=True)
    show_end(run_scenes_demo(output, console, num_pictures=num_pictures), output, "demo/scenes", console)
    if console.is_terminal:
        look_around(output, console)


@app.command("openmoji")
def run_openmoji(
    output: OutputOption = Path("demo-openmoji-output"),
    source: Annotated[Path | None, typer.Option(help="Folder of `demo openmoji-fetch`; default: fetch it.")] = None,
) -> None:
    """Run the whole system on OpenMoji's pictures (CC BY-SA 4.0), with a codec and a CLIP trained for them.

    It takes up to an hour on two cores. Look at OUTPUT/grid.png and OUTPUT/summary.html afterwards.

    \b
    Examples:
      dalle-collab demo openmoji
      dalle-collab demo openmoji --source openmoji-source --output my-emoji
    """
    from rich.console import Console

    from pipelines.demo.openmoji_demo import run_openmoji_demo
    from pipelines.demo.running_spaces import look_around
    from pipelines.demo.summary import show_end

    console = Console(stderr=True)
    show_end(run_openmoji_demo(output, console, source=source), output, "demo/openmoji", console)
    if console.is_terminal:
        look_around(output, console)


@app.command("language")
def run_language(output: OutputOption = Path("demo-language-output")) -> None:
    """Train a small language model on real text on this machine, with two peers, and compare it with n-grams.

    The text is the documentation of Python's standard library, which every machine has. It takes about a quarter of
    an hour on two cores. Look at OUTPUT/summary.html afterwards.

    \b
    Examples:
      dalle-collab demo language
      dalle-collab demo language --output my-language
    """
    from rich.console import Console

    from pipelines.demo.language.language_demo import run_language_demo, show_language_end

    console = Console(stderr=True)
    show_language_end(run_language_demo(output, console), output, console)


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
    from pipelines.demo.language.text import TEXT_FOLDER, TOKENIZER_FOLDER, documents, write_text_dataset
    from pipelines.demo.language.tokenizer import train_text_tokenizer

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
    text: Annotated[Path, typer.Option(help="Folder of its dataset, as written by `demo text`.")],
) -> None:
    """Print as JSON the perplexity of a run's newest checkpoint, that of an n-gram model, and sample text.

    \b
    Example:
      dalle-collab demo judge-text demo/language --text text/dataset
    """
    import json

    from pipelines.demo.language.language_judge import judge_language_run

    typer.echo(json.dumps(judge_language_run(repository, text)))


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
    from rich.console import Console

    from pipelines.demo.running_spaces import look_around

    look_around(output, Console(stderr=True))


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
    from pipelines.demo.scenes.scene_tars import SceneTarsConfig, write_scene_tars

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
) -> None:
    """Print captions of held-out scenes, which no training picture shows.

    \b
    Examples:
      dalle-collab demo captions
      dalle-collab demo captions --num-captions 200 > prompts.txt
    """
    from pipelines.demo.scenes.scene_captions import held_out_captions

    for caption in held_out_captions(num_captions):
        typer.echo(caption)


@app.command()
def judge(
    pictures: Annotated[list[Path], typer.Argument(help="Square pictures, such as generated ones.")],
    caption: Annotated[str | None, typer.Option(help="A scene's caption to compare every picture with.")] = None,
) -> None:
    """Say which scene each picture shows, by matching it with rendered shapes.

    With --caption, also say whether colour, background, position and shape are all correct.

    \b
    Examples:
      dalle-collab demo judge picture.png
      dalle-collab demo judge *.png --caption "a small red star on the left of a blue background"
    """
    from pipelines.demo.scenes.scene_captions import parse_caption
    from pipelines.demo.scenes.scene_judge import judge_file

    wanted = None if caption is None else parse_caption(caption)
    for path in pictures:
        seen = judge_file(path)
        verdict = "" if wanted is None else (", as asked for" if seen.scored == wanted.scored else ", not as asked for")
        typer.echo(f"{path}: {seen.description}{verdict}")


@app.command("openmoji-fetch")
def openmoji_fetch(output: OutputOption) -> None:
    """Fetch the OpenMoji pictures (CC BY-SA 4.0) with npm: about 5 MB to download, 45 MB on disk.

    \b
    Examples:
      dalle-collab demo openmoji-fetch --output openmoji-source
    """
    from pipelines.demo.openmoji import fetch_openmoji

    with _progress() as progress:
        progress.add_task("fetching OpenMoji", total=None)
        package = fetch_openmoji(output)
    typer.echo(f"OpenMoji is in {package}. Next: dalle-collab demo openmoji-tars --source {output} --output DIR")


@app.command("openmoji-tars")
def openmoji_tars(
    source: Annotated[Path, typer.Option(help="Folder of `demo openmoji-fetch`, or of the npm package.")],
    output: OutputOption,
    image_size: Annotated[int, typer.Option(help="Side of the pictures in pixels.")] = 64,
    captions_per_picture: Annotated[int, typer.Option(help="Records per picture, 1 to 3.")] = 3,
    held_out_share: Annotated[float, typer.Option(help="Share of the emoji to hold out.")] = 0.05,
    skin_tones: Annotated[bool, typer.Option("--skin-tones/--no-skin-tones", help="Include these variants.")] = True,
) -> None:
    """Turn the OpenMoji set into captioned webdataset tars: OUTPUT/train and OUTPUT/held_out.

    \b
    Examples:
      dalle-collab demo openmoji-tars --source openmoji-source --output openmoji-tars
      dalle-collab data prepare openmoji-tars/train --codec CODEC --output openmoji-codes
    """
    from pipelines.demo.openmoji import OpenMojiConfig, write_openmoji_tars

    config = OpenMojiConfig(
        image_size=image_size,
        captions_per_picture=captions_per_picture,
        held_out_share=held_out_share,
        skin_tones=skin_tones,
    )
    with _progress() as progress:
        task = progress.add_task("drawing emoji", total=None)
        counts = write_openmoji_tars(
            source, output, config, lambda done, total: progress.update(task, completed=done, total=total)
        )
    typer.echo(
        f"Wrote {counts.records} records of {counts.training_pictures} emoji to {output / 'train'} and "
        f"{counts.held_out_pictures} emoji to {output / 'held_out'}; {len(counts.missing)} have no drawing. "
        "Pictures: OpenMoji, CC BY-SA 4.0."
    )


def _progress() -> "rich.progress.Progress":  # noqa: F821 - imported below, so that --help stays fast
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    return Progress(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
