"""Drawing at volunteers' servers on the terminal."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from rich.console import Console

from pipelines.command_line.terminal.worker import become_worker

if TYPE_CHECKING:
    from PIL.Image import Image

    from pipelines.generation.generation_options import GenerationOptions
    from pipelines.generation.text_to_image import RankedImage
    from pipelines.serving.draw.client import Drawn


def draw_at_volunteers(
    repository: str,
    prompts: list[str],
    options: "GenerationOptions",
    picture: "Image | None",
    rows: int | None,
    *,
    device: str,
    precision: str,
    audits: bool,
    patience: float,
    **parts: str | None,
) -> "tuple[list[list[RankedImage]], list[dict[int, dict[str, object]]]]":
    """Have the candidates drawn by servers of the run's swarm; decode and rank them here.

    Returns the ranked pictures of each prompt, and of each who has drawn which candidate.

    Says who has drawn how many, and whether they were checked. Raises what `open_studio` and `SwarmDrawing.draw` raise.
    """
    console = become_worker()
    from pipelines.generation.image_generation import load_ranking_parts
    from pipelines.generation.text_to_image import encode_upper_part, rank_candidates
    from pipelines.serving.draw.asking_run import open_studio, sampling_of
    from pipelines.serving.draw.who_drew import origin_of
    from pipelines.stage_progress import stage_progress
    from pipelines.torch_devices import torch_device

    where = torch_device(device)
    sampling = sampling_of(options)
    with (
        console.status(f"Reading {repository}") as status,
        open_studio(
            repository,
            revision=parts["revision"],
            precision=precision,
            audits=audits,
            patience_seconds=patience,
            device=where,
            hear=lambda event, **_values: status.update(f"{event.capitalize()} {repository}"),
        ) as studio,
    ):
        status.update("Loading the codec and CLIP")
        ranking = load_ranking_parts(repository, device=where, **parts)
        given = None if picture is None else encode_upper_part(ranking.codec, picture, rows)[None].cpu()
        status.stop()
        drawn = []
        with stage_progress(console) as on_progress:
            for index, prompt in enumerate(prompts):
                wish = studio.wish(prompt, prompt=index, seed=options.seed, options=sampling, image_prompt=given)

                def report(done: int, total: int, before: int = index) -> None:
                    on_progress("drawing", before * total + done, len(prompts) * total, "image codes")

                drawn.append(studio.draw(wish, range(options.num_candidates), on_progress=report))
            ranked = [
                rank_candidates(
                    ranking,
                    prompt,
                    torch.stack([candidate.codes for candidate in one.candidates]).to(where),
                    options,
                    on_progress=on_progress,
                    place=(index, len(prompts)),
                )
                for index, (prompt, one) in enumerate(zip(prompts, drawn, strict=True))
            ]
        say_what_came(console, drawn, is_audited=studio.is_audited)
    return ranked, [{one.number: origin_of(one) for one in drawing.candidates} for drawing in drawn]


def say_what_came(console: Console, drawn: "Sequence[Drawn]", *, is_audited: bool) -> None:
    """Print who has drawn, what was lost on the way, and what checks have found."""
    from pipelines.serving.draw.who_drew import what_came

    for line in what_came(drawn, is_audited=is_audited):
        console.print(line, soft_wrap=True, highlight=False, markup=False)
    if not is_audited:
        console.print("To check a sample with the weights: --audit", highlight=False)
