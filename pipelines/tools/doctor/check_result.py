"""What a check found: a value for a table, for a program and for a Space."""

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass

STATUSES = ("ok", "unknown", "warn", "fail")
"""From harmless to fatal. `unknown`: it could not be determined, which alone stops nobody."""

FAILED_EXIT_CODE = 3
WARNED_EXIT_CODE = 4


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """One finding: what was seen, what was expected and what cures it."""

    name: str
    """What was checked, in a few words; the same in every call."""

    status: str
    """One of `STATUSES`."""

    seen: str

    expected: str = ""
    """Empty where nothing is expected."""

    cure: str = ""
    """What to do, with the command if there is one; empty if the check passed."""

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise ValueError(f"status is {self.status!r}; expected one of {', '.join(STATUSES)}.")

    def line(self) -> str:
        """Return the finding as one line for people."""
        expected = f"; expected {self.expected}" if self.expected else ""
        cure = f" {self.cure}" if self.cure else ""
        return " ".join(f"{self.name}: {self.seen}{expected}.{cure}".split())

    def as_mapping(self) -> dict[str, object]:
        """Return the finding for JSON."""
        return dataclasses.asdict(self)


def ok(name: str, seen: str, expected: str = "") -> CheckResult:
    """Return a passed check."""
    return CheckResult(name=name, status="ok", seen=seen, expected=expected)


def unknown(name: str, seen: str, cure: str = "") -> CheckResult:
    """Return a finding that could not be determined."""
    return CheckResult(name=name, status="unknown", seen=seen, cure=cure)


def warn(name: str, seen: str, expected: str, cure: str) -> CheckResult:
    """Return a finding that costs time or comfort, but does not prevent training."""
    return CheckResult(name=name, status="warn", seen=seen, expected=expected, cure=cure)


def fail(name: str, seen: str, expected: str, cure: str) -> CheckResult:
    """Return a finding that prevents training."""
    return CheckResult(name=name, status="fail", seen=seen, expected=expected, cure=cure)


def exit_code(results: Iterable[CheckResult], *, strict: bool = False) -> int:
    """Return 0 if nothing fails, 3 if something does, and with `strict` 4 if there are warnings."""
    seen = {result.status for result in results}
    if "fail" in seen:
        return FAILED_EXIT_CODE
    return WARNED_EXIT_CODE if strict and "warn" in seen else 0
