"""How long a round of averaging will take on this machine's link, and what is remembered of the link."""

import contextlib
import json
import logging
import math
from pathlib import Path
from typing import Any

from hub_tools.atomic_files import write_text_whole
from pipelines.core.averaging.division import Link
from pipelines.core.run.training_run import TrainingRun
from pipelines.features.bandwidth.estimate import least_mbit, round_line
from pipelines.tools.doctor.check_result import CheckResult, ok, unknown, warn

logger = logging.getLogger(__name__)

NAME = "averaging round"
LIMITED, MOST_LIMITS = "limited", 8
"""What was measured under upload limits, in the file, and how many of them are kept."""


def check_round(
    run: TrainingRun, num_parameters: int | None, measured: Link | None, limit_mbit: float | None
) -> CheckResult:
    """Say what a round will take, by what the link was measured to carry and by the upload limit."""
    if num_parameters is None:
        return unknown(NAME, "the model's size is not known")
    if measured is not None and not (limit_mbit and limit_mbit < measured.up):
        link, source = measured, "measured"
    elif limit_mbit:
        link = Link(up=limit_mbit, down=limit_mbit if measured is None else measured.down)
        source = "--bandwidth-limit"
    else:
        return ok(
            NAME, "not measured yet: training does so in its first rounds, or name the rate with --bandwidth-limit MBIT"
        )
    seen, least = round_line(run, num_parameters, link, source), least_mbit(run, num_parameters)
    if link.up < least:
        return warn(
            NAME,
            f"{seen}. This run gives an attempt at a round {run.averaging_timeout_seconds / 2:.0f} s: its peers would "
            "leave this machine out, and its gradients would be lost",
            f"at least {least:.2g} Mbit/s up",
            "Use a faster link or a higher --bandwidth-limit; or ask the organiser for a larger "
            "averaging_timeout_seconds, or for synchronisation=sparse, which sends less.",
        )
    return ok(NAME, seen)


def remember_link(file: Path, link: Link, limit_mbit: float | None = None) -> None:
    """Write down what a link was measured to carry under an upload limit, or without one, for the next time.

    Peers of one machine may have different limits. Where writing fails, the link is measured again then.
    """
    values = _read(file)
    rates = dict(up=link.up if limit_mbit is None else min(link.up, limit_mbit), down=link.down)
    if limit_mbit is None:
        values |= rates
    else:
        limited = {key: held for key, held in values.get(LIMITED, {}).items() if key != str(limit_mbit)}
        values[LIMITED] = dict(list(limited.items())[1 - MOST_LIMITS :]) | {str(limit_mbit): rates}
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_text_whole(file, json.dumps(values))
    except OSError as error:
        logger.warning("What this link carries cannot be remembered: %s", error)


def remembered_link(file: Path, limit_mbit: float | None = None) -> Link | None:
    """Return what was written down last for this upload limit; None: nothing that can be read.

    What was measured without a limit counts up to it; what was measured under another one says nothing.
    """
    values = _read(file)
    found = None if limit_mbit is None else _link_in(values.get(LIMITED, {}).get(str(limit_mbit)))
    found = found or _link_in(values)
    return found if found is None or limit_mbit is None else Link(up=min(found.up, limit_mbit), down=found.down)


def _read(file: Path) -> dict[str, Any]:
    with contextlib.suppress(OSError, ValueError):
        values = json.loads(file.read_text(encoding="utf-8"))
        if isinstance(values, dict):
            return values if isinstance(values.get(LIMITED, {}), dict) else {}
    return {}


def _link_in(values: Any) -> Link | None:
    try:
        rates = float(values["up"]), float(values["down"])
    except (ValueError, TypeError, KeyError):
        return None
    return Link(up=rates[0], down=rates[1]) if all(0 < rate < math.inf for rate in rates) else None
