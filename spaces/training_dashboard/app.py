"""A Space that shows a collaborative training run live: curves, peers, contributions, checkpoints, pictures."""

import inspect
import os
from collections.abc import Callable

import gradio as gr
from fastapi import HTTPException
from fastapi.responses import FileResponse, JSONResponse, PlainTextResponse
from fastapi.routing import APIRoute

from hub_tools.endpoint import prepare_hub_client
from hub_tools.printing.printable import one_line
from pipelines.tools.pages.board_script import BOARD_SCRIPT
from pipelines.tools.pages.dashboard.dashboard import MOST_SMOOTHING, Dashboard
from pipelines.tools.pages.dashboard.page_look import STYLE
from pipelines.tools.pages.dashboard.page_parts import BOARD_COLUMNS
from pipelines.tools.pages.dashboard.peer_table import COLUMNS
from pipelines.tools.pages.dashboard.programs import SPANS
from pipelines.tools.pages.dashboard.settings import DashboardSettings
from pipelines.tools.pages.own_pages import own_pages_only
from pipelines.tools.pages.page_style import PAGE_STYLE
from pipelines.tools.pages.run_pages import RunPage
from pipelines.tools.pages.table_order import Columns, next_order

SECONDS_BETWEEN_LOOKS = 2.0
SECONDS_BETWEEN_DRAWINGS = 15.0
PROMETHEUS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SWARM_TAB, BOARD_TAB, CHECKPOINT_TAB, REEL_TAB = "Peers", "Leaderboard", "Checkpoints", "Progress reel"


def build_interface(dashboard: Dashboard) -> gr.Blocks:
    """Return the page; it polls the dashboard every few seconds."""
    # Bypasses the queue: a poll while the queue's stream closes is shown as a broken connection (Gradio 6.31).
    quiet = dict(queue=False, show_progress="hidden", api_name=False)
    with gr.Blocks(title=f"{dashboard.settings.run}: training dashboard") as interface:
        headline, now, notices = gr.HTML(), gr.HTML(), gr.HTML()
        with gr.Tab("Curves"):
            with gr.Row():
                axis = gr.Radio(
                    [("epochs", "epoch"), ("time (UTC)", "time")], value="epoch", label="Axis", min_width=260
                )
                first = gr.Slider(0, 100, value=0, step=0.1, label="From (% of the history)", min_width=260)
                last = gr.Slider(0, 100, value=100, step=0.1, label="To (% of the history)", min_width=260)
            with gr.Row():
                is_log = gr.Checkbox(False, label="Log scale", min_width=260, elem_id="log-scale")
                smoothing = gr.Slider(0, MOST_SMOOTHING, value=0, step=0.01, label="Smoothing", min_width=260)
                asked = gr.Textbox(
                    label="Compare with", placeholder="ORG/RUN", max_lines=1, max_length=200, min_width=260
                )
            gr.Markdown("Drag over a curve to zoom in, double-click to see all of it.")
            charts, compared = gr.HTML(js_on_load=BOARD_SCRIPT), gr.State("")
        with gr.Tab(SWARM_TAB) as swarm_tab:
            with gr.Row():
                search = gr.Textbox(label="Search", placeholder="user, device, version, state", max_lines=1, scale=3)
                page = gr.Number(1, precision=0, minimum=1, label="Page", scale=1, min_width=100)
            peers, peer_order = gr.HTML(js_on_load=BOARD_SCRIPT), gr.State("")
        with gr.Tab(BOARD_TAB) as board_tab:
            span = gr.Radio(SPANS, value="all", label="Claimed (UTC)")
            board, board_order = gr.HTML(js_on_load=BOARD_SCRIPT), gr.State("")
        with gr.Tab(CHECKPOINT_TAB) as checkpoint_tab:
            checkpoints = gr.HTML()
        with gr.Tab(REEL_TAB) as reel_tab:
            reel = gr.HTML()

        def look() -> tuple[str, str]:
            return dashboard.headline(), dashboard.notices()

        def zoom(axis: str, part: gr.EventData) -> tuple[float, float]:
            return dashboard.zoomed(axis, part._data.get("low"), part._data.get("high"))

        def sorting(columns: Columns) -> Callable[[str, gr.EventData], str]:
            def sort(order: str, head: gr.EventData) -> str:
                return next_order(order, head._data.get("sort"), columns)

            return sort

        window = [axis, first, last, is_log, smoothing, compared]
        often, seldom = gr.Timer(SECONDS_BETWEEN_LOOKS), gr.Timer(SECONDS_BETWEEN_DRAWINGS)
        gr.on([interface.load, often.tick], look, None, [headline, notices], **quiet)
        gr.on([interface.load, seldom.tick], dashboard.now, None, now, **quiet)
        redraw = [interface.load, seldom.tick, *(control.change for control in window[:-1])]
        gr.on(redraw, dashboard.charts, window, charts, trigger_mode="always_last", **quiet)
        charts.select(zoom, axis, [first, last], **quiet)
        charts.double_click(lambda: (0, 100), None, [first, last], **quiet)
        chosen = gr.on([asked.submit, asked.blur], lambda name: name.strip(), asked, compared, **quiet)
        chosen.then(dashboard.charts, window, charts, **quiet)  # outside the queue a state's own event does not come
        gr.on([swarm_tab.select, often.tick, search.change, page.change], dashboard.peers,
              [search, page, peer_order], peers, trigger_mode="always_last", **quiet)  # fmt: skip
        gr.on([board_tab.select, span.change], dashboard.board, [span, board_order], board,
              trigger_mode="always_last", **quiet)  # fmt: skip
        sorted_peers = peers.select(sorting(COLUMNS), peer_order, peer_order, **quiet)
        sorted_peers.then(dashboard.peers, [search, page, peer_order], peers, **quiet)
        sorted_board = board.select(sorting(BOARD_COLUMNS), board_order, board_order, **quiet)
        sorted_board.then(dashboard.board, [span, board_order], board, **quiet)
        gr.on([checkpoint_tab.select], dashboard.checkpoints, None, checkpoints, **quiet)
        gr.on([reel_tab.select], dashboard.reel, None, reel, **quiet)
        for name, answer in answers(dashboard).items():
            gr.api(answer, api_name=name, concurrency_limit=16)
    return interface


def answers(dashboard: Dashboard) -> dict[str, Callable[..., object]]:
    """Return the functions that programs may call, by name."""
    return dict(
        run=dashboard.run_values,
        peers=dashboard.peer_values,
        servers=dashboard.server_values,
        serving=dashboard.serving_values,
        leaderboard=dashboard.leaderboard_values,
        history=dashboard.history_values,
        evaluations=dashboard.evaluation_values,
        alerts=dashboard.alert_values,
        checkpoints=dashboard.checkpoint_values,
    )


def routes(dashboard: Dashboard) -> list[APIRoute]:
    """Return what is served next to the page: the same answers over plain HTTP, figures for Prometheus, pictures."""

    def metrics() -> PlainTextResponse:
        return PlainTextResponse(dashboard.metrics_text(), media_type=PROMETHEUS_TYPE)

    def picture(name: str) -> FileResponse:
        try:
            return FileResponse(dashboard.picture(name), media_type="image/webp")
        except OSError as error:
            raise HTTPException(404, str(error)) from error

    return [
        APIRoute("/metrics", metrics),
        APIRoute("/reel/{name}", picture),
        *(APIRoute(f"/api/{name}", _answering(answer)) for name, answer in answers(dashboard).items()),
    ]


def _answering(answer: Callable[..., object]) -> Callable[..., JSONResponse]:
    """Return the same function, with the caller's mistakes answered as client errors."""

    def respond(**values: object) -> JSONResponse:
        try:
            return JSONResponse(answer(**values))
        except ValueError as error:
            return JSONResponse(dict(error=str(error)), status_code=422)

    # FastAPI reads the parameters from the signature.
    respond.__signature__ = inspect.signature(answer).replace(return_annotation=inspect.Signature.empty)
    return respond


def main() -> None:
    """Start the Space with the settings of the environment."""
    prepare_hub_client()
    try:
        settings = DashboardSettings.from_environment(os.environ)
        page = RunPage.from_environment("training_dashboard", os.environ)
    except ValueError as error:
        raise SystemExit(one_line(error)) from None
    with Dashboard(settings) as dashboard:
        interface = build_interface(dashboard).queue(max_size=512)
        web = dict(routes=routes(dashboard)) | own_pages_only(os.environ, page.middleware())
        interface.launch(css=PAGE_STYLE + STYLE, app_kwargs=web, mcp_server=True)


if __name__ == "__main__":
    main()
