"""What contributors compute on, by their own word: hours by device, and an estimate of the energy from them."""

import re
from collections.abc import Mapping

from hub_tools.counted import duration

BOARD_WATTS: Mapping[str, float] = {
    **{"B200": 1000, "B100": 700, "H200": 700, "H100": 700, "GH200": 700, "A100": 400, "A800": 400, "A40": 300},
    **{"A30": 165, "A10G": 300, "A10": 150, "A16": 250, "A2": 60, "L40S": 350, "L40": 300, "L4": 72, "T4": 70},
    **{"V100": 300, "P100": 250, "P40": 250, "P4": 75, "K80": 150, "M60": 150, "TITAN RTX": 280, "TITAN V": 250},
    **{"RTX 5090": 575, "RTX 5080": 360, "RTX 5070": 250, "RTX 5060": 150},
    **{"RTX 4090": 450, "RTX 4080": 320, "RTX 4070": 200, "RTX 4060": 115},
    **{"RTX 3090": 350, "RTX 3080": 320, "RTX 3070": 220, "RTX 3060": 170, "RTX 3050": 130},
    **{"RTX 2080": 225, "RTX 2070": 175, "RTX 2060": 160, "GTX 1660": 120, "GTX 1650": 75},
    **{"GTX 1080": 180, "GTX 1070": 150, "GTX 1060": 120, "RTX A6000": 300, "RTX A5000": 230, "RTX A4000": 140},
    **{"RTX 6000": 300, "MI300X": 750, "MI250X": 500, "MI210": 300, "MI100": 300, "7900 XTX": 355},
}
"""Power of a board by its manufacturer, in watts, by a part of the device's name; K80 and M60 are half a board."""

CPU = "CPU"
OTHER = "other device"
WATTS_OF_OTHERS: Mapping[str, float] = {CPU: 8.0, OTHER: 200.0, "MPS": 30.0}
"""A CPU's count by thread."""

MOST_DEVICES = 128
"""One peer has no more devices, or threads."""

_KINDS = sorted(BOARD_WATTS, key=len, reverse=True)
_COUNT = re.compile(r"(\d{1,6}) x ")
_THREADS = re.compile(r"(\d{1,6}) thread")

ENERGY = (
    "Energy: hours of each device times the power that its manufacturer states (a CPU: 8 W per thread), without the "
    "rest of the machines. Devices are those that peers name."
)


def device_kind(description: str) -> tuple[str, int]:
    """Return the kind and the number of a peer's devices, from what it calls them; see `describe_device`.

    A CPU's number is that of its threads. What peers say comes down to a few dozen kinds: their own words are not kept.
    """
    match = _THREADS.search(description) if description.startswith(CPU) else _COUNT.match(description)
    number = min(MOST_DEVICES, max(1, int(match.group(1)))) if match else 1
    if description.startswith(CPU):
        return CPU, number
    for kind in _KINDS:
        if re.search(rf"(?<![A-Za-z0-9]){re.escape(kind)}(?!\d)", description):
            return kind, number
    return ("MPS" if description.startswith("MPS") else OTHER), number


def watts(kind: str) -> float:
    """Return the power of one device of a kind; of a CPU that of a thread."""
    return BOARD_WATTS.get(kind) or WATTS_OF_OTHERS.get(kind, WATTS_OF_OTHERS[OTHER])


def energy_kwh(hours: Mapping[str, float]) -> float:
    """Return the energy of hours of devices by kind, in kilowatt hours."""
    return sum(watts(kind) * time for kind, time in hours.items()) / 1000


def describe_hours(hours: Mapping[str, float]) -> str:
    """Return hours by device for people, most hours first: `12 h 30 min T4, 3 h 0 min CPU threads`."""
    ordered = sorted(hours.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{duration(3600 * time)} {kind}{' threads' if kind == CPU else ''}" for kind, time in ordered)
