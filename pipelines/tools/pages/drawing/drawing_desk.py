"""Everything behind a page that draws: takes requests, reports progress, and never crashes on a visitor's input."""

import logging
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from PIL import Image

from hub_tools.counted import counted
from hub_tools.one_line_errors import explain_error
from pipelines.tasks.text_to_image.generation.generation_options import GenerationOptions
from pipelines.tasks.text_to_image.generation.image_generation import RankingContext, TextToImage
from pipelines.tasks.text_to_image.generation.progressive_drawing import (
    PREVIEWS_PER_PICTURE,
    Drawing,
    Preview,
    draw_progressively,
    finished_drawing,
    unfinished_pictures,
)
from pipelines.tasks.text_to_image.generation.text_to_image import encode_upper_part
from pipelines.tasks.text_to_image.generation.uploaded_picture import read_picture
from pipelines.tools.pages.drawing.caption_words import CaptionWords
from pipelines.tools.pages.drawing.drawing_request import NEWEST, DrawingRequest
from pipelines.tools.pages.drawing.drawing_speed import DrawingSpeed, TimedDrawing, in_words
from pipelines.tools.pages.drawing.published_checkpoints import HUB_ERRORS, Checkpoint, PublishedCheckpoints
from pipelines.tools.pages.drawing.seen_in_training import OpenedIndex, SeenInTraining, TrainingPicture, look_up
from pipelines.tools.pages.drawing.volunteers.volunteers import DrawnByVolunteers, Progress, Volunteers

logger = logging.getLogger(__name__)

VISITORS_ERRORS = (ValueError, *HUB_ERRORS)
CAPTION_CHARACTERS = 160

Given = Image.Image | torch.Tensor | None
"""What a drawing starts from: a picture to complete, or the codes of one to vary, `(image,)` int64."""

Labelled = tuple[Image.Image, str]
"""A picture and its caption, which may be a stranger's text."""


@dataclass(frozen=True, kw_only=True)
class Shown:
    """What the page shows next."""

    message: str
    """One or two sentences."""
    pictures: Sequence[Labelled] | None = None
    """None: keep the current ones."""
    request: DrawingRequest | None = None
    """What was asked for, of a finished drawing."""
    query: str = ""
    """Query of a link that draws the same; empty if there is none."""
    link_message: str = ""
    """Why there is no link, or what it does not include."""
    seen: SeenInTraining | None = None
    """The nearest training records; None if they are unknown."""
    seen_message: str = ""
    """What they mean, or why they are unknown."""
    drawn: Sequence[Labelled] = field(default=(), repr=False)
    """The finished pictures, to be shown next to training pictures."""
    codes: Sequence[torch.Tensor] = field(default=(), repr=False)
    """Their image codes, `(image,)` int64 each."""

    def without_pictures(self) -> "Shown":
        """Return what is small of it, to be kept."""
        return replace(self, pictures=None, drawn=(), seen=None, seen_message="")


class DrawingDesk:
    """Draws for the visitors of a page, one at a time.

    `on_gpu` wraps what computes, for hosts that lend a GPU for the duration of one call. With `volunteers` those draw,
    and `checkpoints` may hold what ranks their pictures alone.
    """

    def __init__(
        self,
        checkpoints: PublishedCheckpoints,
        *,
        max_candidates: int,
        training_index: str | None = None,
        on_gpu: Callable[[Callable], Callable] = lambda function: function,
        volunteers: Volunteers | None = None,
    ) -> None:
        self.checkpoints, self.max_candidates, self.volunteers = checkpoints, max_candidates, volunteers
        self.speed = DrawingSpeed("volunteers' machines" if volunteers else str(checkpoints.device))
        self.index = OpenedIndex(training_index)
        self.words = CaptionWords(checkpoints.name)
        self._draw_on_gpu = on_gpu(self._draw_loaded)

    def draw(
        self,
        values: dict[str, object],
        picture: str | None = None,
        rows: float | None = None,
        varied: torch.Tensor | None = None,
    ) -> Iterator[Shown]:
        """Yield what to show, from the start to the result or the reason why there is none.

        `values` are the fields of `DrawingRequest`; `picture` is a file to complete, of which `rows` rows of codes are
        kept (0: half). In its place may stand the codes of a picture to be `varied`: the upper half is kept.
        """
        try:
            request = DrawingRequest(**values)  # type: ignore[arg-type]
            options = request.options(self.max_candidates)
            yield Shown(message="Loading the checkpoint ...", pictures=[])
            checkpoint = self.checkpoints.get(request.checkpoint)
            self.words.begin()
            given = varied if picture is None or varied is not None else read_picture(picture)
            yield from self._draw_and_look_up(
                request, options, checkpoint, given, 0 if given is varied else int(rows or 0)
            )
        except VISITORS_ERRORS as error:
            logger.warning("A drawing failed: %s", error)
            yield Shown(message=explain_error(error), pictures=[])

    def choices(self) -> tuple[list[tuple[str, str]], str]:
        """Return labels and names of the checkpoints to choose from, and why some may be missing."""
        try:
            epochs, problem = self.checkpoints.epochs(), ""
            if not epochs and not self.checkpoints.has_weights():
                problem = "There is nothing to draw with yet: the run has published no checkpoint."
        except VISITORS_ERRORS as error:
            epochs, problem = [], f"The run cannot be read: {explain_error(error)}"
        return [(NEWEST, NEWEST), *((name.replace("-", " "), name) for name in epochs)], problem

    def _draw_and_look_up(
        self,
        request: DrawingRequest,
        options: GenerationOptions,
        checkpoint: Checkpoint,
        given: Given,
        rows: int,
    ) -> Iterator[Shown]:
        started, shown = time.monotonic(), Shown(message="")
        draw = self._draw_on_gpu if self.volunteers is None else self._draw_at_volunteers
        for step in draw(checkpoint.commit or NEWEST, request.prompt, options, given, rows):
            if isinstance(step, Preview):
                shown = _on_the_way(step, time.monotonic() - started)
            elif isinstance(step, Drawing):
                self.speed.record(_timed(step, options))
                shown = self._finished(step, request, options, checkpoint, given)
            elif isinstance(step, SeenInTraining):
                shown = replace(shown, seen=step, seen_message=step.sentence())
            else:
                shown = replace(shown, seen_message=step)
            yield shown
        if remark := self.words.remark(request.prompt):
            yield replace(shown, message=f"{shown.message} {remark}")

    def _finished(
        self,
        drawing: Drawing,
        request: DrawingRequest,
        options: GenerationOptions,
        checkpoint: Checkpoint,
        given: Given,
    ) -> Shown:
        number = options.num_candidates
        drawn = [
            (picture.image, _caption(rank, number, drawing.drawn_by.get(picture.candidate_index)))
            for rank, picture in enumerate(drawing.pictures, start=1)
        ]
        message = " ".join(
            [
                f"The best {len(drawn)} of {counted(number, 'candidate')}, best first.",
                _source(drawing, checkpoint),
                f"Seed {request.seed}.",
                *drawing.remarks,
            ]
        )
        if drawing.num_tokens_cut:
            message += (
                f" The prompt is too long: the model did not read its last {counted(drawing.num_tokens_cut, 'token')}."
            )
        done = "varied" if isinstance(given, torch.Tensor) else "completed"
        link_message = "" if given is None else f"The link does not include the picture that was {done}."
        if self.volunteers is not None and self.volunteers.options.precision != "float32":
            precision = self.volunteers.options.precision
            link_message += f" In {precision} another volunteer may draw slightly other pictures."
        try:
            version = self.checkpoints.short_name(checkpoint.commit) if checkpoint.commit else NEWEST
            query = replace(request, checkpoint=version).to_query()
        except ValueError as error:
            query, link_message = "", str(error)
        return Shown(
            message=message, pictures=drawn, drawn=drawn, request=request, query=query,
            link_message=link_message.strip(),
            codes=[picture.image_codes.cpu().clone() for picture in drawing.pictures],  # not a view of all candidates
        )  # fmt: skip

    def _draw_loaded(
        self, version: str, prompt: str, options: GenerationOptions, given: Given, rows: int
    ) -> Iterator[Preview | Drawing | SeenInTraining | str]:
        """Draw and look up the neighbours, or say why not; arguments and result can be sent to another process."""
        bundle = self.checkpoints.get(version).bundle
        assert isinstance(bundle, TextToImage), "without volunteers the model is loaded"
        for step in draw_progressively(bundle, prompt, options, image_prompt=_given_codes(bundle, given, rows)):
            yield step
        yield from self._neighbours(bundle, step)

    def _draw_at_volunteers(
        self, version: str, prompt: str, options: GenerationOptions, given: Given, rows: int
    ) -> Iterator[Preview | Drawing | SeenInTraining | str]:
        """Do the same with the codes that volunteers draw."""
        assert self.volunteers is not None, "only called with volunteers"
        checkpoint, started, num_shown = self.checkpoints.get(version), time.monotonic(), 0
        bundle = checkpoint.bundle
        start = _given_codes(bundle, given, rows)
        for step in self.volunteers.draw(checkpoint.commit, prompt, options, start):
            if isinstance(step, Progress):
                num_known, pictures = sum(map(len, step.known)), None
                if num_known - num_shown >= bundle.codec.config.num_codes / PREVIEWS_PER_PICTURE:
                    num_shown, pictures = num_known, unfinished_pictures(bundle.codec, step.known)
                yield Preview(pictures=pictures, num_done=step.num_done, num_total=step.num_total)
        assert isinstance(step, DrawnByVolunteers), "it is the last step"
        drawing = finished_drawing(
            bundle,
            prompt,
            step.image_codes,
            options,
            num_given=0 if start is None else len(start),
            seconds=time.monotonic() - started,
        )
        drawing = replace(drawing, drawn_by=dict(enumerate(step.drawn_by)), remarks=step.remarks)
        yield drawing
        yield from self._neighbours(bundle, drawing)

    def _neighbours(self, bundle: TextToImage | RankingContext, drawing: Drawing) -> Iterator[SeenInTraining | str]:
        if self.index.name is not None:
            try:
                yield look_up(self.index.get(), bundle, drawing)
            except VISITORS_ERRORS as error:
                logger.warning("The training index cannot be used: %s", error)
                yield explain_error(error)


def beside_results(shown: Shown) -> list[Labelled]:
    """Return each finished picture followed by the training pictures nearest to it; empty while they are unknown."""
    if shown.seen is None:
        return []
    rows = zip(shown.drawn, shown.seen.beside, strict=True)
    return [
        labelled
        for number, ((picture, words), neighbours) in enumerate(rows, start=1)
        for labelled in [(picture, f"Result {number}, {words}"), *with_words(neighbours)]
    ]


def with_words(pictures: Sequence[TrainingPicture]) -> list[Labelled]:
    """Return training pictures with their similarity and caption."""
    return [
        (picture.image, f"{picture.similarity:.2f}  {textwrap.shorten(picture.caption, CAPTION_CHARACTERS)}")
        for picture in pictures
    ]


def _given_codes(bundle: TextToImage | RankingContext, given: Given, rows: int) -> torch.Tensor | None:
    """Return the codes of a picture's upper part, (given,) int64; None without a picture."""
    if given is None:
        return None
    grid = bundle.codec.config.grid_size
    if isinstance(given, torch.Tensor):
        return given[: grid // 2 * grid].to(next(bundle.codec.parameters()).device)
    return encode_upper_part(bundle.codec, given, rows or grid // 2)


def _on_the_way(step: Preview, seconds: float) -> Shown:
    if not step.num_done:
        return Shown(message="Asking volunteers to draw ...")
    left = seconds / step.num_done * (step.num_total - step.num_done)
    what = f"about {in_words(left)} left" if step.num_done < step.num_total else "CLIP is ranking the pictures"
    pictures = None
    if step.pictures is not None:
        pictures = [(picture, f"candidate {n}") for n, picture in enumerate(step.pictures, start=1)]
    return Shown(message=f"Drawing: {step.num_done / step.num_total:.0%}, {what}.", pictures=pictures)


def rank_in_words(rank: int, number: int) -> str:
    """Say how well a picture fits its caption among those drawn, by CLIP: nobody can read CLIP's own figure."""
    if number == 1:
        return "the only one drawn"
    ending = "th" if rank % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(rank % 10, "th")
    return f"best match of {number}" if rank == 1 else f"{rank}{ending} of {number}"


def _caption(rank: int, number: int, drawn_by: str | None) -> str:
    return rank_in_words(rank, number) + (f", drawn by {drawn_by}" if drawn_by else "")


def _source(drawing: Drawing, checkpoint: Checkpoint) -> str:
    epoch = "the checkpoint" if checkpoint.bundle.epoch is None else f"epoch {checkpoint.bundle.epoch:,}"
    commit = f" (commit {checkpoint.commit[:8]})" if checkpoint.commit else ""
    return f"Drawn by {epoch}{commit} in {in_words(drawing.seconds)}."


def _timed(drawing: Drawing, options: GenerationOptions) -> TimedDrawing:
    return TimedDrawing(
        seconds=drawing.seconds,
        num_candidates=options.num_candidates,
        is_guided=options.sampling.guidance_scale != 1,
        share_drawn=drawing.share_drawn,
    )
