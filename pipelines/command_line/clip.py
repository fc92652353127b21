"""`dalle-collab clip`: train the CLIP that ranks generated pictures, and rank with it."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hub_tools.counted import counted
from hub_tools.printing.consoles import open_console
from pipelines.command_line.data.filter_options import with_filter_options
from pipelines.command_line.terminal.setting_options import refuse_given

if TYPE_CHECKING:
    import numpy as np
    import torch

    from pipelines.tasks.text_to_image.clip.clip_training import ClipTrainingReport
    from pipelines.tasks.text_to_image.data_preparation.filtering import FilterPolicy

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)


@app.command()
@with_filter_options
def train(
    policy: "FilterPolicy",
    context: typer.Context,
    pictures: Annotated[list[Path], typer.Argument(help="Webdataset tars, folders of tars or folders of pictures.")],
    output: Annotated[Path, typer.Option(help="Folder of the CLIP; an older CLIP there is replaced.")],
    steps: Annotated[int, typer.Option(help="Optimizer steps.")] = 1500,
    batch_size: Annotated[int, typer.Option(help="Pairs per step; more pairs give more negatives.")] = 128,
    group_size: Annotated[int, typer.Option(help="Pairs of a batch chosen for similar captions; 1: at random.")] = 16,
    image_size: Annotated[int, typer.Option(help="Pixels of a side, a multiple of 32.")] = 64,
    learning_rate: Annotated[float, typer.Option(help="Highest learning rate.")] = 2e-3,
    vocab_size: Annotated[int, typer.Option(help="Size of the tokenizer trained on the captions, 258 or more.")] = 512,
    context_length: Annotated[int, typer.Option(help="Tokens per caption; longer ones are truncated.")] = 24,
    codec: Annotated[
        str | None, typer.Option(help="VQGAN folder or repository: half of the pictures are reconstructed with it.")
    ] = None,
    code_corruption: Annotated[float, typer.Option(help="Mean share of wrong codes in reconstructed pictures.")] = 0.03,
    max_pictures: Annotated[int | None, typer.Option(help="Read at most this many pictures.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Save the CLIP also if it has learnt nothing.")] = False,
    cpu_threads: Annotated[int | None, typer.Option(help="Threads for computing; default: all cores.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 0,
) -> None:
    """Train a small CLIP on your own captioned pictures.

    The result is an open_clip folder of about 3 MB that `dalle-collab generate --clip` takes and that
    `hub-tools publish folder` puts on the Hub. Ctrl-C saves what was learnt so far. A CLIP that finds held-out pictures
    no better than chance is not saved, and the exit code is 1.

    Examples:

      dalle-collab clip train pictures/ --output my-clip

      dalle-collab clip train shards/*.tar --output my-clip --codec my-org/codec --steps 3000
    """
    if codec is None:
        refuse_given(context, "it has no effect without --codec CODEC", "code_corruption")
    import torch

    from hub_tools.printing.stage_progress import stage_progress
    from pipelines.tasks.text_to_image.clip.clip_training import ClipTrainingConfig, train_clip
    from pipelines.tasks.text_to_image.image_codes.codec_code import open_codec

    config = ClipTrainingConfig(
        image_size=image_size,
        context_length=context_length,
        vocab_size=vocab_size,
        num_steps=steps,
        batch_size=batch_size,
        group_size=group_size,
        peak_learning_rate=learning_rate,
        code_corruption=code_corruption,
        seed=seed,
    )
    if cpu_threads is not None:
        torch.set_num_threads(cpu_threads)
    image_codec = open_codec(codec) if codec else None
    dropped: Counter[str] = Counter()
    pairs = captioned_pictures(pictures, dropped, image_size, policy, limit=max_pictures)
    with stage_progress() as on_progress:
        report = train_clip(pairs, output, config, codec=image_codec, on_progress=on_progress, save_anyway=force)
    _print_report(report, output, dropped)
    if words := verdict(report):
        typer.echo(words, err=True)
    if report.was_interrupted:
        raise typer.Exit(130)
    if not report.num_bytes:
        raise typer.Exit(1)


@app.command()
def rank(
    caption: Annotated[str, typer.Argument(help="What the pictures should show.")],
    pictures: Annotated[list[Path], typer.Argument(help="Picture files.")],
    clip: Annotated[str, typer.Option(help="open_clip folder, Hub repository or MODEL/TAG.")] = "ViT-B-32/openai",
) -> None:
    """Rank pictures by how well they fit a caption, and print them best first with their scores.

    Examples:

      dalle-collab clip rank "a small red star" a.png b.png c.png --clip my-clip
    """
    import torch

    from pipelines.tasks.text_to_image.clip.clip_reranking import ClipReranker

    reranker = ClipReranker.from_pretrained(clip)
    scores = torch.cat([reranker.scores(caption, _read_picture(path)) for path in pictures])
    for index in scores.argsort(descending=True, stable=True).tolist():
        typer.echo(f"{scores[index]:8.3f}  {pictures[index]}")


def verdict(report: "ClipTrainingReport") -> str | None:
    """Return what to tell somebody whose CLIP has learnt nothing, or may have; None if it has learnt something."""
    if report.has_learnt:
        return None
    if report.has_learnt is None:
        return (
            f"{counted(report.num_held_out, 'held-out picture')} cannot tell whether the CLIP has learnt anything. "
            "Give it more pictures, and captions that differ."
        )
    found = round(report.retrieval_accuracy * report.num_held_out)
    saved = "It was saved, as --force says." if report.num_bytes else "It was not saved; --force saves it nevertheless."
    return (
        f"The CLIP has learnt nothing: {found} of {report.num_held_out} held-out captions find their picture; "
        f"{report.chance * report.num_held_out:.1f} would by chance. {saved} Give it more --steps and pictures, "
        "and captions that say how each picture differs."
    )


def captioned_pictures(
    paths: list[Path],
    dropped: Counter[str],
    image_size: int,
    policy: "FilterPolicy | None" = None,
    *,
    limit: int | None = None,
) -> Iterator[tuple[str, "np.ndarray"]]:
    """Yield `(caption, picture (image_size, image_size, 3) uint8)` of all sources; count the others in `dropped`.

    With the dataset's filter, which is `policy`, and its way to make squares the CLIP sees what the model sees.
    """
    from pipelines.tasks.text_to_image.data_preparation.encoding import decode_picture
    from pipelines.tasks.text_to_image.data_preparation.filtering import DropReason, FilterPolicy, drop_reason
    from pipelines.tasks.text_to_image.data_preparation.sources.finding import find_sources
    from pipelines.tasks.text_to_image.data_preparation.sources.sample import SourceDamage

    by_name = "; if they are in names: --caption-from name, folder or path" if policy else ""
    policy = policy or FilterPolicy()
    num_yielded = 0
    for source in find_sources(paths, policy.reading):
        for sample in source.samples():
            if num_yielded == limit:
                return
            if isinstance(sample, SourceDamage):
                dropped[str(sample)] += 1
                continue
            reason = drop_reason(sample, policy)
            decoded = reason or decode_picture(sample.image_bytes, image_size, policy)
            if isinstance(decoded, DropReason):
                dropped[decoded.value.replace("_", " ")] += 1
                continue
            num_yielded += 1
            yield sample.caption, decoded[0]
    if not num_yielded:
        reasons = ", ".join(f"{reason}: {number:,}" for reason, number in dropped.most_common(3))
        raise ValueError(
            f"No picture in {', '.join(map(str, paths))} can be used{f' ({reasons})' if reasons else ''}. Captions are "
            f"texts beside the pictures or in a table{by_name}."
        )


def _read_picture(path: Path) -> "torch.Tensor":
    import numpy as np
    import torch
    from PIL import Image

    from pipelines.tasks.text_to_image.data_preparation.pictures.decoding import on_white

    try:
        with Image.open(path) as opened:
            picture = np.array(on_white(opened))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):  # what Pillow raises for damaged files
        raise ValueError(f"{path} is not a readable picture: expected a PNG, JPEG or WebP file.") from None
    return torch.from_numpy(picture).permute(2, 0, 1)[None].float() / 255  # (1, 3, height, width)


def _print_report(report: "ClipTrainingReport", output: Path, dropped: Counter[str]) -> None:
    from rich.table import Table

    table = Table(title="CLIP", show_header=False)
    table.add_row("folder", str(output) if report.num_bytes else "not saved")
    table.add_row("pictures", f"{report.num_pictures:,}, and {report.num_held_out:,} held out")
    table.add_row("steps", f"{report.num_steps:,}" + (" (stopped by Ctrl-C)" if report.was_interrupted else ""))
    table.add_row("loss", f"{report.losses[0]:.3f} -> {report.losses[-1]:.3f} nats")
    table.add_row("held-out pictures found by their captions", f"{report.retrieval_accuracy:.1%}")
    table.add_row("the same by chance", f"{report.chance:.1%}")
    table.add_row("weights", f"{report.num_parameters:,} parameters, {report.num_bytes / 1e6:.2f} MB")
    table.add_row("time", f"{report.seconds:.0f} s")
    for reason, count in dropped.most_common():
        table.add_row("left out", f"{count:,} {reason}")
    open_console().print(table)
