"""`dalle-collab codec`: train a codec, see what it preserves of pictures, convert a published one."""

import dataclasses
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Annotated

import typer

from hub_tools.counted import counted, duration
from hub_tools.printing.consoles import open_progress
from pipelines.command_line.terminal.setting_options import refuse_given

if TYPE_CHECKING:
    import numpy as np
    import torch

    from pipelines.tasks.text_to_image.data_preparation.filtering import DropReason
    from pipelines.tasks.text_to_image.image_codes.vqgan_codec import VQGANCodec, VQGANConfig

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)

LARGEST_PATCH = 8
DEFAULT_IMAGE_SIZE = 256
INTERRUPTED_EXIT_CODE = 130
PICTURES_IN_A_ROW = 8
# Seen on icons and on figures of games, 48 to 72 pixels: at 0.028 one knows each by shape and colours; at 0.036 colours
# have run together; at 0.042 to 0.046 figures are silhouettes, and only what is large and plain is right.
ERROR_TO_AIM_AT = 0.03


@app.command()
def train(
    context: typer.Context,
    pictures: Annotated[list[Path], typer.Argument(help="Webdataset tars, folders of tars or folders of pictures.")],
    output: Annotated[Path, typer.Option(help="Folder of the codec; an older codec there is replaced at the end.")],
    image_size: Annotated[int, typer.Option(help="Pixels of a picture's side.")] = 64,
    grid: Annotated[int, typer.Option(help="A picture becomes grid x grid codes.")] = 8,
    codebook_size: Annotated[int, typer.Option(help="Number of codes. More: sharper, harder for the model.")] = 1024,
    channels: Annotated[int, typer.Option(help="Width of encoder and decoder, a multiple of 32.")] = 96,
    minutes: Annotated[float, typer.Option(help="How long to train, on any machine.")] = 15.0,
    steps: Annotated[int | None, typer.Option(help="Optimizer steps, however long they take.")] = None,
    batch_size: Annotated[int, typer.Option(help="Pictures per step.")] = 16,
    learning_rate: Annotated[float, typer.Option(help="Highest learning rate.")] = 2e-3,
    code_corruption: Annotated[
        float, typer.Option(help="Share of wrong codes that the decoder learns to mend. More: fewer torn drawings.")
    ] = 0.06,
    max_pictures: Annotated[int, typer.Option(help="Pictures kept in memory; the rest are not read.")] = 20_000,
    resume: Annotated[bool, typer.Option("--resume", help="Continue training the codec in --output.")] = False,
    device: Annotated[str, typer.Option(help="Where to train: cpu, cuda, ...")] = "cpu",
    cpu_threads: Annotated[int | None, typer.Option(help="Threads for computing; default: all cores.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 0,
) -> None:
    """Train a small VQGAN codec on your own pictures, in 15 minutes unless told otherwise.

    It says which reconstruction error to aim at, and in the end which it has reached; `codec show` draws how that
    looks. Ctrl-C saves the codec trained so far; `--resume` continues from there. The weights are stored as float16.

    Examples:

      dalle-collab codec train pictures/ --output my-codec

      dalle-collab codec train shards/*.tar --output my-codec --codebook-size 2048 --steps 5000
    """
    from pipelines.tasks.text_to_image.data_preparation.sources.finding import find_sources

    if steps is not None:
        refuse_given(context, "--steps says how long to train", "minutes")
    find_sources(pictures)  # before torch is imported, so that a mistyped path is reported at once
    import torch

    from pipelines.tasks.text_to_image.image_codes.codec_code import open_codec, write_codec_card
    from pipelines.tasks.text_to_image.image_codes.codec_training import CodecTrainingOptions
    from pipelines.tasks.text_to_image.image_codes.vqgan_codec import VQGANCodec

    options = CodecTrainingOptions(
        num_steps=steps,
        minutes=minutes,
        batch_size=batch_size,
        learning_rate=learning_rate,
        code_corruption=code_corruption,
        seed=seed,
    )
    if cpu_threads is not None:
        torch.set_num_threads(cpu_threads)
    torch.manual_seed(seed)
    if resume:
        codec = open_codec(output, device=device)
        has = codec.config
        sizes = dict(image_size=has.image_size, grid=has.grid_size, channels=has.channels)
        sizes["codebook_size"] = has.codebook_size
        wanted = dict(image_size=image_size, grid=grid, channels=channels, codebook_size=codebook_size)
        others = [name for name, value in wanted.items() if value != sizes[name]]
        refuse_given(context, f"--resume goes on with the codec in {output}, which has {sizes}", *others)
    else:
        codec = VQGANCodec(small_codec_config(image_size, grid, codebook_size, channels)).to(device)
    images = read_pictures(pictures, codec.config.image_size, max_pictures)
    # A few pictures drawn again and again would tell k-means nothing new.
    num_placing_codes = min(options.num_placing_codes, len(images) * codec.config.num_codes)
    options = dataclasses.replace(options, num_placing_codes=num_placing_codes)
    length = duration(60 * minutes) if steps is None else counted(steps, "step")
    typer.echo(
        f"Training takes {length}. Aim at a mean absolute error of {ERROR_TO_AIM_AT:g} of 1: then each picture is "
        "known by its shapes and colours, and details are soft. From 0.04 on small figures are silhouettes."
    )
    finished = _train_with_progress(codec, images, options, start_anew=not resume)
    codec.round_to_half().save_pretrained(output, half_precision=True)
    write_codec_card(codec, output, f"It was trained on {counted(len(images), 'picture')} by this project.")
    _print_result(codec, some_of(images, seed), output)
    if not finished:
        raise typer.Exit(INTERRUPTED_EXIT_CODE)


@app.command()
def show(
    codec: Annotated[str, typer.Argument(help="Codec folder or Hub repository ORG/NAME.")],
    pictures: Annotated[list[Path], typer.Argument(help="Webdataset tars, folders of tars or folders of pictures.")],
    output: Annotated[Path, typer.Option(help="Picture to write.")] = Path("codec.png"),
    num_pictures: Annotated[int, typer.Option(help="Pictures to show.", min=1)] = 16,
    max_pictures: Annotated[int, typer.Option(help="Draw them from this many; the rest are not read.")] = 20_000,
    seed: Annotated[int, typer.Option(help="Another seed draws other pictures.")] = 0,
) -> None:
    """Draw some of your pictures, chosen at random, above their reconstructions, with the error of each.

    Examples:

      dalle-collab codec show my-codec pictures/ --output codec.png
    """
    import torch

    from pipelines.tasks.text_to_image.image_codes.codec_code import open_codec
    from pipelines.tasks.text_to_image.image_codes.picture_grid import picture_grid

    loaded = open_codec(codec)
    drawn = read_pictures(pictures, loaded.config.image_size, max_pictures, num_kept=num_pictures, seed=seed)
    images = drawn.float() / 255
    reconstructions = loaded.decode(loaded.encode(images))
    errors = (reconstructions - images).abs().mean((1, 2, 3))
    columns = min(PICTURES_IN_A_ROW, len(images))
    rows, captions = [], []
    for these, those, mistakes in zip(
        *(part.split(columns) for part in (images, reconstructions, errors)), strict=True
    ):
        blank = torch.ones(columns - len(these), *images.shape[1:])
        rows += [these, blank, those, blank]
        captions += ["original"] * len(these) + [""] * len(blank)
        captions += [f"error {mistake:.3f}" for mistake in mistakes.tolist()] + [""] * len(blank)
    picture_grid(torch.cat(rows), columns, captions).save(output)
    typer.echo(
        f"{output}: {counted(len(images), 'picture')} chosen at random, each above its reconstruction; "
        f"mean absolute error {errors.mean():.4f} of 1."
    )


@app.command()
def convert(
    checkpoint: Annotated[Path, typer.Argument(help="Checkpoint of taming-transformers (.ckpt) or LlamaGen (.pt).")],
    description: Annotated[Path | None, typer.Argument(help="taming's model description (.yaml).")] = None,
    *,
    output: Annotated[Path, typer.Option(help="Folder of the codec.")],
    image_size: Annotated[
        int | None, typer.Option(help="Pixels of a picture's side for LlamaGen's; default: 256.", min=1)
    ] = None,
) -> None:
    """Convert a published VQGAN to safetensors. No code in the checkpoint is run.

    Examples:

      dalle-collab codec convert last.ckpt model.yaml --output vqgan-f8-8192

      dalle-collab codec convert vq_ds16_t2i.pt --output vqgan-f16-16384
    """
    if description and image_size:
        raise ValueError(f"{description} says how large pictures are. Leave out --image-size.")
    if not checkpoint.is_file():  # before torch is imported
        raise ValueError(f"There is no file {checkpoint}. Download the checkpoint first.")
    from pipelines.tasks.text_to_image.image_codes.codec_code import write_codec_card

    if description:
        from pipelines.tasks.text_to_image.image_codes.checkpoints.taming_checkpoint import read_taming_codec

        codec = read_taming_codec(checkpoint, description)
    else:
        from pipelines.tasks.text_to_image.image_codes.checkpoints.llamagen_checkpoint import read_llamagen_codec

        codec = read_llamagen_codec(checkpoint, DEFAULT_IMAGE_SIZE if image_size is None else image_size)
    codec.save_pretrained(output)
    write_codec_card(codec, output, f"It was converted from {checkpoint.name}.")
    sizes = codec.config
    typer.echo(
        f"{output}: codec {codec.fingerprint}, {sizes.codebook_size} codes, f={sizes.downsampling_factor}, "
        f"{sizes.num_codes} codes for a picture of {sizes.image_size} x {sizes.image_size} pixels."
    )


def small_codec_config(image_size: int, grid: int, codebook_size: int, channels: int) -> "VQGANConfig":
    """A codec that trains on a CPU: its layers work on the grid of codes, or one fine enough to paint 8 x 8 pixels.

    ValueError if the picture cannot be cut into grid x grid equal patches.
    """
    from pipelines.tasks.text_to_image.image_codes.vqgan_config import VQGANConfig

    if grid < 1 or image_size % grid:
        raise ValueError(f"A side of {image_size} pixels cannot be cut into {grid} equal patches. Change --grid.")
    patch_size, multipliers = image_size // grid, (1,)
    while patch_size % 2 == 0 and patch_size > LARGEST_PATCH:
        patch_size, multipliers = patch_size // 2, (*multipliers, 1)
    return VQGANConfig(
        image_size=image_size,
        codebook_size=codebook_size,
        embedding_dim=32,
        z_channels=32,
        channels=channels,
        channel_multipliers=multipliers,
        num_residual_blocks=0,
        attention_resolutions=(),
        quantizer="nearest",
        patch_size=patch_size,
        normalisation="position",
        middle_attention=False,
        linear_encoder=True,
        linear_decoder=True,
    )


def read_pictures(
    paths: list[Path], image_size: int, max_pictures: int, *, num_kept: int | None = None, seed: int = 0
) -> "torch.Tensor":
    """The first pictures of the sources as (num_pictures, 3, image_size, image_size) uint8, with a progress bar.

    With num_kept, so many of these first ones, drawn at random, and no others are decoded for it. Unreadable and very
    flat pictures are skipped, and counted on stderr. ValueError if none is left.
    """
    import numpy as np
    import torch

    from pipelines.tasks.text_to_image.data_preparation.sources.finding import find_sources

    sources = find_sources(paths)
    num_kept = max_pictures if num_kept is None else num_kept
    random = Random(seed)
    pictures: list[np.ndarray] = []
    num_seen = 0
    skipped: Counter[str] = Counter()
    with open_progress(transient=True) as progress:
        task = progress.add_task("reading pictures", total=max_pictures)
        for image_bytes in _undecoded_pictures(sources):
            # A sample of a stream whose length is not known: Vitter 1985, algorithm R.
            row = num_seen if num_seen < num_kept else random.randrange(num_seen + 1)
            if row < num_kept:
                picture = _decoded(image_bytes, image_size)
                if isinstance(picture, str):
                    skipped[picture] += 1
                    continue
                pictures[row : row + 1] = [picture]
            num_seen += 1
            progress.update(task, advance=1)
            if num_seen == max_pictures:
                break
    if skipped:
        reasons = ", ".join(f"{reason.replace('_', ' ')} ({number:,})" for reason, number in skipped.most_common())
        typer.echo(f"Skipped {counted(skipped.total(), 'picture')}: {reasons}.", err=True)
    if not pictures:
        raise ValueError(f"{', '.join(map(str, paths))} has no readable pictures. Point to JPEG, PNG or WebP pictures.")
    return torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2).contiguous()


def some_of(images: "torch.Tensor", seed: int) -> "torch.Tensor":
    """At most 256 of the pictures, drawn at random: sources often have what is alike together."""
    import torch

    return images[torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))[:256]]


def _undecoded_pictures(sources: list) -> Iterator[bytes]:
    from pipelines.tasks.text_to_image.data_preparation.sources.sample import CaptionImage

    for source in sources:
        for sample in source.samples():
            if isinstance(sample, CaptionImage) and sample.image_bytes is not None:
                yield sample.image_bytes


def _decoded(image_bytes: bytes, image_size: int) -> "np.ndarray | DropReason":
    """A picture, or why it is none."""
    from pipelines.tasks.text_to_image.data_preparation.encoding import decode_picture
    from pipelines.tasks.text_to_image.data_preparation.filtering import DropReason, FilterPolicy

    decoded = decode_picture(image_bytes, image_size, FilterPolicy())
    return decoded if isinstance(decoded, DropReason) else decoded[0]


def _train_with_progress(codec: "VQGANCodec", images: "torch.Tensor", options: object, *, start_anew: bool) -> bool:
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

    from pipelines.tasks.text_to_image.image_codes.codec_training import (
        CodecTrainingProgress,
        random_batches,
        train_codec,
    )

    columns = (
        TextColumn("training"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
    )
    batches = random_batches(images, options.batch_size, options.seed, codec.codebook.device)
    with open_progress(*columns) as bar:
        task = bar.add_task("placing the codebook", total=options.num_steps)

        def on_step(progress: CodecTrainingProgress) -> None:
            error = f"error {progress.mean_absolute_error:.4f}"
            bar.update(task, completed=progress.step, total=progress.num_steps, description=error)

        try:
            train_codec(codec, batches, options, on_step, start_anew=start_anew)
        except KeyboardInterrupt:
            return False
    return True


def _print_result(codec: "VQGANCodec", images: "torch.Tensor", output: Path) -> None:
    sample = images.float().to(codec.codebook.device) / 255
    image_codes = codec.encode(sample)
    error = (codec.decode(image_codes) - sample).abs().mean().item()
    num_bytes = sum(file.stat().st_size for file in output.iterdir())
    typer.echo(
        f"{output}: codec {codec.fingerprint}, {num_bytes / 2**20:.2f} MiB, mean absolute error {error:.4f} of 1, "
        f"{len(image_codes.unique())} of {codec.config.codebook_size} codes seen on {len(sample)} pictures."
    )
    if advice := advice_on(error, codec.config):
        typer.echo(advice)


def advice_on(error: float, sizes: "VQGANConfig") -> str | None:
    """What to try if a codec's mean absolute error, of 1, is above what to aim at; None if it is not."""
    if error <= ERROR_TO_AIM_AT:
        return None
    finer = 2 * sizes.grid_size
    more_codes = f", or train another with --grid {finer}, four times as many codes for a model to learn"
    return (
        f"An error of {error:.4f} is above {ERROR_TO_AIM_AT:g}: go on with --resume"
        f"{more_codes if sizes.image_size % finer == 0 and finer < sizes.image_size else ''}."
    )
