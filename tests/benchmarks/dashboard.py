"""The dashboard with a large run: how long until a browser shows it, and until it answers a click.

Usage: python tests/benchmarks/dashboard.py [--quick]

A recorded history on an embedded Hub and the signed records of a crowd in a real DHT; the Space is started from its
bundle. "Peer" is the plain alternative for the same curves: all points as JSON, bytes that the browser would be sent.
"""

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from crowd import crowd
from huggingface_hub import HfApi
from measurement import Row, median_seconds, write_results
from recorded_run import publish_recorded_run, recorded_history

from hub_tools.local_hub import LocalHub
from hub_tools.publishing.space_bundling import bundle_space
from pipelines.pages.dashboard.charts import charts_html
from pipelines.pages.dashboard.dashboard import run_charts
from pipelines.pages.dashboard.history_columns import AXES, HistoryColumns
from pipelines.pages.dashboard.hub_reading import HubView
from pipelines.training.run.training_run import TrainingRun

ADDRESS = re.compile(r"Running on local URL:\s+(http://\S+)")
RUN = "alice/large-run"


def large_run(**changes: Any) -> TrainingRun:
    """Return the settings of a run of the paper's length."""
    return TrainingRun(
        run_id="large", model_config={}, dataset_repository="made/up", dataset_revision="none", **changes
    )


def measure_drawing(num_epochs: int) -> list[Row]:
    """Time and bytes of all curves of a whole history, beside the points themselves as JSON."""
    history = HistoryColumns.from_points(recorded_history(num_epochs, time.time()), time.time())
    view = HubView(run=large_run(), history=history)

    def draw() -> str:
        return charts_html(run_charts(view, history.window("epoch", 0, 100), "epoch"))

    points = {name: values.tolist() for name, values in history.columns.items() if name not in AXES[1:]}
    seconds = median_seconds(draw, 9)
    plain_seconds = median_seconds(lambda: json.dumps(points), 5)
    case = f"{num_epochs} epochs, 7 curves"
    sizes = (len(draw().encode()) / 1e3, len(json.dumps(points)) / 1e3)
    return [
        Row(
            case=case,
            metric="time to draw, beside JSON of all points",
            unit="ms",
            ours=1e3 * seconds,
            peer=1e3 * plain_seconds,
        ),
        Row(
            case=case, metric="sent to the browser, beside JSON of all points", unit="kB", ours=sizes[0], peer=sizes[1]
        ),
    ]


def measure_page(num_epochs: int, num_peers: int, repeats: int) -> list[Row]:
    """First paint of the whole page and answers to clicks, in headless Chromium on this machine."""
    with tempfile.TemporaryDirectory() as name, LocalHub(Path(name) / "hub") as hub:
        token, run = hub.create_user("alice"), large_run()
        with crowd(run.swarm_id, num_peers, run.progress_expiration_seconds, Path(name) / "crowd.log") as entry:
            publish_recorded_run(
                HfApi(endpoint=hub.endpoint, token=token),
                RUN,
                run.replace(entry_addresses=[entry]),
                num_epochs=num_epochs,
                num_users=num_peers,
                end=time.time(),
                checkpoints=range(1000, num_epochs, 1000),
            )
            started = time.perf_counter()
            with started_space(Path(name), {**hub.environment(), "RUN": RUN}) as address:
                start_seconds = time.perf_counter() - started
                seen_seconds = until(lambda: len(answer(address, "api/peers")) >= num_peers)
                until(lambda: answer(address, "api/run")["epoch"] >= num_epochs)
                figures = browse(address, repeats)
    case = f"{num_epochs} epochs, {num_peers} peers"
    figures = {"Space starts": start_seconds, "all peers are seen after the start": seen_seconds} | figures
    return [Row(case=case, metric=metric, unit="s", ours=seconds) for metric, seconds in figures.items()]


def browse(address: str, repeats: int) -> dict[str, float]:
    """Return medians over fresh pages: seconds until the page shows all curves, and until clicks are answered."""
    from playwright.sync_api import sync_playwright

    found: dict[str, list[float]] = {}
    executable = shutil.which("chromium") or shutil.which("chromium-browser")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=executable, args=["--no-sandbox", "--disable-gpu"])
        for _ in range(repeats):
            page = browser.new_page(viewport=dict(width=1280, height=900))

            def measured(metric: str, act: Callable[[], Any], sign: str, page: Any = page) -> None:
                begun = time.perf_counter()
                act()
                page.wait_for_function(sign, polling="raf", timeout=60_000)
                found.setdefault(metric, []).append(time.perf_counter() - begun)

            measured(
                "all curves are painted",
                lambda page=page: page.goto(address),
                "document.querySelectorAll('.chart svg').length === 7",
            )
            label = "document.querySelector('.chart svg').getAttribute('aria-label')"
            measured(
                "curves follow another axis",
                lambda page=page: page.get_by_label("time (UTC)").check(),
                f"!{label}.includes('from epoch')",
            )
            page.get_by_role("radio", name="epochs").check()
            page.wait_for_function(f"{label}.includes('from epoch 1 ')")
            slider = page.get_by_label("number input for From (% of the history)")
            slider.fill("50")
            measured(
                "curves follow the range",
                lambda slider=slider: slider.press("Enter"),
                f"!{label}.includes('from epoch 1 ')",
            )
            measured(
                "peers are listed",
                lambda page=page: page.get_by_role("tab", name="Peers").click(),
                "[...document.querySelectorAll('caption')].some(c => c.innerText.includes('page 1 of'))",
            )
            measured(
                "peers are searched",
                lambda page=page: page.get_by_label("Search").fill("volunteer-01"),
                "[...document.querySelectorAll('caption')].some(c => c.innerText.includes('rows 1–10 of 10 of'))",
            )
            measured(
                "leaderboard is shown",
                lambda page=page: page.get_by_role("tab", name="Leaderboard").click(),
                "[...document.querySelectorAll('caption')].some(c => c.innerText.includes('users'))",
            )
            page.close()
        browser.close()
    return {metric: float(np.median(seconds)) for metric, seconds in found.items()}


@contextmanager
def started_space(folder: Path, environment: dict[str, str]) -> Iterator[str]:
    """Start the Space from its bundle for the length of the block; yield its address."""
    bundle_space("training_dashboard", folder / "space")
    environment = {**os.environ, **environment, "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "app.py"]
    with subprocess.Popen(
        command, cwd=folder / "space", env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            yield next(filter(None, map(ADDRESS.search, iter(process.stdout.readline, ""))))[1]
        finally:
            os.killpg(process.pid, signal.SIGTERM)


def answer(address: str, path: str) -> Any:
    """Return what the Space's plain HTTP says."""
    with urllib.request.urlopen(f"{address.rstrip('/')}/{path}", timeout=60) as response:
        return json.load(response)


def until(is_so: Callable[[], bool], seconds: float = 300.0) -> float:
    """Wait until something is so; return the seconds that it took."""
    begun = time.perf_counter()
    while not is_so():
        if time.perf_counter() - begun > seconds:
            raise TimeoutError(f"still not so after {seconds} s")
        time.sleep(0.2)
    return time.perf_counter() - begun


def main() -> None:
    """Measure all, print the table, write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="50 peers, 3000 epochs, two visits")
    quick = parser.parse_args().quick
    num_epochs, num_peers, repeats = (3_000, 50, 2) if quick else (30_000, 500, 5)
    rows = measure_drawing(num_epochs) + measure_page(num_epochs, num_peers, repeats)
    print(f"written to {write_results('dashboard', rows, is_quick=quick)}")


if __name__ == "__main__":
    main()
