"""`dalle-collab generate`: draw pictures for prompts with a run's newest checkpoint."""

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hub_tools.counted import counted
from hub_tools.printing.printable import printable_json
from pipelines.command_line.terminal import setting_options as shared

if TYPE_CHECKING:
    from PIL.Image import Image

    from pipelines.tasks.text_to_image.generation.generation_options import GenerationOptions
    from pipelines.tasks.text_to_image.generation.text_to_image import RankedImage

COMPLETED = shared.Panel(rich_help_panel="A picture to complete")
FILES = shared.Panel(rich_help_panel="Output")


def generate(
    context: typer.Context,
    repository: shared.RunOrFolder,
    prompts: Annotated[list[str] | None, typer.Argument(metavar="PROMPT", help="What pictures show.")] = None,
    prompts_file: shared.PromptsFile = None,
    candidates: Annotated[int, typer.Option(help="Pictures drawn for each prompt.")] = 128,
    keep: Annotated[int | None, typer.Option(help="Kept of them, those CLIP ranks first; default: up to 4.")] = None,
    top_k: shared.TopK = 256,
    top_p: shared.TopP = None,
    temperature: shared.Temperature = 1.0,
    guidance_scale: shared.GuidanceScale = 1.0,
    seed: shared.SamplingSeed = 0,
    complete: Annotated[
        Path | None, typer.Option(help="Picture to complete: its upper part is kept, the rest is drawn.", **COMPLETED)
    ] = None,
    rows: Annotated[
        int | None, typer.Option(help="Rows of codes of that picture that are kept; default: half.", **COMPLETED)
    ] = None,
    output: Annotated[Path, typer.Option(help="File for the grid of pictures.", **FILES)] = Path("grid.png"),
    mosaic: Annotated[
        bool, typer.Option("--mosaic", help="Lay many prompts out side by side, their best pictures large.", **FILES)
    ] = False,
    pictures: Annotated[
        Path | None, typer.Option(help="Folder for the kept pictures, best first: 0000-0.png, ...", **FILES)
    ] = None,
    as_json: shared.PromptsAsJson = False,
    clip: shared.Clip = None,
    codec: shared.Codec = None,
    revision: shared.Revision = None,
    device: shared.Device = "auto",
    weights: Annotated[
        str, typer.Option(help="published, or int8: faster on a CPU, with slightly other pictures.")
    ] = "published",
    batch_size: shared.BatchSize = 64,
    swarm: shared.Swarm = False,
    blocks: shared.Blocks = False,
    precision: shared.ServerPrecision = "float32",
    audit: shared.Audit = False,
    remote_ranking: shared.RemoteRanking = False,
    patience: shared.Patience = 60.0,
) -> None:
    """Draw pictures for prompts and keep those that CLIP ranks first.

    Everything is read from the run's repository: the newest checkpoint, the tokenizer, which codec and which CLIP. The
    grid shows each prompt with its pictures, best first. Texts are continued by `dalle-collab write`.

    Examples:

      dalle-collab generate my-org/birds "a robin on a branch"

      dalle-collab generate my-org/birds "a robin" "a wren" --candidates 32 --keep 8 --seed 7 --output birds.png

      dalle-collab generate my-org/birds --prompts prompts.txt --top-p 0.75 --pictures drawn --json

      dalle-collab generate my-org/birds "a robin on a branch" --complete robin.jpg --rows 12

      dalle-collab generate my-org/birds "a robin on a branch" --swarm --remote-ranking --audit

      dalle-collab generate my-org/birds "a robin on a branch" --blocks --candidates 8 --audit
    """
    texts = shared.prompts_of(prompts, prompts_file)
    volunteers = shared.volunteers_of(
        context, swarm=swarm, blocks=blocks, audit=audit, precision=precision, patience=patience
    )
    if remote_ranking and (clip is not None or not swarm):
        raise ValueError("--remote-ranking: volunteers rank with the run's CLIP. Add --swarm, and leave out --clip.")
    if (swarm or blocks) and weights != "published":
        raise ValueError(f"--weights is for drawing on this machine. To choose servers: --precision {weights}")
    if blocks and device not in ("auto", "cpu"):
        raise ValueError(f"--device is {device}, but with --blocks this machine's part is computed on the CPU.")
    shared.require_product(repository, revision, "pictures")
    from modeling_dalle_collab.sampling_dalle_collab import SamplingOptions
    from pipelines.tasks.text_to_image.generation.generation_options import GenerationOptions
    from pipelines.tasks.text_to_image.generation.picture_grid import require_picture_path

    require_picture_path(output)
    options = GenerationOptions(
        num_candidates=candidates,
        keep=min(GenerationOptions.keep, candidates) if keep is None else keep,
        seed=seed,
        batch_size=batch_size,
        sampling=SamplingOptions(top_k=top_k, top_p=top_p, temperature=temperature, guidance_scale=guidance_scale),
    )
    asked = (repository, texts, options, _read_picture(complete, rows), rows)
    parts = dict(device=device, revision=revision, codec=codec, clip=clip)
    origins: Sequence[Mapping[int, Mapping[str, object]]] = [{} for _ in texts]
    if swarm:
        from pipelines.command_line.serving.swarm_drawing import draw_at_volunteers

        drawn, origins = draw_at_volunteers(*asked, ranks_there=remote_ranking, **parts, **volunteers)
    else:
        drawn = _draw(*asked, volunteers if blocks else None, weights=weights, **parts)
    _save_grid(texts, drawn, output, is_mosaic=mosaic)
    files = _save_pictures(drawn, pictures)
    if not as_json:
        typer.echo(f"{output}: {counted(sum(map(len, drawn)), 'picture')}, best first.")
        return
    for prompt, ranked, saved, origin in zip(texts, drawn, files, origins, strict=True):
        typer.echo(printable_json(_description(prompt, ranked, output, saved, origin)))


def _read_picture(path: Path | None, rows: int | None) -> "Image | None":
    from pipelines.tasks.text_to_image.generation.uploaded_picture import read_picture

    if path is None and rows is not None:
        raise ValueError("--rows says how much of a picture to keep, but none is given. Name it: --complete FILE")
    return None if path is None else read_picture(path)


def _draw(
    repository: str,
    prompts: list[str],
    options: "GenerationOptions",
    picture: "Image | None",
    rows: int | None,
    borrowed: Mapping[str, Any] | None,
    *,
    device: str,
    weights: str,
    **parts: str | None,
) -> "list[list[RankedImage]]":
    """Draw here; `borrowed` are arguments of `model_across_blocks`, None: the layers are here, too."""
    from hub_tools.printing.stage_progress import stage_progress
    from pipelines.command_line.serving.across_blocks import look_at_pictures, model_across_blocks
    from pipelines.features.torch_devices import torch_device
    from pipelines.tasks.text_to_image.generation.image_generation import (
        TextToImage,
        load_ranking_parts,
        load_text_to_image,
    )
    from pipelines.tasks.text_to_image.generation.text_to_image import encode_upper_part, generate_images_for_prompts

    with contextlib.ExitStack() as stack:
        if borrowed is None:
            bundle = load_text_to_image(repository, device=torch_device(device), weights=weights, **parts)
        else:
            model = stack.enter_context(model_across_blocks(repository, revision=parts["revision"], **borrowed))
            bundle = TextToImage(model=model, **vars(load_ranking_parts(repository, **parts)))
        given = None if picture is None else encode_upper_part(bundle.codec, picture, rows)
        on_progress = stack.enter_context(stage_progress())
        drawn = generate_images_for_prompts(bundle, prompts, options, image_prompt=given, on_progress=on_progress)
        if borrowed is not None and borrowed["audits"]:
            look_at_pictures(bundle, prompts, drawn, options, given)
        return drawn


def _save_grid(prompts: list[str], drawn: "Sequence[Sequence[RankedImage]]", output: Path, *, is_mosaic: bool) -> None:
    from pipelines.tasks.text_to_image.generation.picture_grid import draw_picture_grid, save_picture
    from pipelines.tasks.text_to_image.generation.picture_mosaic import draw_picture_mosaic

    rows = list(zip(prompts, drawn, strict=True))
    if is_mosaic:
        picture = draw_picture_mosaic([(prompt, [best.image for best in ranked]) for prompt, ranked in rows])
    else:
        picture = draw_picture_grid(rows)
    save_picture(picture, output)


def _save_pictures(drawn: "Sequence[Sequence[RankedImage]]", folder: Path | None) -> list[list[Path | None]]:
    """Save every kept picture as PROMPT-RANK.png; return the files, or None in their places without a folder."""
    if folder is None:
        return [[None] * len(ranked) for ranked in drawn]
    folder.mkdir(parents=True, exist_ok=True)
    files: list[list[Path | None]] = []
    for index, ranked in enumerate(drawn):
        files.append([folder / f"{index:04d}-{rank}.png" for rank in range(len(ranked))])
        for picture, path in zip(ranked, files[-1], strict=True):
            picture.image.save(path)
    return files


def _description(
    prompt: str,
    pictures: "Sequence[RankedImage]",
    output: Path,
    files: Sequence[Path | None],
    origin: Mapping[int, Mapping[str, object]],
) -> dict[str, object]:
    """Return what is printed of a prompt's pictures; `origin` says of candidates who has drawn them."""
    ranked = [
        {
            "candidate": picture.candidate_index,
            "score": picture.score,
            "image_codes": picture.image_codes.tolist(),
            "file": None if file is None else str(file),
            **origin.get(picture.candidate_index, {}),
        }
        for picture, file in zip(pictures, files, strict=True)
    ]
    return {"prompt": prompt, "grid": str(output), "pictures": ranked}
