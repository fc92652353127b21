"""A Space that contributes the machine it runs on to a collaborative training run."""

import os
import signal
import sys
import time
from collections.abc import Callable, Mapping

import gradio as gr
from huggingface_hub import get_token

import pipelines.command_line.volunteer  # noqa: F401 - the program that is started, so it has to be bundled
from hub_tools.endpoint import prepare_hub_client
from hub_tools.one_line_errors import explain_error
from hub_tools.printing.printable import one_line
from pipelines.tools.pages.joining import join_view
from pipelines.tools.pages.joining.join_session import JoinSession
from pipelines.tools.pages.joining.join_settings import JoinSettings, hosts_from
from pipelines.tools.pages.joining.permissions import Access, access_of, is_on_hub
from pipelines.tools.pages.joining.presentation import (
    STYLE,
    checks_html,
    contribution_html,
    gift_html,
    notice_html,
    run_html,
    state_html,
)
from pipelines.tools.pages.own_pages import own_pages_only
from pipelines.tools.pages.page_style import PAGE_STYLE
from pipelines.tools.pages.run_pages import RunPage, space_address

INTRODUCTION = """# Contribute this machine to a training run
Many machines train one model together. The one that this page runs on, not your phone or browser, computes
gradients for as long as its owner likes; the others do not wait for it, and it may leave at any time."""
LAYOUT = """
button.stop:disabled { background: var(--button-secondary-background-fill); border-color: transparent;
  color: var(--button-secondary-text-color); }
.gradio-container { --button-cancel-background-fill: #b42318; --button-cancel-background-fill-hover: #8f1b12;
  --button-cancel-border-color: #b42318; --button-cancel-text-color: #ffffff; }
.part, .part > *, .part .html-container { padding: 0 !important; }
#log textarea { font-family: ui-monospace, monospace; font-size: 0.8rem; line-height: 1.45; }
"""
DEVICES = ["auto", "cpu", "cuda"]


def build_interface(session: JoinSession, environment: Mapping[str, str]) -> gr.Blocks:
    """Return the page; the session outlives all visits to it."""
    on_hub, hosts = is_on_hub(environment), hosts_from(environment)
    places = {name: space_address(name, environment.get(name, "")) for name in ("DEMO_SPACE", "LANDING_SPACE")}

    def show(seen: list[object], profile: gr.OAuthProfile | None) -> list[object]:
        view, access = session.view(), access_of(environment, profile and profile.username)
        shown = _shown(view, access, places)
        # What a visitor has opened or selected in a part stays so until the part changes.
        known = seen or [None] * len(shown)
        news = [gr.skip() if new == old else gr.update(**new) for new, old in zip(shown, known, strict=True)]
        return [gr.skip() if shown == seen else shown, *news]

    def learn_run(run: str, profile: gr.OAuthProfile | None) -> None:
        """Read the page's run, or one that is chosen by who may start the trainer: everybody is shown it."""
        own = environment.get("RUN", "")
        if own or access_of(environment, profile and profile.username).is_granted:
            session.learn_run(own or run)

    def press(act: Callable[[], None], profile: gr.OAuthProfile | None) -> object:
        """Run a button's action if the visitor is permitted to; return a notice about it."""
        access = access_of(environment, profile and profile.username)
        said = access.reason
        try:
            if access.is_granted:
                act()
        except (ValueError, OSError) as error:
            said = explain_error(error)
        return gr.update(value=notice_html(said), visible=bool(said))

    def with_settings(act: Callable[[JoinSettings, str | None], None]) -> Callable[..., object]:
        def pressed(
            run: str,
            micro_batch: str,
            device: str,
            hours: float,
            upload: float,
            client_mode: bool,
            load: float,
            gpu_memory: float,
            profile: gr.OAuthProfile | None,
            token: gr.OAuthToken | None,
        ) -> object:
            fields = run, micro_batch, device, hours, upload, client_mode, load, gpu_memory
            own_token = get_token() or (token.token if token is not None and on_hub else None)
            return press(lambda: act(JoinSettings.from_fields(*fields, host_addresses=hosts), own_token), profile)

        return pressed

    def on_pause(profile: gr.OAuthProfile | None) -> object:
        return press(session.resume if session.view().phase in join_view.RESTING else session.pause, profile)

    def on_stop(profile: gr.OAuthProfile | None) -> object:
        return press(session.stop, profile)

    with gr.Blocks(title="Join the training") as interface:
        gr.Markdown(INTRODUCTION)
        seen = gr.State([])
        with gr.Row():
            with gr.Column(scale=2, min_width=300):
                if on_hub:
                    gr.LoginButton()
                visitor = gr.HTML(visible=False, elem_classes="part")
                fields = _fields(environment.get("RUN", ""), on_hub)
                buttons = check_button, start_button, pause_button, stop_button = _buttons()
                notice = gr.HTML(visible=False, elem_classes="part")
            with gr.Column(scale=3, min_width=300):
                state = gr.HTML(elem_classes="part")
                contribution = gr.HTML(visible=False, elem_classes="part")
                gift = gr.HTML(visible=False, elem_classes="part")
                about = gr.HTML(visible=False, elem_classes="part")
                checks = gr.HTML(visible=False, elem_classes="part")
                with gr.Accordion("Trainer output", open=False):
                    log = gr.Textbox(
                        label="Log", lines=8, max_lines=14, interactive=False, autoscroll=True, elem_id="log"
                    )
        # Bypasses the queue: a click while the queue's stream closes is shown as a broken connection (Gradio 6.31).
        quiet = dict(queue=False, show_progress="hidden", api_name=False)
        gr.on(
            [interface.load, gr.Timer(1.0).tick],
            show,
            [seen],
            [seen, state, contribution, gift, about, checks, visitor, log, *buttons],
            **quiet,
        )
        # What is known of the run is at most a minute old whenever somebody opens the page.
        gr.on(
            [interface.load, gr.Timer(60.0).tick, fields[0].submit, fields[0].blur],
            learn_run,
            fields[:1],
            None,
            **quiet,
        )
        check_button.click(with_settings(session.check), fields, [notice], **quiet)
        start_button.click(with_settings(session.start), fields, [notice], **quiet)
        pause_button.click(on_pause, None, [notice], **quiet)
        stop_button.click(on_stop, None, [notice], **quiet)
    return interface


def _shown(view: join_view.JoinView, access: Access, places: Mapping[str, str]) -> list[dict[str, object]]:
    """Return what the page's parts, its log and its buttons show, in their order."""
    may, rests = access.is_granted, view.phase in join_view.RESTING
    parts = (
        *(state_html(view, time.time()), contribution_html(view), gift_html(view, places), run_html(view, places)),
        *(checks_html(view), notice_html(access.reason)),
    )
    return [
        *(dict(value=html, visible=bool(html)) for html in parts),
        dict(value="\n".join(view.lines)),
        dict(interactive=may and not view.is_alive and not view.is_checking, visible=not view.is_over),
        dict(interactive=may and not view.is_alive, visible=not view.is_over),
        dict(value="Resume" if rests else "Pause", interactive=may and (rests or view.phase in join_view.WORKING)),
        dict(interactive=may and (view.is_checking or view.is_alive) and view.phase != join_view.STOPPING),
    ]


def _buttons() -> tuple[gr.Button, ...]:
    with gr.Row():
        checks = gr.Button("Check", interactive=False, min_width=120)
        starts = gr.Button("Start", variant="primary", interactive=False, min_width=120)
    with gr.Row():
        pauses = gr.Button("Pause", interactive=False, min_width=120)
        stops = gr.Button("Stop", variant="stop", interactive=False, min_width=120)
    return checks, starts, pauses, stops


def _fields(run: str, on_hub: bool) -> list[gr.components.Component]:
    """Return the settings in the order of `JoinSettings.from_fields`."""
    repository = gr.Textbox(run, label="Run", placeholder="ORG/RUN", max_lines=1, interactive=not run)
    with gr.Accordion("Limits", open=False):
        return [
            repository,
            gr.Textbox("auto", label="Micro-batch (samples; auto: found by testing)", max_lines=1),
            gr.Dropdown(DEVICES, value="auto", label="Device", allow_custom_value=True),
            gr.Number(0, label="Leave after (hours; 0: stay)", minimum=0),
            gr.Number(0, label="Upload limit (Mbit/s; 0: none)", minimum=0),
            gr.Checkbox(on_hub, label="Client mode: peers cannot connect to this machine (firewall, Space)"),
            gr.Slider(5, 100, value=100, step=5, label="Share of the time that it computes (%)"),
            gr.Number(0, label="GPU memory to take at most (GiB; 0: all that is free)", minimum=0),
        ]


def main() -> None:
    """Start the Space with the settings of the environment; the trainer stops with it."""
    prepare_hub_client()
    try:
        page = RunPage.from_environment("join_training", os.environ)
    except ValueError as error:
        raise SystemExit(one_line(error)) from None
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with JoinSession() as session:
        session.learn_run(os.environ.get("RUN", ""))
        guarded = own_pages_only(os.environ, page.middleware(), has_login=True)
        build_interface(session, os.environ).launch(css=PAGE_STYLE + STYLE + LAYOUT, app_kwargs=guarded)


if __name__ == "__main__":
    main()
