"""Drawing at volunteers' servers on the terminal."""

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from pipelines.command_line.terminal.worker import become_worker

if TYPE_CHECKING:
    from PIL.Image import Image

    from pipelines.clip.clip_reranking import ClipReranker
    from pipelines.generation.generation_options import GenerationOptions
    from pipelines.generation.text_to_image import RankedImage
    from pipelines.image_codes.vqgan_codec import VQGANCodec
    from pipelines.serving.draw.client import Drawn, DrawnCandidate


@dataclass(frozen=True, kw_only=True)
class _Ranking:
    codec: "VQGANCodec"
    reranker: "ClipReranker"


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
    from modeling_dalle_collab.sampling_dalle_collab import SamplingOptions
    from pipelines.generation.image_generation import load_codec_and_reranker
    from pipelines.generation.text_to_image import encode_upper_part, rank_candidates
    from pipelines.serving.draw.asking_run import open_studio
    from pipelines.stage_progress import stage_progress
    from pipelines.torch_devices import torch_device

    where = torch_device(device)
    sampling = SamplingOptions(
        top_k=options.top_k,
        top_p=options.top_p,
        temperature=options.temperature,
        guidance_scale=options.guidance_scale,
    )
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
        ranking = _Ranking(**dict(zip(("codec", "reranker"), load_codec_and_reranker(
            repository, revision=parts["revision"], codec=parts["codec"], clip=parts["clip"], device=where
        ), strict=True)))  # fmt: skip
        given = None if picture is None else encode_upper_part(ranking.codec, picture, rows)[None].cpu()
        status.stop()
        drawn = []
        with stage_progress(console) as on_progress:
            for index, prompt in enumerate(prompts):
                wish = studio.wish(prompt, prompt=index, seed=options.seed, options=sampling, image_prompt=given)

                def report(done: int, total: int, before: int = index * options.num_candidates) -> None:
                    on_progress("drawing", before + done, len(prompts) * total, "pictures")

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
        for line in what_came(drawn, is_audited=studio.is_audited):
            console.print(line, soft_wrap=True, highlight=False, markup=False)
    return ranked, [{one.number: origin_of(one) for one in drawing.candidates} for drawing in drawn]


def origin_of(candidate: "DrawnCandidate") -> dict[str, object]:
    """Return who has drawn a candidate, with which weights, and whether it was checked."""
    server = candidate.server
    return dict(
        server=server.name,
        peer=server.peer,
        revision=server.revision,
        epoch=server.epoch,
        precision=server.precision,
        audited=candidate.is_audited,
    )


def what_came(drawn: "list[Drawn]", *, is_audited: bool) -> list[str]:
    """Return lines that say who has drawn, what was lost on the way, and what checks have found."""
    candidates = [candidate for one in drawn for candidate in one.candidates]
    by_whom: Counter[Any] = Counter((c.server.name, c.server.epoch, c.server.precision) for c in candidates)
    said = ", ".join(f"{name} {count} (epoch {epoch}, {kind})" for (name, epoch, kind), count in by_whom.most_common())
    lines = [f"{len(candidates)} candidates drawn by {said}."]
    if lost := sum(one.num_lost for one in drawn):
        lines.append(f"{lost} were drawn a second time, because a server did not finish or was found out.")
    lines += [str(complaint) for one in drawn for complaint in one.complaints]
    if is_audited:
        lines.append(f"Checked: {sum(c.is_audited for c in candidates)} of {len(candidates)}, at random.")
    else:
        lines.append("Unchecked: only who holds the model can check drawings. With the weights: --audit")
    return lines
