"""A list of duplicates over any number of sources, made in parts that are kept, and sources without them."""

import concurrent.futures
import functools
import hashlib
import json
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hub_tools.atomic_files import file_digest, written_whole
from pipelines.tasks.text_to_image.data_preparation.deduplication.fingerprints import (
    FINGERPRINT_BYTES,
    digest_of,
    fingerprint,
)
from pipelines.tasks.text_to_image.data_preparation.deduplication.neighbours import (
    LARGEST_DISTANCE,
    first_of_equals,
    first_of_neighbours,
)
from pipelines.tasks.text_to_image.data_preparation.filtering import (
    DropReason,
    FilterPolicy,
    FilterReport,
    damage_report,
    drop_reason,
    report_of_drop,
    sum_reports,
)
from pipelines.tasks.text_to_image.data_preparation.sources.sample import CaptionImage, CaptionImageSource, SourceDamage

LIST_NAME = "duplicates.parquet"
REPORT_KEY = "dropped"
ROWS_AT_ONCE = 4096
PART_SCHEMA = pa.schema([("name", pa.string()), ("digest", pa.uint64()), ("fingerprint", pa.binary(FINGERPRINT_BYTES))])
LIST_SCHEMA = pa.schema([("name", pa.string()), ("reason", pa.string()), ("duplicate_of", pa.string())])


@dataclass(frozen=True, kw_only=True)
class DuplicatesReport:
    """What was compared and found."""

    num_exact: int
    """Samples whose file came before."""
    num_near: int
    """Samples that look like one before."""
    filtered: FilterReport
    """The samples that were compared as kept, the others as dropped."""

    @property
    def num_compared(self) -> int:
        """Samples that the filter keeps."""
        return self.filtered.kept


def find_duplicates(
    sources: Sequence[CaptionImageSource],
    output: Path,
    policy: FilterPolicy,
    *,
    distance: int = LARGEST_DISTANCE,
    num_workers: int = 1,
    on_source: Callable[[int], None] = lambda num_sources: None,
) -> DuplicatesReport:
    """Write `duplicates.parquet` into output: all samples that look like an earlier one, which alone is kept.

    Only what the filter keeps is compared, so that no picture is left out for one that is dropped. Fingerprints are
    stored for each source: a second run makes only those that are missing. ValueError for a distance above 3.
    """
    if not 0 <= distance <= LARGEST_DISTANCE:
        raise ValueError(f"distance is {distance}; expected 0 to {LARGEST_DISTANCE} bits.")
    output.mkdir(parents=True, exist_ok=True)
    paths = [_part_path(output, source, policy) for source in sources]
    missing = [(source, path) for source, path in zip(sources, paths, strict=True) if not path.is_file()]
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(num_workers, mp_context=context) as executor:
        work = functools.partial(_fingerprint_source, policy=policy)
        for number, _ in enumerate(executor.map(work, *zip(*missing, strict=True)) if missing else (), 1):
            on_source(len(sources) - len(missing) + number)
    return _write_list(paths, output / LIST_NAME, distance)


class SourceWithoutDuplicates:
    """A source in which the duplicates of a list have a fault; they are counted like all that is dropped."""

    def __init__(self, source: CaptionImageSource, duplicates: "DuplicatesList"):
        self.source = source
        self.name = f"{source.name} without the duplicates {duplicates.digest[:12]}"
        self.num_bytes = source.num_bytes
        self.path = source.path
        self.duplicates = duplicates

    def samples(self, begin: int = 0) -> Iterator[CaptionImage | SourceDamage]:
        """All samples from `begin` on."""
        for sample in self.source.samples(begin):
            if isinstance(sample, CaptionImage) and sample.fault is None:
                yield replace(sample, fault=self.duplicates.reason_of(_name_of(sample)))
            else:
                yield sample


class DuplicatesList:
    """Names of duplicates as digests: nine bytes for each."""

    def __init__(self, path: Path):
        if not path.is_file():
            raise FileNotFoundError(
                f"There is no {path}. Expected {LIST_NAME} of: dalle-collab data deduplicate SOURCES --output DIR"
            )
        self.digest = file_digest(path)
        names, is_near = [], []
        with pq.ParquetFile(path) as parquet:
            for batch in parquet.iter_batches(ROWS_AT_ONCE, columns=["name", "reason"]):
                names.append(np.array([digest_of(name.encode()) for name in batch["name"].to_pylist()], np.uint64))
                is_near.append(
                    np.array([reason == DropReason.NEAR_DUPLICATE for reason in batch["reason"].to_pylist()])
                )
        names, is_near = np.concatenate([np.empty(0, np.uint64), *names]), np.concatenate([np.empty(0, bool), *is_near])
        order = np.argsort(names)
        self._names, self._is_near = names[order], is_near[order]

    def reason_of(self, name: str) -> DropReason | None:
        """Why a sample of this name is left out, or None."""
        digest = np.uint64(digest_of(name.encode()))
        place = int(np.searchsorted(self._names, digest))
        if place == len(self._names) or self._names[place] != digest:
            return None
        return DropReason.NEAR_DUPLICATE if self._is_near[place] else DropReason.EXACT_DUPLICATE


def _name_of(sample: CaptionImage) -> str:
    return f"{sample.source}/{sample.key}"


def _part_path(output: Path, source: CaptionImageSource, policy: FilterPolicy) -> Path:
    identity = hashlib.sha256(f"{source.name} {source.num_bytes} {policy}".encode()).hexdigest()
    return output / f"fingerprints-{identity[:24]}.parquet"


def _fingerprint_source(source: CaptionImageSource, path: Path, policy: FilterPolicy) -> None:
    with written_whole(path) as temporary, pq.ParquetWriter(temporary, PART_SCHEMA, compression="zstd") as writer:
        rows: list[dict] = []
        report = FilterReport()
        for sample in source.samples():
            is_damage = isinstance(sample, SourceDamage)
            if is_damage or (reason := drop_reason(sample, policy)) is not None:
                report += damage_report(sample) if is_damage else report_of_drop(sample, reason)
                continue
            rows.append(
                {
                    "name": _name_of(sample),
                    "digest": digest_of(sample.image_bytes),
                    "fingerprint": fingerprint(sample.image_bytes),
                }
            )
            if len(rows) == ROWS_AT_ONCE:
                writer.write_table(pa.Table.from_pylist(rows, PART_SCHEMA))
                rows = []
        writer.write_table(pa.Table.from_pylist(rows, PART_SCHEMA))
        writer.add_key_value_metadata({REPORT_KEY: json.dumps(report.to_json())})


def _report_of(path: Path) -> FilterReport:
    metadata = pq.read_metadata(path)
    dropped = (metadata.metadata or {}).get(REPORT_KEY.encode())  # lists that older versions made have none
    report = FilterReport.from_json(json.loads(dropped)) if dropped else FilterReport()
    return report + FilterReport(kept=metadata.num_rows)


def _write_list(paths: Sequence[Path], path: Path, distance: int) -> DuplicatesReport:
    digests, fingerprints, is_comparable = _read_fingerprints(paths)
    exact_for = first_of_equals(digests)
    kept_for = exact_for.copy()
    candidates = np.flatnonzero((exact_for == np.arange(len(digests))) & is_comparable)
    kept_for[candidates] = candidates[first_of_neighbours(fingerprints[candidates], distance)]
    kept_for = kept_for[kept_for]  # a copy of a near duplicate stands behind the same picture
    is_exact = exact_for != np.arange(len(digests))
    dropped = np.flatnonzero(kept_for != np.arange(len(digests)))
    names = _names_of(paths, np.union1d(dropped, kept_for[dropped]))
    reasons = np.where(is_exact[dropped], DropReason.EXACT_DUPLICATE.value, DropReason.NEAR_DUPLICATE.value)
    columns = [
        [names[index] for index in dropped.tolist()],
        reasons.tolist(),
        [names[index] for index in kept_for[dropped].tolist()],
    ]
    with written_whole(path) as temporary:
        pq.write_table(pa.table(columns, schema=LIST_SCHEMA), temporary, compression="zstd")
    num_exact = int(is_exact[dropped].sum())
    return DuplicatesReport(
        num_exact=num_exact,
        num_near=len(dropped) - num_exact,
        filtered=sum_reports(map(_report_of, paths)),
    )


def _read_fingerprints(paths: Sequence[Path]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Digests (n,) uint64, fingerprints (n, 16) uint8, and which samples have one (n,) bool."""
    num_rows = sum(pq.read_metadata(path).num_rows for path in paths)
    digests = np.empty(num_rows, np.uint64)
    fingerprints = np.zeros((num_rows, FINGERPRINT_BYTES), np.uint8)
    is_comparable = np.zeros(num_rows, bool)
    begin = 0
    for path in paths:
        for batch in pq.ParquetFile(path).iter_batches(columns=["digest", "fingerprint"]):
            rows = slice(begin, begin + batch.num_rows)
            digests[rows] = batch["digest"].to_numpy()
            values = batch["fingerprint"].to_pylist()
            is_comparable[rows] = [value is not None for value in values]
            joined = b"".join(value or bytes(FINGERPRINT_BYTES) for value in values)
            fingerprints[rows] = np.frombuffer(joined, np.uint8).reshape(-1, FINGERPRINT_BYTES)
            begin += batch.num_rows
    return digests, fingerprints, is_comparable


def _names_of(paths: Sequence[Path], wanted: np.ndarray) -> dict[int, str]:
    """The names of some samples by index, which is sorted."""
    names, begin = {}, 0
    for path in paths:
        for batch in pq.ParquetFile(path).iter_batches(columns=["name"]):
            first, last = np.searchsorted(wanted, (begin, begin + batch.num_rows))
            for index in wanted[first:last].tolist():
                names[index] = batch["name"][index - begin].as_py()
            begin += batch.num_rows
    return names
