"""Checks of a run whose only wire is the Hub: may this user give files, is the link fast enough, who closes rounds."""

import os
import time
from collections.abc import Iterator

from huggingface_hub import HfApi

from hub_tools.counted import duration
from pipelines.core.peer.volunteer import ANONYMOUS, hub_username
from pipelines.core.run.training_run import TrainingRun
from pipelines.features.hub_rounds.exchange import seconds_for_bytes
from pipelines.features.hub_rounds.files import RoundFiles
from pipelines.features.hub_rounds.following import SECONDS_ALIVE, presence_of
from pipelines.features.publishing.repository.key_list import PUBLISHER
from pipelines.features.publishing.repository.snapshot import RunSnapshot
from pipelines.tools.doctor.check_result import CheckResult, fail, ok, unknown, warn

PROBE_BYTES = 2**18
MOST_BYTES_OF_A_PARAMETER = 0.03
"""Of a contribution, with the most that sparse synchronisation sends."""


def check_rounds(snapshot: RunSnapshot, run: TrainingRun, num_parameters: int | None) -> Iterator[CheckResult]:
    """Put a file into this user's bucket, take the time, remove it; then look for who closes the rounds."""
    files = RoundFiles(snapshot.repository, run)
    yield from check_bucket(files, snapshot.repository, hub_username(), num_parameters)
    yield check_closer(files, snapshot, run)


def check_bucket(files: RoundFiles, repository: str, user: str, num_parameters: int | None) -> Iterator[CheckResult]:
    """Check that the bucket of a user, who is logged in, takes a file, and how long a contribution takes to it."""
    organisation = repository.partition("/")[0]
    if user == ANONYMOUS:
        yield fail("own bucket", "nobody is logged in", "a token that may write", "Log in: hf auth login")
        return
    bucket = files.bucket_of(user)
    try:
        files.make_bucket(user, private=bool(HfApi().repo_info(repository).private))
        started = time.monotonic()
        files.put(bucket, {"doctor": os.urandom(PROBE_BYTES)})
        seconds = time.monotonic() - started
        files.put(bucket, {}, delete=["doctor"])
    except OSError as error:
        yield fail(
            "own bucket",
            str(error),
            f"{bucket} takes your files",
            f"Ask for the role contributor in {organisation}, and log in with a token that has it: hf auth login",
        )
        return
    yield ok("own bucket", f"{bucket} takes your files")
    if num_parameters is None:
        return
    needed = max(seconds, seconds * MOST_BYTES_OF_A_PARAMETER * num_parameters / PROBE_BYTES)
    seen, most = f"a contribution takes about {duration(needed)}", seconds_for_bytes(files.window_seconds)
    if needed <= most:
        yield ok("upload", seen, f"at most {most:.0f} s")
    else:
        cure = "Your contributions will be late. The organiser can lengthen window_seconds in a new run."
        yield warn("upload", seen, f"at most {most:.0f} s", cure)


def check_closer(files: RoundFiles, snapshot: RunSnapshot, run: TrainingRun) -> CheckResult:
    """Check that an auxiliary peer is there to close the rounds."""
    try:
        keys = snapshot.keys.holders(PUBLISHER, at=files.clock())
        seen = [found.time for key in keys if (found := presence_of(files, run, key)) is not None]
    except (OSError, ValueError) as error:
        return unknown("auxiliary peer", str(error))
    cure = f"Rounds wait until the organiser starts it: dalle-collab run assist {snapshot.repository}"
    if not seen:
        return warn("auxiliary peer", "none has been there", "one that closes the rounds", cure)
    age = files.clock() - max(seen)
    words = f"was there {duration(max(0.0, age))} ago"
    if age > SECONDS_ALIVE:
        return warn("auxiliary peer", words, f"less than {SECONDS_ALIVE:.0f} s", cure)
    return ok("auxiliary peer", words)
