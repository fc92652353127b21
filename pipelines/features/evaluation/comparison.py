"""Two checkpoints, samplers, precisions or codecs on the same prompts and seeds: paired differences."""

from dataclasses import dataclass

from pipelines.features.evaluation.figures import HIGHER, LOWER, bootstrapped_mean, t_interval
from pipelines.features.evaluation.measurement import Measurement


@dataclass(frozen=True, kw_only=True)
class Difference:
    """How a figure of the second differs from that of the first."""

    name: str
    first: float
    second: float
    difference: float
    """Second minus first: the mean over pairs."""

    low: float
    high: float
    num_pairs: int
    pairs: str
    """What is paired, in the plural."""

    verdict: str
    """`same`, if the interval contains 0; else `first` or `second` is better, or they are `different`."""


def compare(first: Measurement, second: Measurement) -> list[Difference]:
    """Return the differences of all figures that both have, in the order of the first."""
    others = {figure.name: figure for figure in second.figures}
    differences = []
    for figure in first.figures:
        is_paired = figure.name in first.items or figure.name in first.drawings
        if figure.name not in others or not is_paired:
            continue
        mean, low, high, number = _paired(figure.name, first, second)
        differences.append(
            Difference(
                name=figure.name,
                first=figure.value,
                second=others[figure.name].value,
                difference=mean,
                low=low,
                high=high,
                num_pairs=number,
                pairs=figure.items,
                verdict=verdict(low, high, figure.better),
            )
        )
    return differences


def verdict(low: float, high: float, better: str) -> str:
    """Return who is better by the interval of second minus first."""
    if low <= 0 <= high:
        return "same"
    if better not in (LOWER, HIGHER):
        return "different"
    return "first" if (low > 0) == (better == LOWER) else "second"


def _paired(name: str, first: Measurement, second: Measurement) -> tuple[float, float, float, int]:
    if name in first.items:
        values = second.items[name].double() - first.items[name].double()
        return *bootstrapped_mean(values), len(values)
    pairs = zip(second.drawings[name], first.drawings[name], strict=True)
    changes = [after - before for after, before in pairs]
    return *t_interval(changes), len(changes)
