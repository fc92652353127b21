"""A Space that draws pictures for prompts with the checkpoints of a collaborative training run."""

try:
    import spaces  # lends a GPU on ZeroGPU hardware, where it must be imported before torch
except ImportError:
    spaces = None

import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gradio as gr
from gradio.utils import get_upload_folder
from PIL import Image, ImageOps

from hub_tools.endpoint import prepare_hub_client
from hub_tools.printing.marked_up import code, escaped
from hub_tools.printing.printable import one_line
from pipelines.tasks.text_to_image.generation.image_generation import load_ranking_parts, load_text_to_image
from pipelines.tasks.text_to_image.generation.picture_grid import keep_picture
from pipelines.tasks.text_to_image.generation.training_index import BUILD_COMMAND
from pipelines.tasks.text_to_image.generation.uploaded_picture import read_picture
from pipelines.tools.pages.drawing.drawing_desk import DrawingDesk, Labelled, Shown, beside_results, with_words
from pipelines.tools.pages.drawing.drawing_request import NEWEST, DrawingRequest
from pipelines.tools.pages.drawing.kept_drawings import KeptDrawing, with_newest, zipped
from pipelines.tools.pages.drawing.page_look import ON_DRAW, ON_END, ON_LOAD, ON_SHARE, ON_STOP, STYLE
from pipelines.tools.pages.drawing.published_checkpoints import PublishedCheckpoints
from pipelines.tools.pages.drawing.reel_pictures import ReelPictures
from pipelines.tools.pages.drawing.settings import DrawingSettings
from pipelines.tools.pages.drawing.volunteers.volunteers import Volunteers
from pipelines.tools.pages.own_pages import own_pages_only
from pipelines.tools.pages.page_style import PAGE_STYLE
from pipelines.tools.pages.run_pages import RunPage

GPU_SECONDS = 120
SECONDS_PER_HOUR, SECONDS_PER_DAY = 3_600, 86_400
LARGEST_UPLOAD = "20mb"
LARGEST_NEW_SEED = 1_000_000
"""Short enough to be told and typed."""

VARY_BEST = "Vary the best"
PREVIEW_SIDE = 256
VOLUNTEERS_DRAW = " Volunteers draw on their machines: they can read your prompt, and their names are their own words."
NAMES = ("prompt", "candidates", "keep", "top_k", "top_p", "temperature", "seed", "guidance", "checkpoint")
"""Fields of `DrawingRequest` in the order of the page's inputs, which is the order of the program's too."""


def build_interface(settings: DrawingSettings) -> gr.Blocks:
    """Return the page; the checkpoint is loaded at the first prompt."""
    checkpoints = PublishedCheckpoints(
        settings.model_repository,
        codec=settings.codec,
        clip=settings.clip,
        device=settings.device,
        load=load_ranking_parts if settings.volunteers else load_text_to_image,
    )
    desk = DrawingDesk(
        checkpoints,
        max_candidates=settings.max_candidates,
        training_index=settings.training_index,
        on_gpu=on_gpu,
        volunteers=settings.volunteers and Volunteers(settings.model_repository, settings.volunteers),
    )
    who = VOLUNTEERS_DRAW if settings.volunteers else ""
    with gr.Blocks(
        title="Text to image, trained together", delete_cache=(SECONDS_PER_HOUR, SECONDS_PER_DAY)
    ) as interface:
        gr.Markdown(
            f"# Text to image, trained together\nDrawn by the checkpoints of {code(settings.model_repository)}.{who}"
        )
        with gr.Row(elem_id="desk"):
            with gr.Column(elem_id="ask", min_width=300):
                prompt, draw_button, stop_button = _build_prompt(settings)
            with gr.Column(elem_id="results", min_width=300):
                message = gr.HTML(_said("Your pictures will appear here."), elem_id="status")
                by_itself = gr.Gallery(
                    label="What the run draws", columns=4, object_fit="contain", elem_id="by-itself", visible=False,
                    allow_preview=False, buttons=[],
                )  # fmt: skip
                gallery = gr.Gallery(
                    label="Pictures", columns=4, object_fit="contain", elem_id="drawn",
                    buttons=["download", "fullscreen"],
                )  # fmt: skip
                after = _build_after()
                link = gr.HTML(elem_id="link")
                earlier = gr.Gallery(
                    label="Drawn in this session: press one to come back to it", columns=6, object_fit="contain",
                    elem_id="earlier", visible=False, allow_preview=False, buttons=[],
                )  # fmt: skip
            with gr.Column(elem_id="more", min_width=300):
                examples = gr.Dataset(
                    components=[prompt], samples=[[example] for example in settings.examples], label="Captions to try",
                    visible=bool(settings.examples),
                )  # fmt: skip
                speed = gr.Markdown(desk.speed.sentence(_default_candidates(settings)))
                settings_inputs, is_pinned = _build_inputs(settings)
                picture, rows = _build_completion()
        inputs = [prompt, *settings_inputs]
        seen = _build_seen(settings)
        shown = (gallery, message, gr.State(None))
        completion = (picture, rows, is_pinned)
        drawings = _wire_drawing(
            desk, inputs, completion, (draw_button, stop_button), shown, after, (by_itself, after.row, link)
        )
        _wire_after(inputs, shown, after, (link, earlier), seen, drawings)
        _wire_opening(interface, desk, inputs, (message, is_pinned), speed, drawings)
        _wire_reel(interface, ReelPictures(settings.model_repository), prompt, by_itself, examples)
    return interface


def on_gpu(function: Callable) -> Callable:
    """Let a function compute on a lent GPU where the host offers one."""
    # A folder of Spaces beside this file would also be importable as `spaces`; it has no GPU.
    lend = getattr(spaces, "GPU", None)
    return function if lend is None else lend(duration=GPU_SECONDS)(function)


def _build_prompt(settings: DrawingSettings) -> tuple[gr.Textbox, gr.Button, gr.Button]:
    prompt = gr.Textbox(label="Prompt", placeholder="What the pictures should show", lines=1, max_lines=4)
    with gr.Row(elem_id="buttons"):
        draw_button = gr.Button("Draw", variant="primary", min_width=120)
        stop_button = gr.Button("Stop", min_width=120, interactive=False)
    return prompt, draw_button, stop_button


@dataclass(frozen=True, kw_only=True)
class After:
    """What can be done with the pictures; `chosen` is the number of the one that was pressed last, from 0."""

    row: gr.Row
    again: gr.Button
    vary: gr.Button
    share: gr.Button
    all_files: gr.DownloadButton
    chosen: gr.State


def _build_after() -> After:
    chosen = gr.State(0)
    with gr.Row(visible=False, elem_id="after") as row:
        again = gr.Button("Draw again", min_width=150)
        vary = gr.Button(VARY_BEST, min_width=150)
        share = gr.Button("Share", min_width=150)
        all_files = gr.DownloadButton("Download all", min_width=150)
    return After(row=row, again=again, vary=vary, share=share, all_files=all_files, chosen=chosen)


def _build_inputs(settings: DrawingSettings) -> tuple[list[gr.components.Component], gr.Checkbox]:
    most = settings.max_candidates
    candidates = gr.Slider(1, most, value=_default_candidates(settings), step=1, label="Candidates")
    with gr.Accordion("Checkpoint and settings", open=False):
        checkpoint = gr.Dropdown(
            [(NEWEST, NEWEST)], value=NEWEST, label="Checkpoint", allow_custom_value=True,
            info="newest, an epoch, or the 40 digits of a commit",
        )  # fmt: skip
        keep = gr.Slider(1, min(16, most), value=min(4, most), step=1, label="Keep")
        top_k = gr.Number(256, label="Top-k (0: all codes)", precision=0)
        top_p = gr.Slider(0.05, 1.0, value=1.0, step=0.05, label="Top-p")
        temperature = gr.Slider(0.0, 2.0, value=1.0, step=0.05, label="Temperature")
        guidance = gr.Slider(0.0, 10.0, value=1.0, step=0.25, label="Guidance (1: none)")
        is_pinned = gr.Checkbox(False, label="Keep the seed", info="else each drawing has a new one")
        seed = gr.Number(0, label="Seed", precision=0)
    return [candidates, keep, top_k, top_p, temperature, seed, guidance, checkpoint], is_pinned


def _build_completion() -> tuple[gr.File, gr.Number]:
    with gr.Accordion("Complete a picture", open=False):
        gr.Markdown("Upload a picture: its upper part is kept, the model draws the rest.")
        picture = gr.File(label="Picture to upload", file_types=["image"], height=120)
        preview = gr.Image(
            label="Picture to complete", interactive=False, visible=False, height=160, buttons=[],
            alt_text="The picture to complete",
        )  # fmt: skip
        problem = gr.Textbox(label="Problem with this picture", interactive=False, visible=False, max_lines=3)
        rows = gr.Number(0, label="Rows of codes to keep (0: half)", precision=0, minimum=0)
    picture.change(
        _show_upload, [picture], [preview, problem], queue=False, show_progress="hidden", api_visibility="private"
    )
    return picture, rows


def _build_seen(settings: DrawingSettings) -> list[gr.components.Component]:
    if settings.training_index is not None:
        gr.Markdown("## Seen in training?\nThe training pictures nearest to the results, by CLIP: memorised or new?")
    shape = dict(columns=4, object_fit="contain", buttons=["fullscreen"], visible=False)
    with gr.Column(elem_id="seen"):
        words = gr.Textbox(label="What the numbers mean", interactive=False, visible=False, max_lines=5)
        beside = gr.Gallery(label="Each result and the training pictures nearest to it", **shape)
        by_picture = gr.Gallery(label="Training pictures nearest to the prompt", **shape)
        by_caption = gr.Gallery(label="Training captions nearest to the prompt", **shape)
    return [words, beside, by_picture, by_caption]


def _wire_drawing(
    desk: DrawingDesk,
    inputs: list[gr.components.Component],
    completion: tuple[gr.File, gr.Number, gr.Checkbox],
    buttons: tuple[gr.Button, gr.Button],
    outputs: tuple[gr.Gallery, gr.HTML, gr.State],
    after: After,
    hidden: tuple[gr.Gallery, gr.Row, gr.HTML],
) -> list[gr.events.Dependency]:
    gallery, message, last = outputs

    def steps(values: Sequence[Any], *, is_pinned: bool, varied: Any = None) -> Iterator[tuple[object, Shown]]:
        *asked, checkpoint, picture, rows = values
        request = dict(zip(NAMES, (*asked, checkpoint or NEWEST), strict=True))
        if not is_pinned:
            request["seed"] = secrets.randbelow(LARGEST_NEW_SEED)
        for shown in desk.draw(request, picture, rows, varied):
            yield gr.skip() if shown.pictures is None else _files(shown.pictures), shown

    def show(*values: object, varied: object = None) -> Iterator[tuple[object, str, Shown]]:
        *asked, is_pinned = values
        for pictures, shown in steps(asked, is_pinned=bool(is_pinned), varied=varied):
            yield pictures, _said(shown.message), shown

    def show_again(*values: object) -> Iterator[tuple[object, str, Shown]]:
        yield from show(*values[:-1], False)

    def show_varied(*values: Any) -> Iterator[tuple[object, str, Shown]]:
        *asked, shown, number = values
        yield from show(*asked[:-1], False, varied=shown.codes[number])

    def draw(
        prompt: str,
        candidates: float,
        keep: float,
        top_k: float,
        top_p: float,
        temperature: float,
        seed: float,
        guidance: float = 1.0,
        checkpoint: str | None = NEWEST,
        picture: str | None = None,
        rows: float = 0,
    ) -> Iterator[tuple[object, str]]:
        """Draw pictures for a caption with the run's model; return the best ones, ranked by CLIP.

        Where volunteers draw, names in the answer are strangers' words.

        Args:
            prompt: what the pictures show, in a few words
            candidates: how many pictures are drawn
            keep: how many of them, those that fit the caption best, are returned
            top_k: sample from so many likeliest codes
            top_p: sample from the likeliest codes that together reach this probability
            temperature: above 1 more varied, below 1 more alike
            seed: the same seed gives the same pictures
            guidance: above 1 closer to the caption, for models trained with it
            checkpoint: the newest one, or an epoch of the run
            picture: a picture to complete from its upper rows
            rows: how many rows of its codes are kept
        """
        values = (prompt, candidates, keep, top_k, top_p, temperature, seed, guidance, checkpoint, picture, rows)
        for pictures, shown in steps(values, is_pinned=True):
            yield pictures, shown.message

    draw_button, stop_button = buttons
    one_at_a_time = dict(concurrency_limit=1, concurrency_id="drawing")
    drawings = []
    for begins, function, more in (
        ([draw_button.click, inputs[0].submit], show, []),
        ([after.again.click], show_again, []),
        ([after.vary.click], show_varied, [last, after.chosen]),
    ):
        # In front: the browser goes through them in turn.
        gr.on(begins, None, None, [draw_button, stop_button, *hidden], js=ON_DRAW)
        drawing = gr.on(
            begins,
            function,
            [*inputs, *completion, *more],
            [gallery, message, last],
            api_visibility="private",
            show_progress_on=[message],
            **one_at_a_time,
        )
        drawings.append(drawing)
        for ends in (drawing.then, drawing.failure):  # what fails has no `then` in the browser
            ends(None, [stop_button], [draw_button, stop_button, message], js=ON_END)
    # For programs and agents: Gradio 6.31 cannot answer agents where an output is a state.
    gr.Button(visible=False).click(
        draw, [*inputs, *completion[:2]], [gallery, gr.Textbox(visible=False)], api_name="draw", **one_at_a_time
    )
    stop_button.click(None, None, [stop_button], js=ON_STOP, cancels=drawings)
    return drawings


def _wire_after(
    inputs: list[gr.components.Component],
    outputs: tuple[gr.Gallery, gr.HTML, gr.State],
    after: After,
    beside: tuple[gr.HTML, gr.Gallery],
    seen: list[gr.components.Component],
    drawings: Sequence[gr.events.Dependency],
) -> None:
    gallery, message, last = outputs
    link, earlier = beside
    kept, seed = gr.State(()), inputs[NAMES.index("seed")]
    others = [item for item in inputs if item is not seed]
    details = [after.row, link, after.all_files, after.vary, after.share, after.chosen, seed]

    def show_details(drawing: KeptDrawing) -> list[object]:
        shown = drawing.shown
        return [
            gr.update(visible=True),
            _link(shown) + _said(shown.link_message),
            str(zipped(drawing, Path(get_upload_folder()))),
            VARY_BEST,
            gr.update(value="Share", interactive=bool(shown.query)),
            0,
            drawing.request.seed,
        ]

    def end(shown: Shown | None, drawn: Sequence[KeptDrawing]) -> list[object]:
        if shown is None or shown.request is None:
            return [gr.update(visible=False), "", *[gr.skip()] * 7, *[gr.update(visible=False)] * len(seen)]
        drawn = with_newest(drawn, KeptDrawing(shown=shown.without_pictures(), files=_files(shown.drawn)))
        overview = [(one.files[0][0], one.request.prompt) for one in drawn]
        return [
            *show_details(drawn[0]), drawn, gr.update(value=overview, visible=len(drawn) > 1), *_show_seen(shown)
        ]  # fmt: skip

    def come_back(drawn: Sequence[KeptDrawing], event: gr.SelectData) -> list[object]:
        drawing = drawn[event.index]
        if not drawing.is_there:
            said = _said("These pictures are no longer on the server.")
            return [gr.skip(), said, *[gr.skip()] * (1 + len(details) + len(others) + len(seen))]
        return [
            drawing.files, _said(drawing.shown.message), drawing.shown,
            *show_details(drawing),
            *(getattr(drawing.request, name) for name in NAMES if name != "seed"),
            *[gr.update(visible=False)] * len(seen),
        ]  # fmt: skip

    def choose(event: gr.SelectData) -> tuple[int, str]:
        return event.index, f"Vary picture {event.index + 1}"

    quiet = dict(queue=False, show_progress="hidden", api_visibility="private")
    for drawing in drawings:
        drawing.success(end, [last, kept], [*details, kept, earlier, *seen], **quiet)
    earlier.select(come_back, [kept], [gallery, message, last, *details, *others, *seen], **quiet)
    gallery.select(choose, None, [after.chosen, after.vary], **quiet)
    after.share.click(None, None, [after.share], js=ON_SHARE)


def _wire_opening(
    interface: gr.Blocks,
    desk: DrawingDesk,
    inputs: list[gr.components.Component],
    told: tuple[gr.HTML, gr.Checkbox],
    speed: gr.Markdown,
    drawings: Sequence[gr.events.Dependency],
) -> None:
    message, is_pinned = told
    candidates, guidance, checkpoint = (inputs[NAMES.index(name)] for name in ("candidates", "guidance", "checkpoint"))

    def open_link(request: gr.Request) -> list[object]:
        try:
            asked = DrawingRequest.from_query(dict(request.query_params))
            if asked is None:
                return [gr.skip()] * (len(NAMES) + 2)
            if not asked.prompt:
                chosen = [asked.checkpoint if name == "checkpoint" else gr.skip() for name in NAMES]
                return [*chosen, _said("The link's checkpoint is selected: type a prompt."), gr.skip()]
            asked.options(desk.max_candidates)
        except ValueError as error:
            return [gr.skip()] * len(NAMES) + [_said(f"The link cannot be used. {error}"), gr.skip()]
        said = "The link's prompt and settings are filled in: press Draw."
        return [*(getattr(asked, name) for name in NAMES), _said(said), True]

    def list_checkpoints(shown: str) -> tuple[gr.Dropdown, object]:
        choices, problem = desk.choices()
        return gr.Dropdown(choices=choices), shown + _said(problem) if problem else gr.skip()

    def tell_speed(candidates: float | None, guidance: float | None) -> str:
        return desk.speed.sentence(int(candidates or 1), is_guided=(guidance or 1) != 1)

    quiet = dict(queue=False, show_progress="hidden", api_visibility="private")
    interface.load(open_link, None, [*inputs, message, is_pinned], **quiet).then(
        list_checkpoints, [message], [checkpoint, message], **quiet
    )
    for listen in (interface.load, candidates.change, guidance.change, *(drawing.success for drawing in drawings)):
        listen(tell_speed, [candidates, guidance], [speed], **quiet)


def _wire_reel(
    interface: gr.Blocks,
    reel: ReelPictures,
    prompt: gr.Textbox,
    by_itself: gr.Gallery,
    examples: gr.Dataset,
) -> None:
    has_examples = bool(examples.raw_samples)

    def show() -> tuple[object, object]:
        epoch, pictures = reel.newest()
        if not pictures:
            return gr.skip(), gr.skip()
        label = f"After epoch {epoch:,}: press one for its caption"
        captions = gr.skip() if has_examples else gr.Dataset(samples=[[words] for _, words in pictures], visible=True)
        return gr.update(value=_files(pictures), label=label, visible=True), captions

    def take(event: gr.SelectData) -> object:
        _, pictures = reel.newest()
        return pictures[event.index][1] if 0 <= event.index < len(pictures) else gr.skip()

    quiet = dict(queue=False, show_progress="hidden", api_visibility="private")
    interface.load(show, None, [by_itself, examples], **quiet)
    by_itself.select(take, None, [prompt], **quiet)
    examples.click(lambda sample: sample[0], [examples], [prompt], **quiet)


def _show_seen(shown: Shown) -> list[object]:
    galleries = [beside_results(shown)]
    galleries += [
        with_words(each) for each in ((shown.seen.by_picture, shown.seen.by_caption) if shown.seen else ((), ()))
    ]
    return [
        gr.update(value=shown.seen_message, visible=bool(shown.seen_message)),
        *(gr.update(value=_files(pictures), visible=bool(pictures)) for pictures in galleries),
    ]


def _link(shown: Shown) -> str:
    # Only the browser knows the address that it sees the page at.
    query = escaped(f"?{shown.query}")
    return f'<p>Link to these pictures: <a href="{query}">{query}</a></p>' if shown.query else ""


def _show_upload(path: str | None) -> tuple[object, object]:
    if path is None:
        return gr.update(value=None, visible=False), gr.update(visible=False)
    try:
        square = ImageOps.fit(read_picture(path), (PREVIEW_SIDE, PREVIEW_SIDE))
    except (ValueError, OSError) as error:
        return gr.update(value=None, visible=False), gr.update(value=str(error), visible=True)
    return gr.update(value=_file(square), visible=True), gr.update(visible=False)


def _said(text: str) -> str:
    return f"<p>{escaped(text)}</p>" if text else ""


def _files(pictures: Sequence[Labelled]) -> list[tuple[str, str]]:
    return [(_file(picture), words) for picture, words in pictures]


def _file(picture: Image.Image) -> str:
    # Given a picture, Gradio rewrites the file of an equal one, which breaks it for browsers that are reading it.
    return str(keep_picture(picture, Path(get_upload_folder())))


def _default_candidates(settings: DrawingSettings) -> int:
    return min(32, settings.max_candidates)


def main() -> None:
    """Start the Space with the settings of the environment."""
    prepare_hub_client()
    try:
        settings = DrawingSettings.from_environment(os.environ)
        page = RunPage.from_environment("text_to_image_demo", os.environ)
    except ValueError as error:
        raise SystemExit(one_line(error)) from None
    if settings.training_index is None:  # for the owner's log; visitors need not know
        print(f'"Seen in training?" is not shown: build an index with `{BUILD_COMMAND}` and set TRAINING_INDEX.')
    interface = build_interface(settings).queue(max_size=settings.max_queue)
    guarded = own_pages_only(os.environ, page.middleware())
    interface.launch(
        css=PAGE_STYLE + STYLE, js=ON_LOAD, max_file_size=LARGEST_UPLOAD, mcp_server=True, app_kwargs=guarded
    )


if __name__ == "__main__":
    main()
