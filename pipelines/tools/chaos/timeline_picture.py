"""A picture of a chaos run: the trainers' lives, the faults, samples per second and the evaluation loss."""

import statistics
from collections.abc import Sequence
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from pipelines.tools.chaos.chaos_report import CountedStretch, Events, Window, counted_stretches, samples_within
from pipelines.tools.chaos.faults.fault_script import NO_PEER, Fault, FaultKind

COLOURS = dict(zip(FaultKind, matplotlib.colormaps["tab10"].colors, strict=False))
SECONDS_PER_BAR = 2.0


@matplotlib.rc_context({"text.parse_math": False})
def draw_timeline(path: Path, events: Events, faults: Sequence[Fault], *, reference: Window, chaos: Window) -> None:
    """Write the picture as PNG; time runs from the start of the fault-free part."""
    figure = Figure(figsize=(14, 8), layout="constrained")
    FigureCanvasAgg(figure)
    lives, rate, loss = figure.subplots(3, 1, sharex=True, height_ratios=(3, 2, 2))
    zero = reference.begin
    _draw_lives(lives, events, faults, zero, chaos)
    _draw_rate(rate, list(counted_stretches(events)), zero, Window(begin=zero, end=chaos.end))
    for trainer in sorted(events):
        points = [(e["time"] - zero, e["loss"]) for e in events[trainer] if e["event"] == "epoch"]
        if points:
            loss.plot(*zip(*points, strict=True), marker=".", linewidth=0.8, label=trainer)
    loss.set_ylabel("evaluation loss")
    loss.set_xlabel("seconds")
    loss.set_xlim(left=0.0)
    if loss.lines:
        loss.legend(loc="upper right", fontsize=8)
    for axes in (lives, rate, loss):
        axes.axvline(chaos.begin - zero, color="black", linestyle=":", linewidth=1)
    figure.savefig(path, dpi=110)


def _draw_lives(axes: Axes, events: Events, faults: Sequence[Fault], zero: float, chaos: Window) -> None:
    names = sorted(events)
    for row, name in enumerate(names):
        joined = [event["time"] - zero for event in events[name] if event["event"] == "joined"]
        ends = [*(event["time"] - zero for event in events[name] if event["event"] == "started"), float("inf")]
        for begin in joined:
            end = min([end for end in ends if end > begin] + [chaos.end - zero])
            axes.barh(row, end - begin, left=begin, height=0.25, color="lightgray")
        marks = [e["time"] - zero for e in events[name] if e["event"] == "epoch" and e["group_size"] > 1]
        axes.plot(marks, [row] * len(marks), "|", color="black", markersize=7)
    shown = set()
    for fault in faults:
        row = len(names) if fault.peer == NO_PEER else fault.peer
        label = None if fault.kind in shown else str(fault.kind)
        shown.add(fault.kind)
        left = chaos.begin - zero + fault.at_seconds
        colour = COLOURS.get(fault.kind, "black")
        axes.barh(row, fault.duration_seconds, left=left, height=0.6, color=colour, alpha=0.7, label=label)
    axes.set_yticks(range(len(names) + 1), [*names, "others"])
    axes.set_title("lives (gray), averaged epochs (strokes) and faults; faults start at the dotted line")
    if shown:
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=8)


def _draw_rate(axes: Axes, stretches: Sequence[CountedStretch], zero: float, whole: Window) -> None:
    starts = [whole.begin + index * SECONDS_PER_BAR for index in range(max(1, int(whole.seconds / SECONDS_PER_BAR)))]
    rates = [
        samples_within(stretches, Window(begin=start, end=start + SECONDS_PER_BAR)) / SECONDS_PER_BAR
        for start in starts
    ]
    axes.bar([start - zero for start in starts], rates, width=SECONDS_PER_BAR, align="edge", color="tab:green")
    axes.axhline(statistics.median(rates), color="gray", linestyle="--", linewidth=0.8)
    axes.set_ylabel("samples/s averaged")
