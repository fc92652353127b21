"""Drawing at volunteers' servers on the terminal."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console
from rich.status import Status

from pipelines.command_line.terminal.worker import become_worker

if TYPE_CHECKING:
    from PIL.Image import Image

    from hub_tools.printing.stage_progress import OnProgress
    from pipelines.features.serving.draw.client import Drawn
    from pipelines.features.serving.draw.drawing_client import DrawingClient
    from pipelines.tasks.text_to_image.generation.generation_options import GenerationOptions
    from pipelines.tasks.text_to_image.generation.image_generation import RankingContext
    from pipelines.tasks.text_to_image.generation.text_to_image import RankedImage
    from pipelines.tasks.text_to_image.image_codes.vqgan_codec import VQGANCodec


def draw_at_volunteers(
    repository: str,
    prompts: list[str],
    options: "GenerationOptions",
    picture: "Image | None",
    rows: int | None,
    *,
    device: str,
    ranks_there: bool,
    revision: str | None,
    codec: str | None,
    clip: str | None,
    **volunteers: object,
) -> "tuple[list[list[RankedImage]], list[dict[int, dict[str, object]]]]":
    """Have the candidates drawn by servers of the run's swarm, and decode them here.

    They are ranked here, or by a server if `ranks_there`; here too if no server is left that does it. `volunteers` are
    arguments of `connect` besides.

    Returns the ranked pictures of each prompt, and of each who has drawn which candidate.

    Says who has drawn how many, and whether they were checked. Raises what `connect` and `SwarmDrawing.draw` raise.
    """
    console = become_worker()
    from hub_tools.printing.stage_progress import stage_progress
    from pipelines.features.serving.draw.who_drew import origin_of
    from pipelines.features.torch_devices import torch_device
    from pipelines.tasks.text_to_image.generation.image_generation import load_codec
    from pipelines.tasks.text_to_image.generation.text_to_image import encode_upper_part

    where = torch_device(device)
    with shown_client(console, repository, revision=revision, device=where, **volunteers) as (status, client):
        status.update("Loading what ranks")
        ranker = _Ranker(client, repository, load_codec(client.processor, repository, codec, where), clip, ranks_there)
        given = None if picture is None else encode_upper_part(ranker.codec, picture, rows)[None].cpu()
        status.stop()
        wished = dict(seed=options.seed, options=options.sampling, image_prompt=given)
        with stage_progress(console) as on_progress:
            drawn = draw_all(client, prompts, options.num_candidates, "drawing", on_progress, **wished)
            ranked = [
                ranker.rank(
                    prompt,
                    torch.stack([candidate.codes for candidate in one.candidates]).to(where),
                    options,
                    on_progress,
                    place=(index, len(prompts)),
                )
                for index, (prompt, one) in enumerate(zip(prompts, drawn, strict=True))
            ]
        say_what_came(console, drawn, is_audited=client.is_audited)
        for line in ranker.remarks:
            console.print(line, soft_wrap=True, highlight=False, markup=False)
    return ranked, [{one.number: origin_of(one) for one in drawing.candidates} for drawing in drawn]


@contextmanager
def shown_client(console: Console, repository: str, **how: Any) -> "Iterator[tuple[Status, DrawingClient]]":
    """Open a client and show what goes on meanwhile; `how` are arguments of `connect`, which see."""
    from pipelines.features.serving.draw.drawing_client import connect

    with console.status(f"Reading {repository}") as status:

        def on_event(event: str, **_values: object) -> None:
            status.update(f"{event.capitalize()} {repository}")

        with connect(repository, on_event=on_event, **how) as client:
            yield status, client


def draw_all(
    client: "DrawingClient",
    prompts: list[str],
    candidates: int,
    stage: str,
    on_progress: "OnProgress",
    **wished: object,
) -> "list[Drawn]":
    """Have the candidates of all prompts drawn or written; `wished` are fields of `SamplingRequest`."""
    from pipelines.features.serving.draw.modalities.choice import modality_of

    drawn, unit = [], modality_of(client.config).unit
    for index, prompt in enumerate(prompts):

        def report(done: int, total: int, before: int = index) -> None:
            on_progress(stage, before * total + done, len(prompts) * total, unit)

        sampling = client.request(prompt, prompt=index, **wished)
        drawn.append(client.draw(sampling, range(candidates), on_progress=report))
    return drawn


class _Ranker:
    """Ranks candidates at a server, or here: where that was asked for, and where no server is left that does it."""

    def __init__(
        self, client: "DrawingClient", repository: str, codec: "VQGANCodec", clip: str | None, ranks_there: bool
    ) -> None:
        self.codec, self.remarks = codec, list[str]()
        """The remarks are for the end of the output: who has ranked."""
        self._client, self._repository, self._clip, self._ranks_there = client, repository, clip, ranks_there
        self._here = None if ranks_there else self._load()

    def rank(
        self,
        prompt: str,
        codes: torch.Tensor,
        options: "GenerationOptions",
        on_progress: "OnProgress",
        place: tuple[int, int],
    ) -> "list[RankedImage]":
        """Return the best of `codes: (candidate, place)` of one prompt; `place` as in `rank_candidates`."""
        from pipelines.features.serving.draw.ranking.asking import NobodyRanksError
        from pipelines.tasks.text_to_image.generation.text_to_image import pictures_by_scores, rank_candidates

        index, num_prompts = place

        def report(done: int, total: int) -> None:
            on_progress("ranking", index * total + done, num_prompts * total, "pictures")

        if self._ranks_there:
            try:
                ranking = self._client.rank(prompt, codes.cpu(), on_progress=report)
            except NobodyRanksError as error:
                self._ranks_there = False
                self.remarks.append(
                    f"Ranked here, because no server does it now ({error}) To start one: "
                    f"dalle-collab serve {self._repository} --ranking"
                )
            else:
                remark = f"Ranked by {', '.join(ranking.servers)}, unchecked."
                self.remarks += [remark] * (remark not in self.remarks)
                return pictures_by_scores(self.codec, codes, ranking.scores, options.keep)
        self._here = self._here or self._load()
        return rank_candidates(self._here, prompt, codes, options, on_progress=on_progress, place=place)

    def _load(self) -> "RankingContext":
        from pipelines.tasks.text_to_image.generation.image_generation import with_clip

        return with_clip(self._repository, self._client.processor, self.codec, self._clip)


def say_what_came(console: Console, drawn: "Sequence[Drawn]", *, is_audited: bool) -> None:
    """Print who has drawn, what was lost on the way, and what checks have found."""
    from pipelines.features.serving.draw.who_drew import what_came

    for line in what_came(drawn, is_audited=is_audited):
        console.print(line, soft_wrap=True, highlight=False, markup=False)
    if not is_audited:
        console.print("To check a sample with the weights: --audit", highlight=False)
