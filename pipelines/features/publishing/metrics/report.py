"""The report of a run as Markdown: all settings, the history, who took part, what it cost. Pure functions."""

import dataclasses
import itertools
import json
import math
from collections.abc import Mapping, Sequence

from hub_tools.counted import date, file_size, nats
from hub_tools.printing.marked_up import code, markdown_table, plain
from pipelines.features.publishing.metrics.credit.contributors import contributor_table
from pipelines.features.publishing.metrics.epoch_summary import EpochSummary
from pipelines.features.publishing.metrics.evaluation.figure_table import evaluation_section
from pipelines.features.publishing.metrics.evaluation.held_out_losses import held_out_loss, perplexity
from pipelines.features.publishing.metrics.run_archive import RunArchive

NUM_COURSE_ROWS = 20
NUM_CHECKPOINT_ROWS = 20
NO_HISTORY = (
    "No history was published: the run has no auxiliary peer, or none that has seen an epoch. What depends on it "
    "(loss, peers, speed, bytes) is not known."
)


def report_markdown(record: RunArchive, *, loss_curve: str | None, now: float) -> str:
    """Return the report; `loss_curve` is the name of the picture next to it, `now` is in seconds since 1970."""
    sections = [
        _summary(record, now),
        _course(record, loss_curve),
        evaluation_section(record.figures),
        _contributors(record),
        _data(record),
        _costs(record),
        _checkpoints(record),
        _settings("Settings shared by all peers", _shared_settings(record)),
        _settings("Model", record.run.model_config),
    ]
    return "\n\n".join(filter(None, sections)) + "\n"


def total_bytes(history: Sequence[EpochSummary]) -> int:
    """Return the bytes that all peers have sent. Counted since each peer's start: a drop is a peer leaving."""
    total, before = 0, 0
    for point in history:
        sent = point.get("bytes_sent") or 0
        total += max(0, sent - before)
        before = sent
    return total


def peer_hours(history: Sequence[EpochSummary], longest_gap_seconds: float) -> float:
    """Return the hours of all peers together; a gap between epochs counts as at most `longest_gap_seconds`."""
    seconds = 0.0
    for before, point in itertools.pairwise(history):
        gap = min(longest_gap_seconds, max(0.0, point["time"] - before["time"]))
        seconds += gap * point["num_peers"]
    return seconds / 3600


def _summary(record: RunArchive, now: float) -> str:
    run, history = record.run, record.history
    reached = max([point["epoch"] for point in history] + [record.epoch or 0])
    rows = [
        ("epochs", f"{reached:,} of {run.num_epochs:,}"),
        (f"{run.unit} of these epochs, at least", f"{reached * run.samples_per_epoch:,}"),
        ("finished", "yes" if reached >= run.num_epochs else "no"),
    ]
    if history:
        first, last = history[0], history[-1]
        rows += [
            ("from", date(first["time"])),
            ("to", date(last["time"])),
            (
                "training loss (nats)",
                f"{nats(first['loss'])} at epoch {first['epoch']:,}, {nats(last['loss'])} at the end",
            ),
            ("most peers at a time", str(max(point["num_peers"] for point in history))),
            ("fastest epoch", f"{max(point['samples_per_second'] for point in history):,.1f} {run.unit} per second"),
        ]
    if record.contributors:
        rows.append((f"{run.unit} claimed", f"{sum(one.samples for one in record.contributors):,}"))
    if record.evaluations:
        best = min(record.evaluations, key=lambda point: point["loss"])
        rows.append(("best held-out loss (nats)", held_out_loss(best)))
        rows.append(("newest held-out loss (nats)", held_out_loss(record.evaluations[-1])))
        if run.unit == "tokens":
            rows.append(("best held-out perplexity", f"{perplexity(best['loss']):,.1f}"))
    title = f"# Report of the training run {plain(record.repository)}\n\nWritten {date(now)}."
    return f"{title}\n\n{markdown_table(('', ''), rows)}"


def _course(record: RunArchive, loss_curve: str | None) -> str:
    if not record.history:
        return f"## Progress\n\n{NO_HISTORY}"
    step = max(1, math.ceil(len(record.history) / NUM_COURSE_ROWS))
    points = [*record.history[:-1:step], record.history[-1]]
    held_out = {point["epoch"]: point["loss"] for point in record.evaluations}
    rows = [
        (
            point["epoch"],
            nats(point["loss"]),
            _newest(held_out, point["epoch"]),
            point["num_peers"],
            f"{point['samples_per_second']:.1f}",
            f"{point['share_averaged']:.1%}",
            f"{point['round_seconds']:.1f}",
        )
        for point in points
    ]
    unit = record.run.unit
    heads = (
        "epoch", "loss (nats)", "held out (nats)", "peers", f"{unit}/s", "smallest share averaged", "longest round (s)",
    )  # fmt: skip
    picture = f"![loss curve]({loss_curve})\n\n" if loss_curve else ""
    worst = min(record.history, key=lambda point: point["share_averaged"])
    note = f"The worst round: {worst['share_averaged']:.1%} of the vector was averaged, in epoch {worst['epoch']}."
    return f"## Progress\n\n{picture}{markdown_table(heads, rows)}\n\n{note}"


def _contributors(record: RunArchive) -> str:
    if not record.contributors:
        gap = 10 * record.run.averaging_timeout_seconds
        known = (
            f"The history makes it {peer_hours(record.history, gap):,.1f} peer hours in all." if record.history else ""
        )
        return f"## Contributors\n\nNo contributions by name were published. {known}".rstrip()
    return f"## Contributors\n\n{contributor_table(record.contributors, record.run.unit)}"


def _data(record: RunArchive) -> str:
    run = record.run
    size = "no longer known" if record.dataset_bytes is None else file_size(record.dataset_bytes)
    rows = [("dataset", plain(run.dataset_repository)), ("revision", code(run.dataset_revision)), ("shards", size)]
    rows += [
        (f"pass {one.pass_number + 1}", f"{one.num_records:,} records trained on, {one.num_twice:,} counted twice")
        for one in record.passes
    ]
    return f"## Data\n\n{markdown_table(('', ''), rows)}"


def _costs(record: RunArchive) -> str:
    rows = [("commits on the Hub", str(record.num_commits))]
    if record.checkpoint_bytes is not None:
        rows.append(("newest checkpoint", file_size(record.checkpoint_bytes)))
        rows.append(
            (
                "all checkpoints, if each changed everything",
                file_size(record.checkpoint_bytes * len(record.checkpoints)),
            )
        )
    if record.history:
        sent = total_bytes(record.history)
        samples = (record.history[-1]["epoch"] - record.history[0]["epoch"] + 1) * record.run.samples_per_epoch
        unit = record.run.unit.removesuffix("s")
        rows += [
            ("sent by all peers in averaging", file_size(sent)),
            (f"per {unit}", file_size(sent / max(1, samples))),
        ]
    return f"## Costs in bytes\n\n{markdown_table(('', ''), rows)}"


def _checkpoints(record: RunArchive) -> str:
    if not record.checkpoints:
        return "## Checkpoints\n\nNone was published."
    shown = record.checkpoints[-NUM_CHECKPOINT_ROWS:]
    rows = [(one.epoch, date(one.time), f"`{one.commit[:12]}`") for one in shown]
    more = len(record.checkpoints) - len(shown)
    before = f"{len(record.checkpoints)} in all" + (f"; the newest {len(shown)}:" if more else ":")
    return f"## Checkpoints\n\n{before}\n\n{markdown_table(('epoch', 'time', 'commit'), rows)}"


def _shared_settings(record: RunArchive) -> dict[str, object]:
    values = dataclasses.asdict(record.run)
    del values["model_config"]
    return values


def _settings(title: str, values: Mapping[str, object]) -> str:
    rows = [(code(name), code(json.dumps(value))) for name, value in sorted(values.items())]
    return f"## {title}\n\n{markdown_table(('setting', 'value'), rows)}"


def _newest(losses: Mapping[int, float], epoch: int) -> str:
    known = [number for number in losses if number <= epoch]
    return nats(losses[max(known)]) if known else "–"
