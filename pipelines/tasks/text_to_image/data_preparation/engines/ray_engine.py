"""Shards made by the workers of a Ray cluster, one task for each; what comes before and after is done here."""

import collections
import contextlib
import dataclasses
import os
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from pipelines.tasks.text_to_image.data_preparation.engines.spans import (
    InputSpan,
    count_samples,
    make_span,
    plan_spans,
    uncounted_sources,
)
from pipelines.tasks.text_to_image.data_preparation.preparation_manifest import (
    FinishedShard,
    PreparationError,
    check_same_settings,
    load_manifest,
)
from pipelines.tasks.text_to_image.data_preparation.shard_records import (
    load_all_records,
    load_count,
    save_count,
    save_record,
)
from pipelines.tasks.text_to_image.data_preparation.shard_writing import (
    Preparation,
    PreparationProgress,
    PreparationResult,
    ProgressCounter,
    begin_preparation,
    finish_preparation,
    remove_leftovers,
)
from pipelines.tasks.text_to_image.data_preparation.span_reader import SpanReader

if TYPE_CHECKING:
    from ray import ObjectRef
    from ray.exceptions import RayTaskError

T = TypeVar("T")

MOST_ATTEMPTS = 3
"""Workers that may die of one task: Ray itself would replace them without end when memory is short."""

MOST_WAITING = 1000
"""Tasks that Ray knows of at a time."""

SECONDS_TO_CONNECT = 10


def prepare_with_ray(
    preparation: Preparation,
    *,
    address: str | None = None,
    num_workers: int | None = None,
    on_progress: Callable[[PreparationProgress], None] = lambda progress: None,
) -> PreparationResult:
    """`prepare_shards` with shards made by a cluster, the same to the byte.

    address: HOST:PORT of a cluster, `auto` for the one that this machine belongs to, None to start one here.
    num_workers: cores for each shard; None: one, or with GPUs, of which each shard has one, the cores that there are
    for each. All machines must see the sources and the output under the same paths.

    PreparationError if the cluster cannot be used, or if MOST_ATTEMPTS workers have died of one shard: all others are
    finished then, and the next run keeps them.
    """
    with _cluster(address) as ray:
        known = begin_preparation(preparation)
        remove_leftovers(preparation.output, ".*.partial")
        known |= load_all_records(preparation.output)
        machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        is_on_gpu = preparation.options.devices == ("cuda",)
        resources = share_of_cluster(machines, is_on_gpu=is_on_gpu, num_workers=num_workers)
        options = dataclasses.replace(preparation.options, num_workers=resources["num_cpus"])
        shared = ray.put(dataclasses.replace(preparation, options=options))
        counts = _count_sources(ray, preparation, known, shared)
        spans = list(plan_spans(known, counts, len(preparation.sources), options.shard_size))
        kept = {span.number: known[span.number] for span in spans if span.is_kept(known, preparation.output)}
        made = _make_spans(ray, preparation, spans, kept, shared, resources, on_progress)
    whole = finish_preparation(preparation, {**kept, **made}, on_progress)
    return dataclasses.replace(whole, num_shards_kept=len(kept))


def count_source(preparation: Preparation, index: int) -> int:
    """The number of samples in a source; runs on a worker."""
    _check_shared_places(preparation, range(index, index + 1))
    return count_samples(preparation.sources[index])


def make_shard(preparation: Preparation, span: InputSpan) -> FinishedShard:
    """The shard of a span, written; runs on a worker."""
    _check_shared_places(preparation, range(span.begin.source, min(span.end.source + 1, len(preparation.sources))))
    with preparation.shard_maker() as maker:
        return make_span(preparation, maker, SpanReader(preparation.sources), span)


def _check_shared_places(preparation: Preparation, sources: range) -> None:
    """A source that a worker does not see would count as damaged, and a shard in its own folder would be lost."""
    cure = "All machines have to see the sources and --output under the same paths, on a network file system."
    manifest = load_manifest(preparation.output)
    if manifest is None:
        raise PreparationError(f"{socket.gethostname()} does not see {preparation.output}/manifest.json. {cure}")
    check_same_settings(manifest.settings, preparation.settings(), preparation.output)
    for path in (preparation.sources[index].path for index in sources):
        if path is not None and not path.exists():
            raise PreparationError(f"{socket.gethostname()} does not see {path}. {cure}")


def _count_sources(
    ray: ModuleType, preparation: Preparation, known: dict[int, FinishedShard], shared: "ObjectRef"
) -> dict[int, int]:
    output, sources = preparation.output, preparation.sources
    noted = {index: load_count(output, index) for index in uncounted_sources(known, len(sources))}
    counts = {index: count for index, count in noted.items() if count is not None}
    task = ray.remote(num_cpus=1, max_retries=0)(count_source)
    missing = [index for index in noted if index not in counts]
    for index, count in _results(
        ray, lambda index: task.remote(shared, index), missing, lambda index: f"Counting {sources[index].name}"
    ):
        save_count(output, index, count)
        counts[index] = count
    return counts


def _make_spans(
    ray: ModuleType,
    preparation: Preparation,
    spans: list[InputSpan],
    kept: dict[int, FinishedShard],
    shared: "ObjectRef",
    resources: dict[str, int],
    on_progress: Callable[[PreparationProgress], None],
) -> dict[int, FinishedShard]:
    """The shards that were not kept, by number, made now."""
    made: dict[int, FinishedShard] = {}
    reader = SpanReader(preparation.sources)  # only its position is used, to say how far we are
    progress = ProgressCounter(reader, on_progress)
    progress.add_earlier(sum(shard.report.seen for shard in kept.values()), len(kept))
    task = ray.remote(**resources, max_retries=0)(make_shard)
    missing = [span for span in spans if span.number not in kept]
    for span, shard in _results(
        ray, lambda span: task.remote(shared, span), missing, lambda span: span.describe(preparation.sources)
    ):
        save_record(preparation.output, span.number, shard)
        made[span.number] = shard
        reader.skip_to(max(reader.position, span.end))
        progress.add(shard.report.seen, len(kept) + len(made))
    return made


def _results(
    ray: ModuleType, start: "Callable[[T], ObjectRef]", items: Iterable[T], describe: Callable[[T], str]
) -> Iterator[tuple[T, Any]]:
    """Each item with the result of its task, as they come.

    An error in a task ends it all, for others would have it too; of workers that die the others know nothing.
    """
    to_start = collections.deque((item, 1) for item in items)
    waiting: dict[ObjectRef, tuple[T, int]] = {}
    lost: list[str] = []
    while to_start or waiting:
        while to_start and len(waiting) < MOST_WAITING:
            item, attempt = to_start.popleft()
            waiting[start(item)] = item, attempt
        (done,), _ = ray.wait(list(waiting))
        item, attempt = waiting.pop(done)
        try:
            yield item, ray.get(done)
        except ray.exceptions.RayTaskError as error:
            raise _error_of_task(error, describe(item)) from error
        except ray.exceptions.RayError as error:
            if attempt < MOST_ATTEMPTS:
                to_start.append((item, attempt + 1))
            else:
                lost.append(f"{describe(item)}: {type(error).__name__}")
    if lost:
        raise PreparationError(
            f"Workers died {MOST_ATTEMPTS} times of {'; '.join(lost[:3])}{' and others' if len(lost) > 3 else ''}. "
            "All else is finished and kept. Ray's logs say why. If memory was short, give each shard more cores with "
            "--workers, so that fewer are made at a time; if it is the input, leave that source out."
        )


def _error_of_task(error: "RayTaskError", task: str) -> Exception:
    """What went wrong on the worker, in one line if the user can do something about it; else with the traceback."""
    if isinstance(error.cause, ValueError | OSError):
        return PreparationError(f"{task}: {error.cause}")
    return RuntimeError(f"{task}: {error}")


@contextlib.contextmanager
def _cluster(address: str | None) -> Iterator[ModuleType]:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    _check_reachable(address)
    try:
        ray.init(address=address or "local", log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise PreparationError(
            f"Ray {f'at {address}' if address else 'here'} cannot be used: {error}. A cluster with a token needs "
            "RAY_AUTH_MODE=token and its ~/.ray/auth_token here; versions of Ray and Python have to be the same."
        ) from error
    try:
        yield ray
    finally:
        ray.shutdown()


def _check_reachable(address: str | None) -> None:
    """Ray itself would try for two minutes."""
    host, colon, port = (address or "").rpartition(":")
    if not colon:
        return
    try:
        socket.create_connection((host, int(port)), SECONDS_TO_CONNECT).close()
    except (OSError, ValueError, OverflowError) as error:
        raise PreparationError(
            f"No Ray cluster answers at {address} ({error}). Expected HOST:PORT of its head, which "
            "`ray start --head` prints."
        ) from error


def share_of_cluster(
    machines: Sequence[Mapping[str, float]], *, is_on_gpu: bool, num_workers: int | None
) -> dict[str, int]:
    """What a shard takes of a machine, given what each machine has. PreparationError if none has that."""
    if is_on_gpu:
        machines = [machine for machine in machines if machine.get("GPU", 0) >= 1]
        if not machines:
            raise PreparationError(
                "No machine of the Ray cluster has a GPU. Use --device cpu, or start Ray where one is."
            )
    num_cores = num_workers or 1
    if is_on_gpu and num_workers is None:
        num_cores = max(1, min(int(machine.get("CPU", 0) // machine["GPU"]) for machine in machines))
    most = max((int(machine.get("CPU", 0)) for machine in machines), default=0)
    if most < num_cores:
        raise PreparationError(
            f"A shard is to take {num_cores} cores, and the largest machine of the Ray cluster offers {most}. "
            "Give a smaller number with --workers."
        )
    return {"num_cpus": num_cores, "num_gpus": int(is_on_gpu)}
