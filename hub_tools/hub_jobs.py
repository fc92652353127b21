"""Our commands as Jobs of the Hub: what a Job would run, with what, for how long and how dear, and submitting it."""

import difflib
import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .checks import check_positive, is_number

if TYPE_CHECKING:
    from huggingface_hub import HfApi, JobInfo
    from huggingface_hub._jobs_api import JobHardwareInfo

IMAGE = "python:3.12"
TOKEN_VARIABLE = "HF_TOKEN"
MOST_HOURS = 24 * 30
UNITS_PER_HOUR = {"second": 3600, "minute": 60, "hour": 1}


@dataclass(frozen=True, kw_only=True)
class JobPlan:
    """A Job before it is submitted."""

    commands: Sequence[Sequence[str]]
    """What it runs one after the other, word by word; the next only if the one before has succeeded."""

    flavor: str
    """The Hub's name for the hardware."""

    hours: float
    """After so many it is ended from outside."""

    package: str
    """What pip installs first: this package, of which source and version."""

    environment: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    secrets: Sequence[str] = (TOKEN_VARIABLE,)
    """Names of what goes along encrypted; the Hub never shows their values."""

    def __post_init__(self) -> None:
        check_positive(self, "hours")
        if not self.hours <= MOST_HOURS:
            raise ValueError(f"The Job's time is {self.hours} hours; expected at most {MOST_HOURS}: --job-hours 8")

    @property
    def seconds(self) -> int:
        """Seconds after which the Hub ends it."""
        return math.ceil(self.hours * 3600)

    @property
    def shell_line(self) -> str:
        """What a shell of the Job is given; every word is quoted."""
        install = ["pip", "install", "--quiet", self.package]
        return " && ".join(shlex.join(words) for words in (install, *self.commands))


def hardware_of(api: "HfApi", flavor: str) -> "JobHardwareInfo":
    """Return what the Hub says about a flavor; ValueError names the nearest one if it has none of that name."""
    offered = {hardware.name: hardware for hardware in api.list_jobs_hardware()}
    if flavor not in offered:
        nearest = difflib.get_close_matches(flavor, offered, n=1)
        hint = f"Did you mean {nearest[0]}? " if nearest else ""
        raise ValueError(f"The Hub has no hardware {flavor!r} for Jobs. {hint}It has: {', '.join(offered)}")
    return offered[flavor]


def dollars_per_hour(hardware: "JobHardwareInfo") -> float | None:
    """Return what an hour costs in US dollars; None if the Hub says that in a way that is not understood."""
    cost, units = hardware.unit_cost_usd, UNITS_PER_HOUR.get(str(hardware.unit_label))
    return cost * units if units is not None and is_number(cost) and cost >= 0 else None


def describe_plan(plan: JobPlan, hardware: "JobHardwareInfo") -> list[str]:
    """Return lines that say all that would be sent, and what it would cost."""
    price, accelerator = dollars_per_hour(hardware), hardware.accelerator
    parts = [hardware.cpu, hardware.ram, *([f"{accelerator.quantity} x {accelerator.model}"] if accelerator else [])]
    if price is None:
        cost = f"unknown: the Hub says {hardware.unit_cost_usd!r} USD per {hardware.unit_label!r}"
    else:
        cost = f"${price:.2f} an hour, at most ${price * plan.hours:.2f}"
    return [
        f"command  {plan.shell_line}",
        f"image    {IMAGE}",
        f"flavor   {plan.flavor}: {', '.join(map(str, parts))}",
        f"timeout  {plan.seconds} s",
        f"cost     {cost}",
        f"secrets  {', '.join(plan.secrets) or 'none'} (encrypted; not in the command, not in the environment)",
        f"environ  {' '.join(f'{name}={value}' for name, value in plan.environment.items()) or 'nothing'}",
    ]


def submit(plan: JobPlan, api: "HfApi", token: str) -> "JobInfo":
    """Submit the Job as the owner of the token, which goes along as its secret.

    Raises:
        ValueError: the token is in the command or the environment, where everybody with access could read it.
        HfHubHTTPError: the Hub refuses.
    """
    shown = [plan.shell_line, *plan.environment.values(), *plan.labels.values()]
    if any(token in text for text in shown):
        raise ValueError("Your token is in the command or in a variable of the Job, which others can read: remove it.")
    return api.run_job(
        image=IMAGE,
        command=["bash", "-c", plan.shell_line],
        env=dict(plan.environment),
        secrets=dict.fromkeys(plan.secrets, token),
        flavor=plan.flavor,
        timeout=plan.seconds,
        labels=dict(plan.labels),
        token=token,
    )
