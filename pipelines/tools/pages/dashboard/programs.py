"""Answers for programs: plain values for JSON, and Prometheus's text format. Pure functions."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from pipelines.features.publishing.metrics.credit.contributions import Contribution, leaderboard
from pipelines.features.publishing.metrics.credit.served import ServedDays, served_in
from pipelines.tools.pages.dashboard.alerts import Alert
from pipelines.tools.pages.dashboard.history_columns import SUMMARY_COLUMNS, HistoryColumns
from pipelines.tools.pages.dashboard.peer_table import PeerState, TrackedPeer, count_states
from pipelines.tools.pages.dashboard.swarm.swarm_snapshot import PeerFigures

SPANS = ("today", "week", "all")
FIGURES = tuple(name for name in PeerFigures.__dataclass_fields__ if name not in ("suspects", "epoch"))
MAX_POINTS = 2000
PREFIX = "dalle_collab"


def board_rows(
    days: Mapping[tuple[str, str], Contribution], served: ServedDays, span: str, now: float
) -> list[dict[str, Any]]:
    """Return the users who contributed in a span of `SPANS` (UTC), most samples first, then most audited candidates.

    A row has `username, samples, hours, candidates`. Raises ValueError for any other span.
    """
    if span not in SPANS:
        raise ValueError(f"span is {span!r}; expected one of {', '.join(SPANS)}.")
    users = leaderboard(days, now, len(days))
    candidates = served_in(served, span, now)
    rows = [
        dict(username=user["username"], samples=user[f"samples_{span}"], hours=user[f"hours_{span}"]) for user in users
    ]
    known = {row["username"] for row in rows}
    rows += [dict(username=user, samples=0, hours=0.0) for user in candidates if user not in known]
    counted = [row | dict(candidates=candidates.get(row["username"], 0)) for row in rows]
    return sorted(
        (row for row in counted if row["samples"] > 0 or row["candidates"] > 0),
        key=lambda row: (-row["samples"], -row["candidates"], row["username"]),
    )


def peer_values(one: TrackedPeer) -> dict[str, object]:
    """Return a peer as plain values."""
    peer, figures = one.peer, one.peer.figures
    names = ("key", "peer_id", "username", "device", "package_version", "client_mode", "epoch", "samples_per_second")
    return (
        {name: getattr(peer, name) for name in names}
        | dict(state=str(one.state), first_seen=one.first_seen, last_seen=one.last_seen)
        | {name: getattr(figures, name) if figures else None for name in FIGURES if name not in names}
        | dict(num_impossible=peer.num_impossible)
    )


def history_values(history: HistoryColumns, first: float, last: float, max_points: int) -> dict[str, list[float]]:
    """Return the columns between two shares of the epochs, in percent, thinned to every n-th point."""
    shown = history.window("epoch", first, last)
    step = max(1, math.ceil(len(shown) / max(1, min(MAX_POINTS, max_points))))
    # Counted from the end: the newest point is always included.
    return {name: shown.columns[name][::-1][::step][::-1].tolist() for name in SUMMARY_COLUMNS}


def prometheus_text(
    *,
    run: str,
    sources: Mapping[str, bool],
    figures: Mapping[str, float | None],
    peers: Mapping[str, TrackedPeer],
    alerts: Sequence[Alert],
    contributions: Mapping[str, int],
) -> str:
    """Return all figures in Prometheus's text format, version 0.0.4.

    `sources` says which sources answer; `figures` are gauges of the run; `contributions` are samples by user.
    """
    states = count_states(peers)
    alive = [one for one in peers.values() if one.state is not PeerState.GONE]
    families = [
        ("up", "gauge", "Whether a data source answers.", [({"source": k}, v) for k, v in sources.items()]),
        *((name, "gauge", f"{name} of the newest epoch.", [({}, value)]) for name, value in figures.items()),
        ("peers", "gauge", "Training peers by state.", [({"state": str(s)}, states[s]) for s in PeerState]),
        (
            "peer_samples_per_second",
            "gauge",
            "Speed of a peer.",
            [({"peer": one.peer.key, "user": one.peer.username}, one.peer.samples_per_second) for one in alive],
        ),
        (
            "user_samples_total",
            "counter",
            "Claimed samples that others bear out, by user.",
            [({"user": user}, samples) for user, samples in contributions.items()],
        ),
        ("alert", "gauge", "Active alerts.", [({"kind": alert.kind}, 1) for alert in alerts]),
    ]
    lines = []
    for name, kind, help_text, samples in families:
        lines += [f"# HELP {PREFIX}_{name} {help_text}", f"# TYPE {PREFIX}_{name} {kind}"]
        lines += [
            f"{PREFIX}_{name}{{{_labels({'run': run} | labels)}}} {_number(value)}"
            for labels, value in samples
            if value is not None
        ]
    return "\n".join(lines) + "\n"


def _labels(labels: Mapping[str, str]) -> str:
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())


def _escaped(value: str) -> str:
    """Escape as the text format requires: backslash, quotation mark, line feed."""
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return repr(int(value)) if float(value).is_integer() and abs(value) < 2**53 else repr(float(value))
