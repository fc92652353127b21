"""Is the Hub up, does it know the caller, and does the run's data really arrive?"""

import email.utils
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import TypeVar

import httpx2
from huggingface_hub import HfApi, get_token
from huggingface_hub.utils import get_session

from hub_tools.endpoint import current_endpoint
from hub_tools.one_line_errors import explain_error
from pipelines.core.run.task import Batch
from pipelines.features.publishing.metrics.history import read_condition
from pipelines.features.publishing.metrics.run_state import RunPhase
from pipelines.features.publishing.publishable_task import PublishableTask
from pipelines.features.publishing.repository.snapshot import RunSnapshot
from pipelines.tools.doctor.check_result import CheckResult, fail, ok, warn

Value = TypeVar("Value")

NUM_ATTEMPTS = 3
PAUSE_SECONDS = 1.0
NUM_CLOCK_READINGS = 3
STREAM_SECONDS = 120.0
NUM_STREAMED_BATCHES = 4
SLOW_FIRST_BATCH_SECONDS = 30.0
SERVER_ERROR = 500
USER_ERRORS = (ValueError, OSError, httpx2.HTTPError)


def retried(ask: Callable[[], Value], pause_seconds: float = PAUSE_SECONDS) -> Value:
    """Retry while the Hub does not answer or is in trouble; a refusal is final."""
    for attempt in itertools.count(1):
        try:
            return ask()
        except (ConnectionError, httpx2.HTTPError) as error:
            response = getattr(error, "response", None)
            if attempt == NUM_ATTEMPTS or (response is not None and response.status_code < SERVER_ERROR):
                raise
            time.sleep(pause_seconds)


def failure(name: str, error: BaseException, expected: str = "") -> CheckResult:
    """Turn a user error into a finding: its last sentence is the cure, as everywhere in this project."""
    seen, _, cure = explain_error(error).rpartition(". ")
    return fail(name, seen or cure, expected, f"{cure}." if seen and not cure.endswith(".") else cure if seen else "")


def check_hub(now: Callable[[], float] = time.time) -> tuple[CheckResult, float | None]:
    """Ping the Hub; also return by how many seconds its clock is ahead, if it tells the time."""
    endpoint, name = current_endpoint(), "Hub"
    try:
        readings = [retried(lambda: _read_clock(endpoint, now)) for _ in range(NUM_CLOCK_READINGS)]
    except USER_ERRORS as error:
        return failure(name, error, f"an answer of {endpoint}"), None
    seconds = min(seconds for seconds, _ in readings)
    result = ok(name, f"{endpoint} answers in {1000 * seconds:.0f} ms")
    offsets = [certain_offset(offset, seconds) for seconds, offset in readings if offset is not None]
    return result, min(offsets, key=abs, default=None)


def certain_offset(offset: float, seconds: float) -> float:
    """Return the part of a clock's offset not explained by the header's whole seconds or the latency."""
    doubt = 0.5 + seconds / 2
    return offset - max(-doubt, min(doubt, offset))


def _read_clock(endpoint: str, now: Callable[[], float]) -> tuple[float, float | None]:
    """Return the seconds until the Hub's answer, and by how many its clock is ahead."""
    asked = now()
    response = get_session().get(f"{endpoint}/api/models", params={"limit": 1}, timeout=10.0)
    answered = now()
    if response.status_code >= SERVER_ERROR:
        raise ConnectionError(f"The Hub at {endpoint} answers {response.status_code}. Try again in a few minutes")
    try:
        date = email.utils.parsedate_to_datetime(response.headers["Date"]).timestamp()
    except (KeyError, ValueError):
        return answered - asked, None
    # The header counts whole seconds: on average half a second has passed since.
    return answered - asked, date + 0.5 - (asked + answered) / 2


def check_token() -> tuple[CheckResult, dict[str, object] | None]:
    """Ask who the caller is; return the finding and the Hub's answer, None without a token."""
    name = "token"
    if get_token() is None:
        return ok(name, "none: you are anonymous, which is enough for public open runs"), None
    try:
        caller = retried(lambda: HfApi().whoami())
    except USER_ERRORS as error:
        return failure(name, error, "a token that the Hub knows"), None
    return ok(name, f"you are {caller['name']}"), caller


def check_state(snapshot: RunSnapshot, now: float) -> tuple[CheckResult, bool]:
    """Say what the run is doing, by what it has published; also return whether it is over."""
    name = "state of the run"
    try:
        condition = retried(lambda: read_condition(snapshot, now=now))
    except USER_ERRORS as error:
        return failure(name, error), False
    seen, cure = condition.sentence.removesuffix("."), f"{condition.advice}: {condition.command}"
    is_over = condition.state is RunPhase.OVER
    if is_over or condition.state is RunPhase.STALLED:
        return warn(name, seen, "a run that goes on", cure), is_over
    return ok(name, seen), False


def check_dataset(task: PublishableTask) -> CheckResult:
    """Check that the dataset at the run's revision, the processor and the model match."""
    name, run = "dataset", task.run
    try:
        retried(task.check)
    except USER_ERRORS as error:
        return failure(name, error, "data that fit the run's model and processor")
    return ok(name, f"{run.dataset_repository} at {run.dataset_revision[:12]} fits the run's model and processor")


def check_stream(task: PublishableTask, micro_batch_size: int) -> CheckResult:
    """Read a few micro-batches through the training reader, and time them."""
    name, expected = "data stream", f"the first micro-batch within {SLOW_FIRST_BATCH_SECONDS:.0f} s"
    started = time.monotonic()
    make_batches = partial(
        task.batches, batch_size=micro_batch_size, seed=task.run.seed, shuffle_buffer_size=micro_batch_size
    )
    try:
        times = retried(lambda: _batch_times(make_batches, NUM_STREAMED_BATCHES, STREAM_SECONDS))
    except TimeoutError:
        seen = f"nothing within {STREAM_SECONDS:.0f} s"
        return fail(name, seen, expected, "Check the network: the Hub answers, but its files do not arrive.")
    except USER_ERRORS as error:
        return failure(name, error, expected)
    first = times[0] - started
    rate = (len(times) - 1) * micro_batch_size / max(1e-3, times[-1] - times[0])
    seen = f"first micro-batch after {first:.1f} s, then {rate:,.0f} records per second"
    if first > SLOW_FIRST_BATCH_SECONDS:
        return warn(name, seen, expected, "The link to the Hub is slow; joining takes that long each time.")
    return ok(name, seen, expected)


def _batch_times(make_batches: Callable[[], Iterator[Batch]], num_batches: int, timeout: float) -> list[float]:
    """Return when each batch arrived. They are read in a thread, so that a hanging stream does not block the caller.

    Raises TimeoutError, or what the stream raises.
    """
    times: list[float] = []
    problems: list[BaseException] = []

    def read() -> None:
        try:
            for _ in islice(make_batches(), num_batches):
                times.append(time.monotonic())
        except Exception as error:  # passed to the caller, which raises it
            problems.append(error)

    thread = threading.Thread(target=read, name="doctor-stream", daemon=True)
    thread.start()
    thread.join(timeout)
    if problems:
        raise problems[0]
    if thread.is_alive():
        raise TimeoutError(f"{len(times)} of {num_batches} micro-batches within {timeout:.0f} s")
    return times
