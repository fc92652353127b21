"""Take a picture of every page of a run in each state of its life: wide and narrow, light and dark.

    python tests/long/pictures_of_pages.py [--output pages-output] [--short] [--state alive ...]

The demo runs first, unless it has in that folder: it is the run that is over. A second run of the demo's dataset is
looked at before anybody trains, while two peers do, while both are frozen and after they were killed; a repository
without settings is the run that cannot be reached. Look at OUTPUT/index.html. OUTPUT/inference.ipynb is the notebook
with what it shows of the demo's model, as it is kept in spaces/text_to_image_demo. OUTPUT/pages.json has what axe finds
and when each page shows its first content, beside an empty page of Gradio; a serious finding is exit code 3.
"""

import argparse
import contextlib
import json
import os
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import nbformat
from huggingface_hub import HfApi, constants
from playwright.sync_api import Browser, Page, sync_playwright
from rich.console import Console

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
from browsing import CHROMIUM, SIZES, serious_findings
from notebooks import executed
from running_programs import wait_for

from hub_tools.atomic_files import write_text_whole
from hub_tools.local_hub import LocalHub
from hub_tools.printing.marked_up import escaped
from hub_tools.processes.event_files import read_events
from pipelines.features.publishing.metrics.run_state import RunPhase
from pipelines.tools.demo.free_ports import take_ports
from pipelines.tools.demo.running.programs import VARIABLE, Program, stop_all
from pipelines.tools.demo.running_spaces import RunningSpaces, SpacesPlan, opened_hub
from pipelines.tools.demo.scenes_demo import run_scenes_demo
from pipelines.tools.demo.stages import Stages
from pipelines.tools.process_table import processes_with_variable, signal_processes

LIVE, OVER, NOWHERE = "demo/live", "demo/scenes", "demo/nothing"
TRAINERS = ("alice", "bob")
STATES = [phase.value for phase in RunPhase]
LIVE_STATES = STATES[:4]
HOST = "/ip4/127.0.0.1/tcp/0"
SECONDS_TO_SETTLE, SECONDS_WITHOUT_CHANGE = 60.0, 3.0
SECONDS_UNTIL_MISSED = 90.0
"""After which the records of peers that say nothing have ended, and an epoch is late."""

SECONDS_LATER = 7_200
"""The landing page takes a run for stalled by the age of what was published: it is shown two hours later."""

NOTEBOOK = Path(__file__).parents[2] / "spaces" / "text_to_image_demo" / "inference.ipynb"
PROMPT = "a small yellow heart in the centre of a black background"

EMPTY_PAGE = """
import gradio
with gradio.Blocks() as page:
    gradio.Markdown("# Empty")
page.launch(server_name="127.0.0.1", server_port={port}, quiet=True)
"""


class LiveRun:
    """A run of the demo's dataset, and its peers as processes."""

    def __init__(self, stages: Stages, hub: LocalHub) -> None:
        self._stages, self._hub, self._api = stages, hub, HfApi(hub.endpoint, token=hub.token_of("organiser"))
        self._folder = stages.output / "work" / "live"
        self._folder.mkdir(parents=True, exist_ok=True)
        self._auxiliary: Program | None = None
        self._trainers: list[Program] = []

    def create(self) -> None:
        """Create it anew."""
        for events in self._folder.glob("*.jsonl"):
            events.unlink()
        self._api.delete_repo(LIVE, missing_ok=True)
        settings = dict(num_epochs=400, checkpoint_interval_epochs=4, reel_interval_epochs=4, local_steps=4)
        self._stages.run(
            "dalle-collab", "run", "create", LIVE, "--dataset", f"{OVER}-codes", "--codec", f"{OVER}-codec",
            "--clip", f"{OVER}-clip", "--tokenizer", str(self._stages.output / "work" / "tokenizer"),
            "--preset", "demo", *(part for item in settings.items() for part in ("--set", "{}={}".format(*item))),
            token=self._hub.token_of("organiser"), log_name="live-run",
        )  # fmt: skip
        self._auxiliary = self._start("auxiliary", "organiser", "run", "assist", LIVE)

    def reach(self, epoch: int = 12) -> None:
        """Let two peers train until this epoch's checkpoint is published: pictures of those before it are drawn."""
        self._trainers = [
            self._start(name, name, "join", LIVE, "--cpu-threads", "1", "--device", "cpu", "--micro-batch-size", "48")
            for name in TRAINERS
        ]
        file = self._folder / "auxiliary.jsonl"

        def is_published() -> bool:
            return any(look.get("published_epoch", 0) >= epoch for look in read_events(file))

        wait_for(lambda: file.exists() and is_published(), f"a checkpoint of epoch {epoch}", 900)

    def freeze_trainers(self) -> None:
        """Stop all processes of the trainers."""
        for program in self._trainers:
            signal_processes(processes_with_variable(VARIABLE, program.mark), signal.SIGSTOP)

    def kill_trainers(self) -> None:
        """End them as a failure of power would."""
        while self._trainers:
            self._trainers.pop().kill()

    def end(self) -> None:
        """End all that runs."""
        self.kill_trainers()
        if self._auxiliary is not None:
            stop_all([self._auxiliary])

    def _start(self, name: str, user: str, *command: str) -> Program:
        events = ("--events", str(self._folder / f"{name}.jsonl"))
        return self._stages.start(
            "dalle-collab", *command, "--host", HOST, *events, token=self._hub.token_of(user), log_name=f"live-{name}"
        )


class Camera:
    """Takes the pictures and notes what is wrong with the pages."""

    def __init__(self, folder: Path, browser: Browser) -> None:
        self._folder, self._browser = folder, browser
        self.findings: dict[str, list[str]] = {}

    def take_all(self, state: str, addresses: Mapping[str, str]) -> None:
        """Look at all pages in both sizes and both schemes."""
        for name, address in addresses.items():
            for size, (width, height) in SIZES.items():
                for scheme in ("light", "dark"):
                    with self._opened(address, width, height, scheme) as page:
                        if name == "landing_page" and state in (RunPhase.STALLED, RunPhase.NOBODY):
                            page.clock.set_system_time(time.time() + SECONDS_LATER)
                        page.goto(address)
                        settle(page)
                        file = f"{state.replace(' ', '-')}_{name}_{size}_{scheme}.png"
                        page.screenshot(path=str(self._folder / file), full_page=True)
                        self.findings[file] = serious_findings(page)
                        if page.evaluate("document.documentElement.scrollWidth > window.innerWidth"):
                            self.findings[file].append("wider than the screen")

    def first_contents(self, addresses: Mapping[str, str], times: int = 5) -> dict[str, float]:
        """Return when each page shows its first content, in seconds, median; the pages take turns."""
        seen: dict[str, list[float]] = {name: [] for name in addresses}
        paint = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
        for _ in range(times):
            for name, address in addresses.items():
                with self._opened(address, *SIZES["desktop"], "light") as page:
                    page.goto(address)
                    page.wait_for_function(paint)
                    seen[name].append(page.evaluate(paint) / 1000)
        return {name: round(statistics.median(values), 3) for name, values in seen.items()}

    @contextlib.contextmanager
    def _opened(self, address: str, width: int, height: int, scheme: Any) -> Iterator[Page]:
        context = self._browser.new_context(viewport=dict(width=width, height=height), color_scheme=scheme)
        try:
            yield context.new_page()
        finally:
            context.close()


def settle(page: Page) -> None:
    """Wait until the page's text stays the same, or for a minute."""
    text, since, begun = "", time.monotonic(), time.monotonic()
    while time.monotonic() - begun < SECONDS_TO_SETTLE and time.monotonic() - since < SECONDS_WITHOUT_CHANGE:
        page.wait_for_timeout(250)
        now = page.evaluate("document.body.innerText").strip()
        if not now or now != text:
            text, since = now, time.monotonic()


@contextlib.contextmanager
def empty_page(stages: Stages) -> Iterator[str]:
    """Serve a page of Gradio with nothing on it."""
    (port,) = take_ports(8401, 1)
    program = stages.start_program([sys.executable, "-c", EMPTY_PAGE.format(port=port)], log_name="empty-page")
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        stop_all([program])


def write_notebook(folder: Path, environment: Mapping[str, str]) -> None:
    """Store the notebook that draws with what it shows of the run that is over."""
    settings = dict(MODEL_REPOSITORY=OVER, PROMPT=PROMPT, NUM_CANDIDATES="16", KEEP="4")
    shown = executed(NOTEBOOK, {**os.environ, **environment, **settings}, folder)
    for cell in shown.cells:
        if cell.cell_type == "code":  # what libraries warn of is of this machine
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
            for output in cell.outputs:
                output.get("data", {}).pop("image/jpeg", None)  # the same picture again
    write_text_whole(folder / NOTEBOOK.name, nbformat.writes(shown) + "\n")


def write_index(folder: Path, states: list[str], report: Mapping[str, Any]) -> None:
    """Write a page that shows all pictures, a state in each part, with what is wrong below them."""
    parts = []
    for state in states:
        files = sorted(folder.glob(f"{state.replace(' ', '-')}_*.png"))
        figures = "".join(
            f'<figure><a href="{file.name}"><img loading="lazy" src="{file.name}"></a><figcaption>{file.stem}'
            f"<br>{escaped('; '.join(report['findings'].get(file.name, ())))}</figcaption></figure>"
            for file in files
        )
        parts.append(f"<h2>{state}</h2><div>{figures}</div>")
    style = "div{display:flex;flex-wrap:wrap;gap:1rem}img{height:30rem;border:1px solid #bbb}figure{margin:0}"
    head = f"<!doctype html><meta charset=utf-8><title>Pages of a run</title><style>{style}</style>"
    write_text_whole(
        folder / "index.html", head + "".join(parts) + f"<pre>{escaped(json.dumps(report, indent=1))}</pre>"
    )
    write_text_whole(folder / "pages.json", json.dumps(report, indent=2) + "\n")


def main() -> int:
    """Take the pictures; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("pages-output"))
    parser.add_argument("--short", action="store_true", help="a short demo, whose pictures are poor")
    parser.add_argument("--state", action="append", choices=STATES, help="only this one; may be given several times")
    arguments = parser.parse_args()
    constants.HF_HUB_DISABLE_XET = True
    states, folder, demo = arguments.state or list(STATES), arguments.output, arguments.output / "demo"
    console = Console()
    run_scenes_demo(demo, console, is_short=arguments.short)
    report: dict[str, Any] = dict(findings={}, first_content_seconds={})
    with contextlib.ExitStack() as stack:
        driver = stack.enter_context(sync_playwright())
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        stack.callback(browser.close)
        camera = Camera(folder, browser)
        stages = Stages(demo, {}, console)
        hub = stack.enter_context(opened_hub(demo, stages.lines, is_online=False))
        stages.environment = hub.environment()
        (demo / "spaces-of-states").mkdir(exist_ok=True)
        spaces_of = partial(
            SpacesPlan, folder=demo / "spaces-of-states", endpoint=hub.endpoint, token=hub.token_of("visitor")
        )

        def look(state: str, run: str, addresses: Mapping[str, str]) -> None:
            with stages.lines.doing(f"Looking at a run that is {state}"):
                camera.take_all(state, {**addresses, "hub": f"{hub.endpoint}/{run}"})

        if "over" in states:
            write_notebook(folder, hub.environment())
            with RunningSpaces(spaces_of(run=OVER), stages) as spaces, empty_page(stages) as empty:
                look("over", OVER, spaces.addresses)
                pages = {**spaces.addresses, "empty page of Gradio": empty}
                report["first_content_seconds"] = camera.first_contents(pages)
        if "unreachable" in states:
            with RunningSpaces(spaces_of(run=NOWHERE), stages) as spaces:
                look("unreachable", NOWHERE, spaces.addresses)
        if set(states) & set(LIVE_STATES):
            live = LiveRun(stages, hub)
            stack.callback(live.end)
            live.create()
            steps: dict[str, Callable[[], None]] = {
                "not begun": lambda: None,
                "alive": live.reach,
                "stalled": live.freeze_trainers,
                "nobody here": live.kill_trainers,
            }
            with RunningSpaces(spaces_of(run=LIVE), stages) as spaces:
                for state, step in steps.items():
                    step()
                    if state in ("stalled", "nobody here"):
                        time.sleep(SECONDS_UNTIL_MISSED)
                    if state in states:
                        look(state, LIVE, spaces.addresses)
        report["findings"] = {file: found for file, found in camera.findings.items() if found}
    write_index(folder, states, report)
    console.print(f"Look at {folder / 'index.html'}.")
    return 3 if report["findings"] else 0


if __name__ == "__main__":
    sys.exit(main())
