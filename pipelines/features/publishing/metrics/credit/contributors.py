"""The contributors of a run, and their table for people."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hub_tools.counted import duration
from hub_tools.printing.marked_up import markdown_table, plain
from pipelines.features.publishing.metrics.credit.contributions import CLAIMED, ContributionLedger, leaderboard
from pipelines.features.publishing.metrics.credit.hardware import ENERGY, describe_hours, energy_kwh

MOST_CONTRIBUTORS = 10_000


@dataclass(frozen=True, kw_only=True)
class Contributor:
    """What one user has contributed."""

    username: str
    samples: int
    hours: float
    device_hours: Mapping[str, float] = field(default_factory=dict)
    """Hours by kind of device; see `hardware`."""


def contributors_of(ledger: ContributionLedger, now: float) -> list[Contributor]:
    """Return the users with the most samples, those with most first."""
    devices = ledger.device_hours()
    return [
        Contributor(
            username=user["username"],
            samples=user["samples_all"],
            hours=user["hours_all"],
            device_hours=devices.get(user["username"], {}),
        )
        for user in leaderboard(ledger.days, now, MOST_CONTRIBUTORS)
    ]


def contributor_table(contributors: Sequence[Contributor], unit: str, most: int | None = None) -> str:
    """Return who did how much on which devices, at most `most` by name, with sums, energy, and what it all rests on."""
    shown = contributors[:most]
    rows = [
        (
            plain(one.username),
            f"{one.samples:,}",
            duration(3600 * one.hours),
            describe_hours(one.device_hours) or "not known",
        )
        for one in shown
    ]
    devices = _sum_of_devices(contributors)
    num_others = len(contributors) - len(shown)
    rows.append(
        (
            f"**all {len(contributors):,}**" if num_others else "**all**",
            f"{sum(one.samples for one in contributors):,}",
            duration(3600 * sum(one.hours for one in contributors)),
            describe_hours(devices) or "not known",
        )
    )
    table = markdown_table(("user", f"{unit} claimed", "time", "devices"), rows)
    kwh = energy_kwh(devices)
    said = f"{kwh:,.2f} kWh" if kwh >= 0.1 else f"{1000 * kwh:.2g} Wh"
    energy = f"\n\nAbout {said}. {ENERGY}" if devices else ""
    return f"{table}\n\n{CLAIMED}{energy}"


def _sum_of_devices(contributors: Sequence[Contributor]) -> dict[str, float]:
    total: dict[str, float] = defaultdict(float)
    for one in contributors:
        for kind, hours in one.device_hours.items():
            total[kind] += hours
    return dict(total)
