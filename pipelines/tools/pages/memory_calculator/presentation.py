"""Estimates for people: sentences, stacked bars, tables; HTML without scripts or external hosts."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from hub_tools.counted import memory_size
from hub_tools.printing.marked_up import escaped
from pipelines.features.memory_estimate.estimate import estimate_training_memory
from pipelines.features.memory_estimate.model_presets import ModelSizes
from pipelines.features.memory_estimate.settings import MemoryEstimate, MemorySettings, MemorySplit
from pipelines.tools.pages.memory_calculator.fitting import MACHINES, largest_micro_batch

COMPONENTS = tuple(item.name for item in dataclasses.fields(MemorySplit))
STYLE = """
#total { position: fixed; left: 0; right: 0; bottom: 0; z-index: 20; margin: 0; padding: 0.6rem 1rem !important;
  background: var(--background-fill-primary); border-top: 1px solid var(--border-color-primary); font-weight: 600; }
#total p { margin: 0; font-variant-numeric: tabular-nums; }
@media (min-width: 48rem) { #total { display: none; } }
@media (max-width: 47.99rem) { .gradio-container footer { padding-bottom: 4rem; } }
#join-command .empty, #join-command .empty-wrapper { min-height: 3.5rem !important; height: auto !important; }
.memory { font-size: 0.95rem; overflow-x: auto; }
.memory .line { display: flex; justify-content: space-between; margin-top: 0.7rem; }
.memory .bar { display: flex; height: 2.1rem; border-radius: 6px; overflow: hidden;
  background: rgba(128,128,128,0.16); }
.memory .bar span { display: block; height: 100%; box-shadow: inset -1px 0 0 rgba(255,255,255,0.75); }
.memory .weights { background: #3b5bdb; }
.memory .gradients { background: #0c8599; }
.memory .optimizer { background: #e8590c; }
.memory .activations { background: #9c36b5; }
.memory .buffers { background: #868e96; }
.memory .legend { display: flex; flex-wrap: wrap; gap: 0.3rem 1rem; list-style: none; padding: 0; margin: 0.7rem 0; }
.memory .legend li { margin: 0; }
.memory .legend i { display: inline-block; width: 0.85em; height: 0.85em; border-radius: 3px; margin-right: 0.4em; }
.memory table { width: 100%; border-collapse: collapse; font-variant-numeric: tabular-nums; border: none; }
.memory tr { border: none !important; }
.memory th, .memory td { padding: 0.3rem 0.5rem; border: none !important; text-align: right;
  border-bottom: 1px solid rgba(128,128,128,0.3) !important; }
.memory tbody th { font-weight: 500; }
@media (max-width: 30rem) { .memory { font-size: 0.8rem; } .memory th, .memory td { padding: 0.3rem 0.25rem; } }
.memory th:first-child, .memory td:first-child { text-align: left; padding-left: 0; }
.memory tbody tr:last-child th, .memory tbody tr:last-child td { border-bottom: none !important; }
.memory table:not(.fits) tbody tr:last-child { font-weight: 700;
  border-top: 2px solid rgba(128,128,128,0.6) !important; }
.memory .fits td:nth-child(3) { text-align: left; }
.memory .yes { color: #237032; font-weight: 600; }
.memory .no { color: #c92a2a; font-weight: 600; }
.dark .memory .yes { color: #69db7c; }
.dark .memory .no { color: #ff8787; }
"""
"""The style sheet of the picture and the tables, light and dark."""

MOST_SHOWN = 256
"""Largest micro-batch tried."""


@dataclass(frozen=True, kw_only=True)
class NamedEstimate:
    """An estimate with the name it is shown under."""

    name: str
    """Any text; it is escaped."""

    estimate: MemoryEstimate


def as_parameters(number: int) -> str:
    """Return a number of parameters in millions or billions."""
    if number >= 1e9:
        return f"{number / 1e9:.1f} billion"
    return f"{number / 1e6:.0f} million" if number >= 1e7 else f"{number / 1e6:.2g} million"


def stacked_picture(shown: Sequence[NamedEstimate]) -> str:
    """Return bars of GPU and RAM, one for each estimate, divided into their components, with the numbers below."""
    most = max(1, *(split.total for item in shown for split in (item.estimate.gpu, item.estimate.ram)))
    bars = [
        _bar(f"{item.name}, {memory}" if len(shown) > 1 else memory, split, most)
        for memory in ("GPU", "RAM")
        for item in shown
        for split in [item.estimate.gpu if memory == "GPU" else item.estimate.ram]
    ]
    legend = "".join(f'<li><i class="{name}"></i>{name}</li>' for name in COMPONENTS)
    return f'<div class="memory">{"".join(bars)}<ul class="legend">{legend}</ul>{_numbers(shown)}</div>'


def _bar(label: str, split: MemorySplit, most: int) -> str:
    parts = [(name, getattr(split, name)) for name in COMPONENTS if getattr(split, name)]
    said = f"{label}: {memory_size(split.total)}; " + ", ".join(f"{name} {memory_size(size)}" for name, size in parts)
    pieces = "".join(
        f'<span class="{name}" style="width:{100 * size / most:.3f}%" title="{name} {memory_size(size)}"></span>'
        for name, size in parts
    )
    total = memory_size(split.total) if split.total else "nothing"
    return (
        f'<div class="line"><b>{escaped(label)}</b><span class="total">{total}</span></div>'
        f'<div class="bar" role="img" aria-label="{escaped(said)}">{pieces}</div>'
    )


def _numbers(shown: Sequence[NamedEstimate]) -> str:
    columns = [
        (f"{item.name} {memory}" if len(shown) > 1 else memory, split)
        for memory in ("GPU", "RAM")
        for item in shown
        for split in [item.estimate.gpu if memory == "GPU" else item.estimate.ram]
    ]
    head = "".join(f'<th scope="col">{escaped(name)}</th>' for name, _ in columns)
    rows = "".join(
        f'<tr><th scope="row">{name}</th>' + "".join(f"<td>{_size(getattr(split, name))}</td>" for _, split in columns)
        for name in (*COMPONENTS, "total")
    )
    return f"<table><thead><tr><td></td>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _size(number: int) -> str:
    return memory_size(number) if number else "–"


def fits_table(model: ModelSizes, settings: MemorySettings) -> str:
    """Return where these settings fit, and with which largest micro-batch."""
    estimate = estimate_training_memory(model, settings)
    rows = []
    for machine in MACHINES:
        largest = largest_micro_batch(model, settings, machine, most=MOST_SHOWN)
        lacking = [
            name
            for name, fits in (("GPU", machine.has_gpu_for(estimate)), ("RAM", machine.has_ram_for(estimate)))
            if not fits
        ]
        verdict = (
            f'<td class="no">✗ not enough {" and ".join(lacking)}</td>' if lacking else '<td class="yes">✓ fits</td>'
        )
        number = f"{largest} or more" if largest == MOST_SHOWN else str(largest) if largest else "–"
        memory = f"{memory_size(machine.gpu_bytes)} + {memory_size(machine.ram_bytes)}"
        rows.append(f'<tr><th scope="row">{machine.name}</th><td>{memory}</td>{verdict}<td>{number}</td></tr>')
    head = "".join(
        f'<th scope="col">{name}</th>' for name in ("machine", "GPU + RAM", "these settings", "largest micro-batch")
    )
    body = "".join(rows)
    return f'<div class="memory"><table class="fits"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def compared(first: MemoryEstimate, second: MemoryEstimate) -> str:
    """Say in a sentence how much more or less the second needs than the first."""
    parts = []
    for memory in ("gpu", "ram"):
        difference = getattr(second, memory).total - getattr(first, memory).total
        if difference:
            word = "more" if difference > 0 else "less"
            parts.append(f"{memory_size(abs(difference))} {word} {memory.upper()}")
    return f"B needs {' and '.join(parts)} than A." if parts else "A and B need the same."
