"""A user's rank among the contributors of a run, from the figures that the run publishes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from huggingface_hub.errors import RemoteEntryNotFoundError

from hub_tools.foreign.downloads import fetch_file
from hub_tools.foreign.json_texts import read_json
from hub_tools.run_files import METRICS_FOLDER, SUMMARY_FILE


@dataclass(frozen=True, kw_only=True)
class Standing:
    """A user's place in the leaderboard."""

    place: int
    """From 1 on."""

    num_contributors: int
    samples: int
    """Samples credited to the user since the run's start, from all machines."""

    share: float
    """Of what is credited to all who are on the board, in [0, 1]."""


def standing_in(summary: Mapping[str, Any], username: str) -> Standing | None:
    """Return the user's standing in a run's published summary; None for a user who is not on the board."""
    board = summary.get("leaderboard")
    rows = [row for row in board if isinstance(row, dict)] if isinstance(board, list) else []
    for place, row in enumerate(rows, start=1):
        if row.get("username") == username:
            contributors = max(len(rows), int(summary.get("num_contributors") or 0))
            samples = [max(0, int(other.get("samples_all") or 0)) for other in rows]
            own = samples[place - 1]
            return Standing(place=place, num_contributors=contributors, samples=own, share=own / max(1, sum(samples)))
    return None


def read_standing(repository: str, username: str, token: str | None) -> Standing | None:
    """Read the user's standing from the Hub; None while the run has published none with this user.

    Raises:
        OSError, ValueError, httpx2.HTTPError: the Hub does not answer, or what is there is damaged.
    """
    try:
        path = fetch_file(repository, f"{METRICS_FOLDER}/{SUMMARY_FILE}", token=token or False)
    except RemoteEntryNotFoundError:
        return None
    return standing_in(read_json(path), username)
