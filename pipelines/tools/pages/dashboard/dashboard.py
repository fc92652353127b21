"""The dashboard: background readers, and views of what they know. Every view answers at once."""

import contextlib
import dataclasses
import math
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hub_tools.counted import date, nats
from hub_tools.endpoint import current_endpoint
from pipelines.core.optimizers.schedule import learning_rate
from pipelines.core.run.training_run import TrainingRun
from pipelines.features.publishing.metrics.epoch_summary import EpochSummary, bounded_speeds
from pipelines.features.publishing.metrics.evaluation.held_out_losses import HeldOutRow
from pipelines.features.publishing.metrics.history import append_point
from pipelines.features.publishing.metrics.run_state import RunCondition, RunFacts, RunPhase, condition_of
from pipelines.features.publishing.metrics.stalls import usual_seconds
from pipelines.features.publishing.repository.epoch_tags import epoch_tag
from pipelines.tools.pages.dashboard import page_parts, programs
from pipelines.tools.pages.dashboard.alerts import Alert, find_alerts
from pipelines.tools.pages.dashboard.charts import Chart, charts_html
from pipelines.tools.pages.dashboard.evaluation_charts import evaluation_charts
from pipelines.tools.pages.dashboard.history_columns import AXES, HistoryColumns
from pipelines.tools.pages.dashboard.hub_reading import ComparedRun, ComparedRuns, HubReader, HubView
from pipelines.tools.pages.dashboard.peer_table import TrackedPeer, alive, page_of, summarise, swarm_epoch, track
from pipelines.tools.pages.dashboard.servers import DrawnToday, complaints_html, holes, servers_html
from pipelines.tools.pages.dashboard.settings import DashboardSettings, other_run
from pipelines.tools.pages.dashboard.swarm.swarm_process import SwarmReader, SwarmView
from pipelines.tools.pages.dashboard.swarm.swarm_snapshot import AccusedServer, SeenServer, SwarmSnapshot
from pipelines.tools.pages.text import short_number

MAX_LIVE_POINTS = 5000
"""Epochs kept until the Hub has them."""

STALE_SECONDS = 30.0
NUM_SCHEDULE_POINTS = 300
MOST_SMOOTHING = 0.99
MAX_DRAWINGS = 64
"""Windows of the history whose charts are cached for the next visitor."""


@dataclass(frozen=True)
class Live:
    """What the swarm snapshots add up to. Replaced as a whole, never changed."""

    generation: int = 0
    peers: Mapping[str, TrackedPeer] = dataclasses.field(default_factory=dict)
    servers: tuple[SeenServer, ...] = ()
    accused: tuple[AccusedServer, ...] = ()
    drawn: DrawnToday = dataclasses.field(default_factory=DrawnToday)
    history: HistoryColumns = dataclasses.field(default_factory=lambda: HistoryColumns.from_points([], 0.0))
    disagreeing_since: float | None = None
    """When peers were first seen to hold different states, in seconds since 1970; None: they agree."""


class Dashboard:
    """Everything shown of one run. Use as a context manager; views may be called from many threads."""

    def __init__(self, settings: DashboardSettings) -> None:
        self.settings = settings
        self.hub = HubReader(settings.run)
        self._swarm = SwarmReader(settings.run, lambda: self.hub.view.run, self.take_look)
        self._live, self._points = Live(), list[EpochSummary]()
        self._parts, self._lock = contextlib.ExitStack(), threading.Lock()
        self._drawn_from, self._drawings = (self.hub.view, self._live.history), dict[tuple[object, ...], str]()
        self._compared = ComparedRuns()

    def __enter__(self) -> "Dashboard":
        self._parts.enter_context(self.hub)
        self._parts.enter_context(self._swarm)
        return self

    def __exit__(self, *exception: object) -> None:
        self._parts.close()

    def take_look(self, snapshot: SwarmSnapshot, run: TrainingRun) -> None:
        """Record a snapshot of the swarm; called by the one thread that polls it."""
        before = self._live
        if before.generation != run.generation:
            before, self._points = Live(generation=run.generation), []
        peers = track(before.peers, snapshot, run.sign_of_life_seconds)
        history, held = before.history, self.hub.view.history.newest_epoch
        summary = summarise(peers, snapshot.time, held)
        if summary is not None and summary["epoch"] > held:
            is_new = summary["epoch"] != history.newest_epoch
            self._note(summary)
            if is_new:
                history = HistoryColumns.from_points(self._points, snapshot.time)
        drawn = before.drawn.after(snapshot.servers, snapshot.time)
        disagree = snapshot.verdict is not None and bool(snapshot.verdict.outvoted)
        since = (before.disagreeing_since or snapshot.time) if disagree else None
        self._live = Live(run.generation, peers, snapshot.servers, snapshot.accused, drawn, history, since)

    def _note(self, summary: EpochSummary) -> None:
        """Add a view of an epoch; later views of it, with more peers, do not change when it ended."""
        if self._points and self._points[-1]["epoch"] == summary["epoch"]:
            summary = {**summary, "time": self._points[-1]["time"]}
        append_point(self._points, summary)
        del self._points[:-MAX_LIVE_POINTS]
        hub = self.hub.view.history
        if len(self._points) == 1 and len(hub):
            seconds = max(0.0, summary["time"] - float(hub.columns["time"][-1]))
            self._points[0]["epoch_seconds"] = seconds / (summary["epoch"] - hub.newest_epoch)

    # For people.

    def headline(self) -> str:
        """Return the run's name and newest figures as HTML."""
        return page_parts.headline_html(self.settings, self._headline())

    def now(self) -> str:
        """Return who trains now, since when, and the newest picture of the reel as HTML."""
        peers = sorted(alive(self._live.peers), key=lambda one: -(one.peer.samples_per_second or 0.0))
        times = self._history().columns["time"]
        return page_parts.now_html(
            [one.peer.username for one in peers], float(times[0]) if len(times) else 0.0, self.hub.view,
            is_live=not self._swarm_problem() and self._condition().state is not RunPhase.OVER,
        )  # fmt: skip

    def notices(self) -> str:
        """Return problems and alerts as HTML."""
        state, problems = self._condition().state, self._problems()
        if state is RunPhase.OVER:  # peers that have left are expected
            problems = [(source, problem) for source, problem in problems if source != "Swarm"]
        return page_parts.notices_html(problems, self._alerts(), state)

    def charts(
        self, axis: str = "epoch", first: float = 0.0, last: float = 100.0, is_log: bool = False,
        smoothing: float = 0.0, other: str = "",
    ) -> str:  # fmt: skip
        """Return all curves between two shares of the history, in percent, as HTML.

        They are drawn with a logarithmic height where that is possible, with an exponential average whose weight of
        the past is `smoothing`, and the loss beside that of another run.
        """
        axis = axis if axis in AXES else AXES[0]
        first, last = (round(_finite(share, given), 1) for share, given in ((first, 0.0), (last, 100.0)))
        smoothing = round(min(MOST_SMOOTHING, max(0.0, _finite(smoothing, 0.0))), 2)
        try:
            other = other_run(other, self.settings.run)
        except ValueError as error:
            return page_parts.comparison_html(str(error)) + self._drawn(axis, first, last, bool(is_log), smoothing)
        compared = self._compared.get(other) if other else None
        said = page_parts.comparison_html(f"{other}: {compared.problem}") if compared and compared.problem else ""
        return said + self._drawn(axis, first, last, bool(is_log), smoothing, other, compared)

    def zoomed(self, axis: str, low: object, high: object) -> tuple[float, float]:
        """Return the shares of the history, in percent, that show [low, high] of an axis; all for anything else."""
        places = [_finite(place, math.nan, 1e12) for place in (low, high)]
        if axis not in AXES or math.isnan(sum(places)):
            return 0.0, 100.0
        return self._history().shares(axis, *places)

    def peers(self, search: str = "", page: float | None = 1, order: str = "") -> str:
        """Return one page of the peers that match a search as HTML, and who serves the model."""
        found = page_of(self._live.peers, search, int(_finite(page, 1.0)), order=order)
        peers = page_parts.peers_html(found, self._seen_at(), self._condition().state, self.hub.view.unit)
        live = self._live
        shown = servers_html(live.servers, live.drawn, self.hub.view, self.settings.run)
        return peers + shown + complaints_html(live.accused, live.servers)

    def board(self, span: str, order: str = "") -> str:
        """Return the leaderboard of a span of `programs.SPANS` as HTML."""
        rows, view = self.leaderboard_values(span), self.hub.view
        total = sum(row["samples"] for row in rows)
        is_open = view.run is None or view.run.is_open
        return page_parts.board_html(rows, span, total=total, is_open=is_open, unit=view.unit, order=order)

    def checkpoints(self) -> str:
        """Return the published checkpoints as HTML."""
        return page_parts.checkpoints_html(self.settings, self.hub.view)

    def reel(self) -> str:
        """Return the progress reel as HTML."""
        return page_parts.reel_html(self.hub.view)

    # For programs.

    def run_values(self) -> dict[str, object]:
        """Return the run's newest figures, and which sources are up."""
        problems = dict(self._problems())
        return dataclasses.asdict(self._headline()) | dict(
            run=self.settings.run,
            commit=self.hub.view.commit,
            hub_read_at=self.hub.view.read_at,
            problems=problems,
            num_auxiliaries=snapshot.num_auxiliaries if (snapshot := self._swarm.view.snapshot) else None,
        )

    def peer_values(self, search: str = "") -> list[dict[str, object]]:
        """Return all peers that match a search."""
        peers = self._live.peers
        return [programs.peer_values(one) for one in page_of(peers, search, size=max(1, len(peers))).rows]

    def server_values(self) -> list[dict[str, object]]:
        """Return who serves the model, and what."""
        return [dataclasses.asdict(server) for server in self._live.servers]

    def serving_values(self) -> dict[str, object]:
        """Return how many serve, what they have drawn today, and the layers that nobody serves, as starts and ends."""
        live = self._live
        missing = [[hole.start, hole.stop] for hole in holes(live.servers, self.hub.view)]
        return dict(
            num_servers=len(live.servers),
            drawn_today=live.drawn.number,
            since=live.drawn.since,
            missing_layers=missing,
            claims=[dataclasses.asdict(one) for one in live.accused],
        )

    def leaderboard_values(self, span: str = "all") -> list[dict[str, Any]]:
        """Return the users and their contributions; raises ValueError for an unknown span."""
        view = self.hub.view
        return programs.board_rows(view.contributions, view.served, span, time.time())

    def history_values(self, first: float = 0.0, last: float = 100.0, max_points: int = 300) -> dict[str, list[float]]:
        """Return the history's columns between two shares of it, in percent."""
        return programs.history_values(self._history(), _finite(first, 0.0), _finite(last, 100.0), max_points)

    def evaluation_values(self) -> dict[str, list[dict[str, object]]]:
        """Return the held-out losses and the figures of evaluated checkpoints, by epoch."""
        view = self.hub.view
        return dict(held_out=list(map(dict, view.evaluations)), figures=list(map(dataclasses.asdict, view.figures)))

    def alert_values(self) -> list[dict[str, object]]:
        """Return the active alerts."""
        return [dataclasses.asdict(alert) for alert in self._alerts()]

    def checkpoint_values(self) -> list[dict[str, object]]:
        """Return the published checkpoints, newest first."""
        base = f"{current_endpoint()}/{self.settings.run}/tree"
        found = sorted(self.hub.view.checkpoints.items(), reverse=True)
        return [dict(epoch=epoch, commit=commit, url=f"{base}/{epoch_tag(epoch)}") for epoch, commit in found]

    def metrics_text(self) -> str:
        """Return all figures for Prometheus."""
        problems, figures = dict(self._problems()), dataclasses.asdict(self._headline())
        return programs.prometheus_text(
            run=self.settings.run,
            sources={name: name not in problems for name in ("Hub", "Swarm")},
            figures={name: value for name, value in figures.items() if name not in ("num_peers", "unit", "condition")},
            peers=self._live.peers,
            alerts=self._alerts(),
            contributions={row["username"]: row["samples"] for row in self.leaderboard_values()},
        )

    def picture(self, name: str) -> Path:
        """Return the file of a picture of the reel; raises FileNotFoundError for any other name."""
        return self.hub.picture(name)

    # Used by both.

    def _history(self) -> HistoryColumns:
        return self.hub.view.history.followed_by(self._live.history)

    def _headline(self) -> page_parts.Headline:
        view, history, peers = self.hub.view, self._history(), alive(self._live.peers)
        newest = {name: float(values[-1]) for name, values in history.columns.items()} if len(history) else {}
        speeds = bounded_speeds([one.peer.samples_per_second or 0.0 for one in peers])
        is_live = not self._swarm_problem()
        condition = self._condition()
        is_live &= condition.state in (RunPhase.ALIVE, RunPhase.STALLED)
        evaluation: HeldOutRow | dict[str, None] = view.evaluations[-1] if view.evaluations else {}
        return page_parts.Headline(
            epoch=self._reached(),
            num_epochs=view.run.num_epochs if view.run else None,
            loss=newest.get("loss"),
            evaluation_loss=evaluation.get("loss"),
            evaluation_epoch=evaluation.get("epoch"),
            evaluation_low=evaluation.get("low"),
            evaluation_high=evaluation.get("high"),
            num_held_out=evaluation.get("num_records"),
            samples_per_second=sum(speeds) if is_live else newest.get("samples_per_second"),
            num_peers=len(peers) if is_live or condition.state is RunPhase.NOBODY else None,
            epoch_seconds=usual_seconds(history.columns["epoch_seconds"].tolist()) or None,
            condition=condition,
            unit=view.unit,
            newest_pass=view.newest_pass,
        )

    def _reached(self) -> int:
        """Return the newest epoch that history, peers or checkpoints have."""
        checkpoint = max(self.hub.view.checkpoints, default=0)
        return max(self._history().newest_epoch, swarm_epoch(alive(self._live.peers)), checkpoint)

    def _condition(self) -> RunCondition:
        view, history, reached = self.hub.view, self._history(), self._reached()
        facts = RunFacts(
            num_epochs=view.run.num_epochs if view.run else None,
            epoch=reached,
            ended_at=float(history.columns["time"][-1]) if len(history) and history.newest_epoch == reached else None,
            usual_seconds=usual_seconds(history.columns["epoch_seconds"].tolist()),
            num_peers=None if self._swarm_problem() else len(alive(self._live.peers)),
        )
        task = view.run.task if view.run else ""
        return condition_of(facts, self.settings.run, task=task, now=time.time())

    def _problems(self) -> list[tuple[str, str]]:
        problems = [("Hub", self.hub.view.problem), ("Swarm", self._swarm_problem())]
        return [(source, problem) for source, problem in problems if problem]

    def _swarm_problem(self) -> str:
        view: SwarmView = self._swarm.view
        if view.snapshot is None:
            return view.problem
        since = f" The figures of peers are of {date(view.snapshot.time)}."
        if view.problem:
            return view.problem + since
        return "" if time.time() - view.snapshot.time < STALE_SECONDS else f"It does not answer.{since}"

    def _alerts(self) -> list[Alert]:
        run, snapshot = self.hub.view.run, self._swarm.view.snapshot
        if run is None:
            return []
        return find_alerts(
            run,
            self._history(),
            self._live.peers,
            snapshot.verdict if snapshot else None,
            num_auxiliaries=snapshot.num_auxiliaries if snapshot else 0,
            state=self._condition().state,
            disagreeing_since=self._live.disagreeing_since,
            is_live=not self._swarm_problem(),
            now=time.time(),
        )

    def _seen_at(self) -> float:
        snapshot = self._swarm.view.snapshot
        return snapshot.time if snapshot else time.time()

    def _drawn(
        self, axis: str, first: float, last: float, is_log: bool, smoothing: float,
        other: str = "", compared: ComparedRun | None = None,
    ) -> str:  # fmt: skip
        """Draw once for all visitors who view the same window."""
        view, live = self.hub.view, self._live.history
        window = (axis, first, last, is_log, smoothing, other, compared and compared.read_at)
        with self._lock:
            is_same = self._drawn_from[0] is view and self._drawn_from[1] is live
            if not is_same or len(self._drawings) >= MAX_DRAWINGS:
                self._drawn_from, self._drawings = (view, live), {}
            if window not in self._drawings:
                history = view.history.followed_by(live)
                charts = run_charts(view, history.window(axis, first, last), axis)
                if compared is not None and len(compared.history) and len(history):
                    loss = _loss_beside(history, compared.history, axis)
                    charts[0] = dataclasses.replace(charts[0], other=loss, other_title=other)
                look = dict(is_log=is_log, smoothing=smoothing)
                self._drawings[window] = charts_html([dataclasses.replace(chart, **look) for chart in charts])
            return self._drawings[window]


def run_charts(view: HubView, shown: HistoryColumns, axis: str) -> list[Chart]:
    """Return the curves of a part of the history along an axis."""
    along, columns = shown.columns[axis], shown.columns
    evaluated = [row["time"] if axis == "time" else row["epoch"] for row in view.evaluations]
    evaluations = np.array(evaluated, dtype=np.float64), np.array([row["loss"] for row in view.evaluations])
    is_known = columns["epoch_seconds"] > 0  # of the first epoch nobody knows when it began
    charts = [
        Chart(
            title="Loss", unit="nats", axis=axis, along=along, values=columns["loss"], from_zero=False,
            write=nats, write_level=short_number,
            dots=evaluations if len(evaluations[0]) else None, dots_title="held out",
        ),
        Chart(title="Throughput", unit=f"{view.unit}/s", axis=axis, along=along, values=columns["samples_per_second"]),
        Chart(
            title="Active peers", unit="", axis=axis, along=along, values=columns["num_peers"], counts_things=True,
        ),
        Chart(
            title="Smallest share averaged", unit="", axis=axis, along=along, values=columns["share_averaged"],
            write=lambda share: f"{100 * share:.4g} %",
        ),
        Chart(title="Longest averaging round", unit="s", axis=axis, along=along, values=columns["round_seconds"]),
        Chart(
            title="Time per epoch", unit="s", axis=axis, along=along[is_known],
            values=columns["epoch_seconds"][is_known],
        ),
    ]  # fmt: skip
    if view.run is not None:
        step = max(1, len(along) // NUM_SCHEDULE_POINTS)
        # Counted from the end, so that the newest epoch is included.
        epochs, places = columns["epoch"][::-1][::step][::-1], along[::-1][::step][::-1]
        rates = np.array([learning_rate(view.run, int(epoch)) for epoch in epochs])
        charts.insert(1, Chart(title="Learning rate", unit="", axis=axis, along=places, values=rates))
    return charts[:1] + evaluation_charts(view, shown, axis) + charts[1:]


def _loss_beside(history: HistoryColumns, other: HistoryColumns, axis: str) -> tuple[np.ndarray, np.ndarray]:
    """Return another run's loss along an axis of this one; in time as if both had begun together."""
    along = other.columns[axis]
    if axis == "time":
        along = along - along[0] + history.columns[axis][0]
    return along, other.columns["loss"]


def _finite(value: object, otherwise: float, most: float = 1e9) -> float:
    """Return a number sent by a visitor, or a default if it is not one."""
    return float(value) if isinstance(value, (int, float)) and abs(value) < most else otherwise
