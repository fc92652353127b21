"""A Space that draws pictures for prompts with the checkpoints of a collaborative training run."""

try:
    import spaces  # lends a GPU on ZeroGPU hardware, where it must be imported before torch
except ImportError:
    spaces = None

import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import gradio as gr
from gradio.utils import get_upload_folder
from PIL import Image, ImageOps

from hub_tools.endpoint import prepare_hub_client
from hub_tools.printing.marked_up import code
from hub_tools.printing.printable import one_line
from pipelines.tasks.text_to_image.generation.image_generation import load_ranking_parts, load_text_to_image
from pipelines.tasks.text_to_image.generation.picture_grid import keep_picture
from pipelines.tasks.text_to_image.generation.training_index import BUILD_COMMAND
from pipelines.tasks.text_to_image.generation.uploaded_picture import read_picture
from pipelines.tools.pages.drawing.drawing_desk import DrawingDesk, Labelled, Shown, beside_results, with_words
from pipelines.tools.pages.drawing.drawing_request import NEWEST, DrawingRequest
from pipelines.tools.pages.drawing.page_look import CRISP, ON_DRAW, ON_END, ON_STOP, STYLE
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
                message = gr.Textbox(label="Status", value="Nothing drawn yet.", interactive=False, max_lines=8)
                by_itself = gr.Gallery(
                    label="What the run draws", columns=4, object_fit="contain", elem_id="by-itself", visible=False,
                    allow_preview=False, buttons=[],
                )  # fmt: skip
                gallery = gr.Gallery(
                    label="Pictures", columns=4, object_fit="contain", elem_id="drawn",
                    buttons=["download", "fullscreen"],
                )  # fmt: skip
                link = gr.Textbox(
                    label="Link to these pictures",
                    interactive=False,
                    buttons=["copy"],
                    visible=False,
                    max_lines=8,
                    elem_id="link",
                )
            with gr.Column(elem_id="more", min_width=300):
                speed = gr.Markdown(desk.speed.sentence(_default_candidates(settings)))
                settings_inputs, is_pinned = _build_inputs(settings)
                picture, rows = _build_completion()
        inputs = [prompt, *settings_inputs]
        seen = _build_seen(settings)
        last = gr.State(None)
        outputs = (gallery, message, last, link)
        completion = (picture, rows, is_pinned)
        drawing = _wire_drawing(desk, inputs, completion, (draw_button, stop_button), outputs, seen)
        _wire_opening(interface, desk, inputs, (message, is_pinned), speed, drawing)
        _wire_reel(interface, ReelPictures(settings.model_repository), prompt, by_itself, drawing)
    return interface


def on_gpu(function: Callable) -> Callable:
    """Let a function compute on a lent GPU where the host offers one."""
    # A folder of Spaces beside this file would also be importable as `spaces`; it has no GPU.
    lend = getattr(spaces, "GPU", None)
    return function if lend is None else lend(duration=GPU_SECONDS)(function)


def _build_prompt(settings: DrawingSettings) -> tuple[gr.Textbox, gr.Button, gr.Button]:
    prompt = gr.Textbox(label="Prompt", placeholder="What the pictures should show", lines=1, max_lines=4)
    with gr.Row():
        draw_button = gr.Button("Draw", variant="primary", min_width=120)
        stop_button = gr.Button("Stop", min_width=120, interactive=False)
    if settings.examples:
        gr.Examples([[example] for example in settings.examples], [prompt], label="Prompts to try")
    return prompt, draw_button, stop_button


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
        picture = gr.File(label="Its upper part is kept, the rest is drawn", file_types=["image"], height=120)
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
    outputs: tuple[gr.Gallery, gr.Textbox, gr.State, gr.Textbox],
    seen: list[gr.components.Component],
) -> gr.events.Dependency:
    gallery, message, last, link = outputs

    def show(*values: Any) -> Iterator[tuple[Any, str, Shown]]:
        *asked, checkpoint, picture, rows, is_pinned = values
        request = dict(zip(NAMES, (*asked, checkpoint or NEWEST), strict=True))
        if not is_pinned:
            request["seed"] = secrets.randbelow(LARGEST_NEW_SEED)
        for shown in desk.draw(request, picture, rows):
            yield gr.skip() if shown.pictures is None else _files(shown.pictures), shown.message, shown

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
    ) -> Iterator[tuple[Any, str]]:
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
        values = (prompt, candidates, keep, top_k, top_p, temperature, seed, guidance, checkpoint, picture, rows, True)
        for pictures, message, _ in show(*values):
            yield pictures, message

    draw_button, stop_button = buttons
    one_at_a_time = dict(concurrency_limit=1, concurrency_id="drawing")
    begins = [draw_button.click, inputs[0].submit]
    gr.on(begins, None, None, [draw_button, stop_button], js=ON_DRAW)  # in front: the browser goes through them in turn
    drawing = gr.on(
        begins,
        show,
        [*inputs, *completion],
        [gallery, message, last],
        api_visibility="private",
        show_progress_on=[message],
        **one_at_a_time,
    )
    # For programs and agents: Gradio 6.31 cannot answer agents where an output is a state.
    gr.Button(visible=False).click(
        draw, [*inputs, *completion[:2]], [gallery, message], api_name="draw", **one_at_a_time
    )
    drawing.success(_show_details, [last], [link, *seen], queue=False, show_progress="hidden", api_visibility="private")
    stop_button.click(None, None, [stop_button], js=ON_STOP, cancels=[drawing])
    for ends in (drawing.then, drawing.failure):  # what fails has no `then` in the browser
        ends(None, [stop_button], [draw_button, stop_button, message], js=ON_END)
    return drawing


def _wire_opening(
    interface: gr.Blocks,
    desk: DrawingDesk,
    inputs: list[gr.components.Component],
    told: tuple[gr.Textbox, gr.Checkbox],
    speed: gr.Markdown,
    drawing: gr.events.Dependency,
) -> None:
    message, is_pinned = told
    candidates, guidance, checkpoint = (inputs[NAMES.index(name)] for name in ("candidates", "guidance", "checkpoint"))

    def open_link(request: gr.Request) -> list[Any]:
        try:
            asked = DrawingRequest.from_query(dict(request.query_params))
            if asked is None:
                return [gr.skip()] * (len(NAMES) + 2)
            if not asked.prompt:
                chosen = [asked.checkpoint if name == "checkpoint" else gr.skip() for name in NAMES]
                return [*chosen, "The link's checkpoint is selected: type a prompt.", gr.skip()]
            asked.options(desk.max_candidates)
        except ValueError as error:
            return [gr.skip()] * len(NAMES) + [f"The link cannot be used. {error}", gr.skip()]
        said = "The link's prompt and settings are filled in: press Draw."
        return [*(getattr(asked, name) for name in NAMES), said, True]

    def list_checkpoints(shown: str) -> tuple[Any, Any]:
        choices, problem = desk.choices()
        return gr.Dropdown(choices=choices), f"{shown} {problem}" if problem else gr.skip()

    def tell_speed(candidates: float | None, guidance: float | None) -> str:
        return desk.speed.sentence(int(candidates or 1), is_guided=(guidance or 1) != 1)

    quiet = dict(queue=False, show_progress="hidden", api_visibility="private")
    interface.load(open_link, None, [*inputs, message, is_pinned], **quiet).then(
        list_checkpoints, [message], [checkpoint, message], **quiet
    )
    for listen in (interface.load, candidates.change, guidance.change, drawing.success):
        listen(tell_speed, [candidates, guidance], [speed], **quiet)


def _wire_reel(
    interface: gr.Blocks,
    reel: ReelPictures,
    prompt: gr.Textbox,
    by_itself: gr.Gallery,
    drawing: gr.events.Dependency,
) -> None:
    def show() -> Any:
        epoch, pictures = reel.newest()
        label = f"What the model drew after epoch {epoch:,}: press one to take its caption"
        return gr.update(value=_files(pictures), label=label, visible=True) if pictures else gr.skip()

    def take(event: gr.SelectData) -> Any:
        _, pictures = reel.newest()
        return pictures[event.index][1] if 0 <= event.index < len(pictures) else gr.skip()

    quiet = dict(queue=False, show_progress="hidden", api_visibility="private")
    interface.load(show, None, [by_itself], **quiet)
    by_itself.select(take, None, [prompt], **quiet)
    drawing.success(lambda: gr.update(visible=False), None, [by_itself], **quiet)


def _show_details(shown: Shown | None, request: gr.Request) -> list[Any]:
    if shown is None or not shown.drawn:
        return [gr.update(visible=False)] * 5
    # The browser names the page it is on; only this visitor sees the link.
    page = (request.headers.get("referer") or str(request.request.base_url)).partition("?")[0]
    link = f"{page}?{shown.query}" if shown.query else shown.link_message
    galleries = [beside_results(shown)]
    galleries += [
        with_words(each) for each in ((shown.seen.by_picture, shown.seen.by_caption) if shown.seen else ((), ()))
    ]
    return [
        gr.update(value=link, visible=True, info=shown.link_message if shown.query else None),
        gr.update(value=shown.seen_message, visible=bool(shown.seen_message)),
        *(gr.update(value=_files(pictures), visible=bool(pictures)) for pictures in galleries),
    ]


def _show_upload(path: str | None) -> tuple[Any, Any]:
    if path is None:
        return gr.update(value=None, visible=False), gr.update(visible=False)
    try:
        square = ImageOps.fit(read_picture(path), (PREVIEW_SIDE, PREVIEW_SIDE))
    except (ValueError, OSError) as error:
        return gr.update(value=None, visible=False), gr.update(value=str(error), visible=True)
    return gr.update(value=_file(square), visible=True), gr.update(visible=False)


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
        css=PAGE_STYLE + STYLE, js=CRISP, max_file_size=LARGEST_UPLOAD, mcp_server=True, app_kwargs=guarded
    )


if __name__ == "__main__":
    main()
