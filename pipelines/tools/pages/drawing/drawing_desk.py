"""Everything behind a page that draws: takes requests, reports progress, and never crashes on a visitor's input."""

import logging
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from pipelines.tasks.text_to_image.generation.text_to_image import RankedImage, encode_upper_part
from pipelines.tasks.text_to_image.generation.uploaded_picture import read_picture
from pipelines.tools.pages.drawing.drawing_request import NEWEST, DrawingRequest
from pipelines.tools.pages.drawing.drawing_speed import DrawingSpeed, TimedDrawing, in_words
from pipelines.tools.pages.drawing.published_checkpoints import HUB_ERRORS, Checkpoint, PublishedCheckpoints
from pipelines.tools.pages.drawing.seen_in_training import OpenedIndex, SeenInTraining, TrainingPicture, look_up
from pipelines.tools.pages.drawing.volunteers.volunteers import DrawnByVolunteers, Progress, Volunteers

logger = logging.getLogger(__name__)

VISITORS_ERRORS = (ValueError, *HUB_ERRORS)
CAPTION_CHARACTERS = 160

Labelled = tuple[Image.Image, str]
"""A picture and its caption, which may be a stranger's text."""


@dataclass(frozen=True, kw_only=True)
class Shown:
    """What the page shows next."""

    message: str
    """One or two sentences."""
    pictures: Sequence[Labelled] | None = None
    """None: keep the current ones."""
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
        self._draw_on_gpu = on_gpu(self._draw_loaded)

    def draw(self, values: dict[str, object], picture: str | None = None, rows: float | None = None) -> Iterator[Shown]:
        """Yield what to show, from the start to the result or the reason why there is none.

        `values` are the fields of `DrawingRequest`; `picture` is a file to complete, of which `rows` rows of codes are
        kept (0: half).
        """
        try:
            request = DrawingRequest(**values)  # type: ignore[arg-type]
            options = request.options(self.max_candidates)
            yield Shown(message="Loading the checkpoint ...", pictures=[])
            checkpoint = self.checkpoints.get(request.checkpoint)
            given = None if picture is None else read_picture(picture)
            yield from self._draw_and_look_up(request, options, checkpoint, given, int(rows or 0))
        except VISITORS_ERRORS as error:
            logger.warning("A drawing failed: %s", error)
            yield Shown(message=explain_error(error), pictures=[])

    def choices(self) -> tuple[list[tuple[str, str]], str]:
        """Return labels and names of the checkpoints to choose from, and why some may be missing."""
        try:
            epochs, problem = self.checkpoints.epochs(), ""
        except VISITORS_ERRORS as error:
            epochs, problem = [], f"Older epochs cannot be listed. {explain_error(error)}"
        return [(NEWEST, NEWEST), *((name.replace("-", " "), name) for name in epochs)], problem

    def _draw_and_look_up(
        self,
        request: DrawingRequest,
        options: GenerationOptions,
        checkpoint: Checkpoint,
        picture: Image.Image | None,
        rows: int,
    ) -> Iterator[Shown]:
        started, shown = time.monotonic(), Shown(message="")
        draw = self._draw_on_gpu if self.volunteers is None else self._draw_at_volunteers
        for step in draw(checkpoint.commit or NEWEST, request.prompt, options, picture, rows):
            if isinstance(step, Preview):
                shown = _on_the_way(step, time.monotonic() - started)
            elif isinstance(step, Drawing):
                self.speed.record(_timed(step, options))
                shown = _finished(step, request, options, checkpoint, picture is not None, self.volunteers)
            elif isinstance(step, SeenInTraining):
                shown = replace(shown, seen=step, seen_message=step.sentence())
            else:
                shown = replace(shown, seen_message=step)
            yield shown

    def _draw_loaded(
        self, version: str, prompt: str, options: GenerationOptions, picture: Image.Image | None, rows: int
    ) -> Iterator[Preview | Drawing | SeenInTraining | str]:
        """Draw and look up the neighbours, or say why not; arguments and result can be sent to another process."""
        bundle = self.checkpoints.get(version).bundle
        assert isinstance(bundle, TextToImage), "without volunteers the model is loaded"
        given = _given_codes(bundle, picture, rows)
        for step in draw_progressively(bundle, prompt, options, image_prompt=given):
            yield step
        yield from self._neighbours(bundle, step)

    def _draw_at_volunteers(
        self, version: str, prompt: str, options: GenerationOptions, picture: Image.Image | None, rows: int
    ) -> Iterator[Preview | Drawing | SeenInTraining | str]:
        """Do the same with the codes that volunteers draw."""
        assert self.volunteers is not None, "only called with volunteers"
        checkpoint, started, num_shown = self.checkpoints.get(version), time.monotonic(), 0
        bundle = checkpoint.bundle
        given = _given_codes(bundle, picture, rows)
        for step in self.volunteers.draw(checkpoint.commit, prompt, options, given):
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
            num_given=0 if given is None else len(given),
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


def _given_codes(bundle: TextToImage | RankingContext, picture: Image.Image | None, rows: int) -> torch.Tensor | None:
    """Return the codes of a picture's upper part, (given,) int64; None without a picture."""
    if picture is None:
        return None
    return encode_upper_part(bundle.codec, picture, rows or bundle.codec.config.grid_size // 2)


def _on_the_way(step: Preview, seconds: float) -> Shown:
    if not step.num_done:
        return Shown(message="Asking volunteers to draw ...")
    left = seconds / step.num_done * (step.num_total - step.num_done)
    what = f"about {in_words(left)} left" if step.num_done < step.num_total else "CLIP is ranking the pictures"
    pictures = None
    if step.pictures is not None:
        pictures = [(picture, f"candidate {n}") for n, picture in enumerate(step.pictures, start=1)]
    return Shown(message=f"Drawing: {step.num_done / step.num_total:.0%}, {what}.", pictures=pictures)


def _finished(
    drawing: Drawing,
    request: DrawingRequest,
    options: GenerationOptions,
    checkpoint: Checkpoint,
    is_completed: bool,
    volunteers: Volunteers | None,
) -> Shown:
    drawn = [(picture.image, _caption(picture, drawing.drawn_by)) for picture in drawing.pictures]
    message = " ".join(
        [
            f"The best {len(drawn)} of {counted(options.num_candidates, 'candidate')}, best first.",
            _source(drawing, checkpoint),
            f"Seed {request.seed}.",
            *drawing.remarks,
        ]
    )
    if drawing.num_tokens_cut:
        message += (
            f" The prompt is too long: the model did not read its last {counted(drawing.num_tokens_cut, 'token')}."
        )
    link_message = "The link does not include the picture that was completed." if is_completed else ""
    if volunteers is not None and volunteers.options.precision != "float32":
        link_message += f" In {volunteers.options.precision} another volunteer may draw slightly other pictures."
    try:
        query = replace(request, checkpoint=checkpoint.commit or NEWEST).to_query()
    except ValueError as error:
        query, link_message = "", str(error)
    return Shown(message=message, pictures=drawn, drawn=drawn, query=query, link_message=link_message.strip())


def _caption(picture: RankedImage, drawn_by: Mapping[int, str]) -> str:
    by = drawn_by.get(picture.candidate_index)
    return f"CLIP {picture.score:.2f}" + (f", drawn by {by}" if by else "")


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
