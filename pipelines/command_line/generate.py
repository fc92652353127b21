"""`dalle-collab generate`: draw pictures, or write texts, for prompts with a run's newest checkpoint."""

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hub_tools.counted import counted
from hub_tools.printing.printable import printable_json
from pipelines.command_line.terminal.setting_options import refuse_given

if TYPE_CHECKING:
    from PIL.Image import Image

    from pipelines.generation.generation_options import GenerationOptions
    from pipelines.generation.text_to_image import RankedImage


def generate(
    context: typer.Context,
    repository: Annotated[str, typer.Argument(metavar="ORG/RUN", help="Model Hub repository of a run, or a folder.")],
    prompts: Annotated[
        list[str] | None, typer.Argument(metavar="PROMPT", help="What the pictures should show.")
    ] = None,
    prompts_file: Annotated[Path | None, typer.Option("--prompts", help="File with one prompt per line.")] = None,
    candidates: Annotated[
        int | None, typer.Option(help="Pictures drawn for each prompt, by default 128, or texts, by default 1.")
    ] = None,
    keep: Annotated[
        int | None, typer.Option(help="Pictures kept for each prompt, those that CLIP ranks first; by default up to 4.")
    ] = None,
    top_k: Annotated[int, typer.Option(help="Sample from this many likeliest codes; 0 for all.")] = 256,
    top_p: Annotated[float | None, typer.Option(help="Sample from codes up to this total probability.")] = None,
    temperature: Annotated[float, typer.Option(help="Below 1: safer pictures; above 1: stranger ones.")] = 1.0,
    guidance_scale: Annotated[
        float, typer.Option(help="Above 1: closer to the prompt, for models trained with caption_dropout.")
    ] = 1.0,
    complete: Annotated[
        Path | None, typer.Option(help="Picture to complete: its upper part is kept, the rest is drawn.")
    ] = None,
    rows: Annotated[
        int | None, typer.Option(help="Rows of codes of that picture that are kept; default: half of them.")
    ] = None,
    seed: Annotated[int, typer.Option(help="The same seed draws the same pictures.")] = 0,
    output: Annotated[Path, typer.Option(help="File for the grid of pictures.")] = Path("grid.png"),
    mosaic: Annotated[
        bool, typer.Option("--mosaic", help="Lay many prompts out side by side, their best pictures large.")
    ] = False,
    pictures: Annotated[
        Path | None, typer.Option(help="Folder for the kept pictures, one file each, best first: 0000-0.png, ...")
    ] = None,
    clip: Annotated[
        str | None, typer.Option(help="open_clip folder, Hub repository or MODEL/TAG; default: the run's.")
    ] = None,
    codec: Annotated[str | None, typer.Option(help="VQGAN folder or repository; default: the run's.")] = None,
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit of the checkpoint.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    weights: Annotated[
        str, typer.Option(help="published, or int8: faster on a CPU, with slightly other pictures.")
    ] = "published",
    batch_size: Annotated[int, typer.Option(help="Candidates drawn at once; fewer need less memory.")] = 64,
    swarm: Annotated[
        bool, typer.Option("--swarm", help="Have volunteers who serve the run draw; no weights are downloaded.")
    ] = False,
    blocks: Annotated[
        bool, typer.Option("--blocks", help="Run the model across servers of its layers; no layers are downloaded.")
    ] = False,
    precision: Annotated[
        str, typer.Option(help="With --swarm or --blocks: the servers' precision: float32, bfloat16 or int8.")
    ] = "float32",
    audit: Annotated[
        bool,
        typer.Option(
            "--audit",
            help="With --swarm: download the weights and check a sample; with --blocks: others compute the same.",
        ),
    ] = False,
    remote_ranking: Annotated[
        bool, typer.Option("--remote-ranking", help="With --swarm: a server ranks, too; no CLIP is downloaded.")
    ] = False,
    patience: Annotated[float, typer.Option(help="With --swarm or --blocks: seconds to wait for a server.")] = 60.0,
    max_tokens: Annotated[int | None, typer.Option(help="Longest text in tokens; by default 64.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one line of JSON for each prompt.")] = False,
) -> None:
    """Draw pictures for prompts and keep those that CLIP ranks first.

    Everything is read from the run's repository: the newest checkpoint, the tokenizer, which codec and which CLIP. The
    grid shows each prompt with its pictures, best first. Of a run of text-generation the texts are printed instead.

    Examples:

      dalle-collab generate my-org/birds "a robin on a branch"

      dalle-collab generate my-org/birds "a robin" "a wren" --candidates 32 --keep 8 --seed 7 --output birds.png

      dalle-collab generate my-org/birds --prompts prompts.txt --top-p 0.75 --pictures drawn --json

      dalle-collab generate my-org/birds "a robin on a branch" --complete robin.jpg --rows 12

      dalle-collab generate my-org/birds "a robin on a branch" --swarm --candidates 128

      dalle-collab generate my-org/birds "a robin on a branch" --swarm --remote-ranking --audit

      dalle-collab generate my-org/birds "a robin on a branch" --blocks --candidates 8 --audit

      dalle-collab generate my-org/gpt "The file is" --max-tokens 40 --swarm
    """
    from pipelines.command_line.serving.text_writing import DEFAULT_TEXTS, DEFAULT_TOKENS, write_texts, writes_texts
    from pipelines.generation.generation_options import GenerationOptions, require_prompts
    from pipelines.generation.picture_grid import require_picture_path

    texts = [*(prompts or ()), *_read_prompts(prompts_file)]
    require_prompts(texts)
    if swarm and blocks:
        raise ValueError("--swarm has volunteers draw, and --blocks borrows their layers. Choose one of them.")
    if audit and not (swarm or blocks):
        raise ValueError("--audit checks what volunteers compute, and needs --swarm or --blocks.")
    if remote_ranking and (clip is not None or not swarm):
        raise ValueError("--remote-ranking: volunteers rank with the run's CLIP. Add --swarm, and leave out --clip.")
    if not (swarm or blocks):
        refuse_given(context, "it is about volunteers' servers, for --swarm and --blocks", "precision", "patience")
    if swarm:
        refuse_given(context, "with --swarm volunteers choose how many they draw at once", "batch_size")
    volunteers = dict(precision=precision, audits=audit, patience_seconds=patience)
    borrowed = volunteers if blocks else None
    if writes_texts(repository, revision):
        about_pictures = ("keep", "guidance_scale", "complete", "rows", "output", "mosaic", "pictures", "clip", "codec")
        why = f"it is about pictures, and {repository} writes texts"
        refuse_given(context, why, *about_pictures, "weights", "remote_ranking")
        write_texts(
            repository,
            texts,
            candidates=DEFAULT_TEXTS if candidates is None else candidates,
            max_tokens=DEFAULT_TOKENS if max_tokens is None else max_tokens,
            top_k=top_k,
            top_p=top_p,
            temperature=temperature,
            seed=seed,
            batch_size=batch_size,
            device=device,
            revision=revision,
            volunteers=volunteers if swarm else None,
            across_blocks=borrowed,
            as_json=as_json,
        )
        return
    refuse_given(context, f"it is about texts, and {repository} draws pictures", "max_tokens")
    if blocks and device not in ("auto", "cpu"):
        raise ValueError(f"--device is {device}, but with --blocks this machine's part is computed on the CPU.")
    require_picture_path(output)
    num_candidates = GenerationOptions.num_candidates if candidates is None else candidates
    options = GenerationOptions(
        num_candidates=num_candidates,
        keep=min(GenerationOptions.keep, num_candidates) if keep is None else keep,
        top_k=top_k,
        top_p=top_p,
        temperature=temperature,
        guidance_scale=guidance_scale,
        seed=seed,
        batch_size=batch_size,
    )
    if (swarm or blocks) and weights != "published":
        raise ValueError(f"--weights is for drawing on this machine. To choose servers: --precision {weights}")
    picture = _read_picture(complete, rows)
    parts = dict(revision=revision, codec=codec, clip=clip)
    origins: list[dict[int, dict[str, object]]] = [{} for _ in texts]
    if swarm:
        from pipelines.command_line.serving.swarm_drawing import draw_at_volunteers

        drawn, origins = draw_at_volunteers(
            repository,
            texts,
            options,
            picture,
            rows,
            device=device,
            precision=precision,
            audits=audit,
            patience=patience,
            ranks_there=remote_ranking,
            **parts,
        )
    else:
        drawn = _draw(repository, texts, options, picture, rows, borrowed, device=device, weights=weights, **parts)
    _save_grid(texts, drawn, output, is_mosaic=mosaic)
    files = _save_pictures(drawn, pictures)
    if as_json:
        for prompt, ranked, saved, origin in zip(texts, drawn, files, origins, strict=True):
            typer.echo(printable_json(_description(prompt, ranked, output, saved, origin)))
    else:
        typer.echo(f"{output}: {counted(sum(map(len, drawn)), 'picture')}, best first.")


def _read_picture(path: Path | None, rows: int | None) -> "Image | None":
    from pipelines.generation.uploaded_picture import read_picture

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
    from pipelines.command_line.serving.across_blocks import look_at_pictures, model_across_blocks
    from pipelines.generation.image_generation import TextToImage, load_ranking_parts, load_text_to_image
    from pipelines.generation.text_to_image import encode_upper_part, generate_images_for_prompts
    from pipelines.stage_progress import stage_progress
    from pipelines.torch_devices import torch_device

    recheck = None
    with contextlib.ExitStack() as stack:
        if borrowed is None:
            bundle = load_text_to_image(repository, device=torch_device(device), weights=weights, **parts)
        else:
            model, recheck = stack.enter_context(
                model_across_blocks(repository, revision=parts["revision"], **borrowed)
            )
            bundle = TextToImage(model=model, **vars(load_ranking_parts(repository, **parts)))
        given = None if picture is None else encode_upper_part(bundle.codec, picture, rows)
        on_progress = stack.enter_context(stage_progress())
        drawn = generate_images_for_prompts(bundle, prompts, options, image_prompt=given, on_progress=on_progress)
        if recheck is not None:
            look_at_pictures(recheck, bundle, prompts, drawn, options, given)
        return drawn


def _save_grid(prompts: list[str], drawn: "Sequence[Sequence[RankedImage]]", output: Path, *, is_mosaic: bool) -> None:
    from pipelines.generation.picture_grid import draw_picture_grid, save_picture
    from pipelines.generation.picture_mosaic import draw_picture_mosaic

    draw = draw_picture_mosaic if is_mosaic else draw_picture_grid
    save_picture(draw(list(zip(prompts, drawn, strict=True))), output)


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


def _read_prompts(file: Path | None) -> list[str]:
    if file is None:
        return []
    try:
        lines = file.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} is not UTF-8 text ({error.reason}). Expected one prompt per line.") from error
    prompts = [line.strip() for line in lines if line.strip()]
    if not prompts:
        raise ValueError(f"{file} has no prompts. Expected one prompt per line.")
    return prompts
