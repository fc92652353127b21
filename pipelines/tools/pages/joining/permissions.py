"""Who may use a machine from a page: on the Hub only the Space's owner, at home anyone who opens the page. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Access:
    """Whether a visitor may start and stop the trainer, and what to say if not."""

    is_granted: bool
    reason: str = ""
    """Empty if it is granted."""


def is_on_hub(environment: Mapping[str, str]) -> bool:
    """Tell whether the program runs as a Space on the Hub."""
    return bool(environment.get("SPACE_ID"))


def owners_of(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the users who own the Space: those in OWNER, separated by commas, or its author."""
    author = environment.get("SPACE_AUTHOR_NAME") or environment.get("SPACE_ID", "").partition("/")[0]
    names = (environment.get("OWNER") or author).split(",")
    return tuple(filter(None, (name.strip() for name in names)))


def access_of(environment: Mapping[str, str], username: str | None) -> Access:
    """Decide by the settings of the Space and the signed-in user, None for nobody."""
    if not is_on_hub(environment):
        return Access(is_granted=True)
    owners = owners_of(environment)
    if username and username in owners:
        return Access(is_granted=True)
    # An organisation's Space lists in OWNER who may use its machine.
    who = " or ".join(owners) or "the users named in the variable OWNER"
    if not username:
        return Access(is_granted=False, reason=f"Only {who} may use this machine. Sign in if that is you.")
    return Access(
        is_granted=False,
        reason=f"You are {username}; only {who} may use this machine. Duplicate this Space to contribute your own.",
    )
