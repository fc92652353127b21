"""Downloads a list of addresses in parts, each a tar as img2dataset writes it; a second run continues."""

import asyncio
import hashlib
import io
import itertools
import json
import random
import tarfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hub_tools.atomic_files import write_text_whole, written_whole
from hub_tools.checks import check_counts
from pipelines.tasks.text_to_image.data_preparation.downloading.address_list import (
    ListedPicture,
    list_files,
    listed_pictures,
)
from pipelines.tasks.text_to_image.data_preparation.downloading.fetching import (
    Failure,
    Fetcher,
    FetchingOptions,
    Picture,
    opened_fetcher,
)
from pipelines.tasks.text_to_image.data_preparation.downloading.politeness import LONGEST_WAIT_SECONDS
from pipelines.tasks.text_to_image.data_preparation.sources.caption_tables import TableDamage

SETTINGS_NAME = "download.json"
FORMAT = 1


class DownloadError(ValueError):
    """A folder that cannot be continued: the message says what was seen, what was expected and the cure."""


@dataclass(frozen=True, kw_only=True)
class DownloadOptions:
    """How a list is downloaded."""

    part_size: int = 10_000
    """Rows of the list per tar."""
    caption_column: str | None = None
    """Column of captions. None: the usual names, in any case."""
    fetching: FetchingOptions = field(default_factory=FetchingOptions)
    """Limits."""

    def __post_init__(self) -> None:
        check_counts(self, "part_size")


@dataclass(frozen=True, kw_only=True)
class DownloadReport:
    """What became of the rows; reports of parts add up."""

    num_rows: int = 0
    """Rows of the list."""
    num_downloaded: int = 0
    """Pictures that lie in the tars."""
    failures: Mapping[str, int] = field(default_factory=dict)
    """Rows without a picture, by reason."""
    damaged_lists: tuple[str, ...] = ()
    """Files of the list that could not be read to their end."""

    def __add__(self, other: "DownloadReport") -> "DownloadReport":
        return DownloadReport(
            num_rows=self.num_rows + other.num_rows,
            num_downloaded=self.num_downloaded + other.num_downloaded,
            failures=dict(sorted((Counter(self.failures) + Counter(other.failures)).items())),
            damaged_lists=self.damaged_lists + other.damaged_lists,
        )


def download_list(
    place: Path, output: Path, options: DownloadOptions, on_part: Callable[[DownloadReport], None] = lambda report: None
) -> DownloadReport:
    """Write `00000.tar`, `00000_stats.json`, `00000_failures.jsonl`, ... and return what became of all rows.

    Each part stands for the same rows of the list in every run; finished ones are kept. DownloadError if the folder
    was begun with another list or part size.
    """
    files = list_files(place)
    output.mkdir(parents=True, exist_ok=True)
    _check_settings(output, _settings(files, options))
    for leftover in output.glob(".*.partial"):
        leftover.unlink()
    damages: list[str] = []
    rows = _all_rows(files, options.caption_column, damages)
    report = DownloadReport()
    for number in itertools.count():
        part = list(itertools.islice(rows, options.part_size))
        if not part:
            return report + DownloadReport(damaged_lists=tuple(damages))
        report += _finished_part(output, number) or asyncio.run(_download_part(part, number, output, options.fetching))
        on_part(report)
    raise AssertionError("counting never ends")


def _all_rows(files: Sequence[Path], caption_column: str | None, damages: list[str]) -> Iterator[ListedPicture]:
    for file in files:
        try:
            yield from listed_pictures(file, caption_column)
        except TableDamage as damage:
            damages.append(f"{file.name}: {damage}")


async def _download_part(
    rows: list[ListedPicture], number: int, output: Path, options: FetchingOptions
) -> DownloadReport:
    with written_whole(output / f"{number:05d}.tar") as temporary:
        with tarfile.open(temporary, "w") as tar:
            async with opened_fetcher(options) as fetcher:
                failures = await _two_passes(rows, number, tar, fetcher, options.num_at_once)
        lines = [
            json.dumps({"row": row, "url": rows[row].address, "reason": failure.reason}, ensure_ascii=False)
            for row, failure in sorted(failures.items())
        ]
        write_text_whole(output / f"{number:05d}_failures.jsonl", "".join(f"{_encodable(line)}\n" for line in lines))
    report = DownloadReport(
        num_rows=len(rows),
        num_downloaded=len(rows) - len(failures),
        failures=dict(sorted(Counter(failure.reason for failure in failures.values()).items())),
    )
    write_text_whole(_stats_path(output, number), _stats_text(report))
    return report


async def _two_passes(
    rows: list[ListedPicture], number: int, tar: tarfile.TarFile, fetcher: Fetcher, num_at_once: int
) -> dict[int, Failure]:
    """Fetch all, and once more what failed for a reason that may have gone; return the failures by row."""
    # Lists are often sorted by host: mixed, no host gets all requests at once.
    order = list(range(len(rows)))
    random.Random(number).shuffle(order)
    failures = await _one_pass(order, rows, number, tar, fetcher, num_at_once)
    fetcher.hosts.forgive()
    fetcher.patience_seconds = LONGEST_WAIT_SECONDS
    again = [row for row in order if row in failures and failures[row].is_temporary]
    second = await _one_pass(again, rows, number, tar, fetcher, num_at_once)
    return {row: failure for row, failure in failures.items() if row not in again} | second


async def _one_pass(
    order: list[int],
    rows: list[ListedPicture],
    number: int,
    tar: tarfile.TarFile,
    fetcher: Fetcher,
    num_at_once: int,
) -> dict[int, Failure]:
    waiting, failures = iter(order), {}

    async def work() -> None:
        for row in waiting:
            address = rows[row].address
            answer = await fetcher.fetch(address) if address else Failure(reason="no_address")
            if isinstance(answer, Picture):
                answer = _add_sample(tar, f"{number:05d}{row:05d}", rows[row], answer)
            if answer is not None:
                failures[row] = answer

    async with asyncio.TaskGroup() as workers:
        for _ in range(min(num_at_once, len(order))):
            workers.create_task(work())
    return failures


def _add_sample(tar: tarfile.TarFile, key: str, listed: ListedPicture, picture: Picture) -> Failure | None:
    """Picture, caption and all columns, next to each other as webdataset wants them; or why they cannot be written."""
    metadata = {
        **{str(name): value for name, value in listed.columns.items()},
        "key": key,
        "url": listed.address,
        "sha256": hashlib.sha256(picture.content).hexdigest(),
    }
    try:
        files = {picture.suffix: picture.content, ".json": _encodable(json.dumps(metadata, default=str)).encode()}
        if listed.caption is not None:
            files[".txt"] = listed.caption.encode("utf-8", "surrogateescape")
    except (ValueError, TypeError, RecursionError):  # halves of letters, values in each other without end
        return Failure(reason="damaged_row")
    for suffix, content in files.items():
        member = tarfile.TarInfo(key + suffix)
        member.size = len(content)
        tar.addfile(member, io.BytesIO(content))
    return None


def _encodable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def _stats_path(output: Path, number: int) -> Path:
    return output / f"{number:05d}_stats.json"


def _stats_text(report: DownloadReport) -> str:
    """The report under img2dataset's names."""
    status = {"success": report.num_downloaded, **report.failures}
    values = {
        "count": report.num_rows,
        "successes": report.num_downloaded,
        "failed_to_download": report.num_rows - report.num_downloaded,
        "status_dict": status,
    }
    return json.dumps(values, indent=1) + "\n"


def _finished_part(output: Path, number: int) -> DownloadReport | None:
    """The report of a part that an earlier run finished: its statistics are written last."""
    path = _stats_path(output, number)
    if not path.is_file() or not (output / f"{number:05d}.tar").is_file():
        return None
    values = json.loads(path.read_text(encoding="utf-8"))
    failures = {reason: count for reason, count in values["status_dict"].items() if reason != "success"}
    return DownloadReport(num_rows=values["count"], num_downloaded=values["successes"], failures=failures)


def _settings(files: Sequence[Path], options: DownloadOptions) -> dict[str, object]:
    return {
        "format": FORMAT,
        "part_size": options.part_size,
        "caption_column": options.caption_column,
        "lists": [{"name": file.name, "num_bytes": file.stat().st_size} for file in files],
    }


def _check_settings(output: Path, settings: dict[str, object]) -> None:
    path = output / SETTINGS_NAME
    if not path.is_file():
        write_text_whole(path, json.dumps(settings, indent=1) + "\n")
        return
    try:
        earlier = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DownloadError(f"{path} is damaged ({error}). Use another --output, or delete {output}.") from error
    different = [name for name, value in settings.items() if earlier.get(name) != value]
    if different:
        raise DownloadError(
            f"{output} was begun with another {' and '.join(different)}. Use the first settings to continue, "
            "or another --output."
        )
