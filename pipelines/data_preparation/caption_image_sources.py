"""Sources of captioned pictures: webdataset tars as written by img2dataset, or a folder of pictures."""

import csv
import json
import tarfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

PICTURE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp")
OTHER_PICTURE_SUFFIXES = (".svg", ".svgz", ".gif", ".bmp", ".tif", ".tiff", ".heic", ".avif", ".jxl")
TAR_SUFFIXES = (".tar", ".tar.gz", ".tgz")
CAPTION_TABLES = ("metadata.jsonl", "metadata.csv", "captions.csv")
FILE_COLUMNS = ("file_name", "file", "image")
CAPTION_COLUMNS = ("caption", "text")
LARGEST_MEMBER_BYTES = 64 * 2**20
END_OF_ARCHIVE = bytes(1024)


@dataclass(frozen=True, kw_only=True)
class CaptionImage:
    """One sample as found, before filtering."""

    key: str
    """Name of the sample inside its source."""
    source: str
    """Name of its tar or folder."""
    caption: str | None
    """The caption, None when there is none."""
    image_bytes: bytes | None
    """The picture's file, None when it is missing."""
    nsfw: str | None = None
    """LAION's NSFW label, None when unknown."""
    similarity: float | None = None
    """LAION's CLIP similarity of caption and picture."""
    original_width: int | None = None
    """Pixels before any resizing; None: as the picture itself."""
    original_height: int | None = None
    """Pixels before any resizing; None: as the picture itself."""


@dataclass(frozen=True, kw_only=True)
class SourceDamage:
    """A source that ended early: everything before the damage was yielded, the rest is lost."""

    source: str
    """Name of the source."""
    reason: str
    """What was seen."""
    num_samples_read: int
    """Samples yielded before the damage."""

    def __str__(self) -> str:
        return f"{self.source}: {self.reason}; {self.num_samples_read} samples were read, later ones are lost"


class CaptionImageSource(Protocol):
    """Something that yields captioned pictures, in the same order every time."""

    name: str
    num_bytes: int

    def samples(self) -> Iterator[CaptionImage | SourceDamage]:
        """All samples; a SourceDamage comes last, if at all."""


class TarSource:
    """A webdataset tar: `KEY.jpg|png|webp`, `KEY.txt` and `KEY.json` with LAION's fields, next to each other."""

    def __init__(self, path: Path):
        self.path = path
        self.name = path.name
        self.num_bytes = path.stat().st_size

    def samples(self) -> Iterator[CaptionImage | SourceDamage]:
        """All samples, read as a stream: nothing is extracted, and member names never become paths."""
        num_samples = 0
        try:
            for key, parts in self._grouped_members():
                num_samples += 1
                yield _sample_from_parts(key, self.name, parts)
        except (tarfile.TarError, EOFError, OSError) as error:
            yield SourceDamage(
                source=self.name, reason=str(error) or type(error).__name__, num_samples_read=num_samples
            )
            return
        if not self._has_end_mark():
            # tarfile takes a tar that was cut between or inside headers for a complete one.
            yield SourceDamage(source=self.name, reason="no end-of-archive mark", num_samples_read=num_samples)

    def _grouped_members(self) -> Iterator[tuple[str, dict[str, bytes]]]:
        key, parts = None, {}
        try:
            with tarfile.open(self.path, "r|*") as tar:
                for member in tar:
                    tar.members = []  # a stream never seeks back; otherwise every header stays in memory
                    if not member.isfile() or member.size > LARGEST_MEMBER_BYTES:
                        continue
                    member_key, suffix = _split_member_name(member.name)
                    if key is not None and member_key != key:
                        yield key, parts
                        parts = {}
                    key = member_key
                    parts[suffix] = tar.extractfile(member).read()
        except (tarfile.TarError, EOFError, OSError):
            if _has_picture_and_text(parts):
                yield key, parts
            raise
        # The last sample of a cut tar may have lost parts: it must not count as one without picture or caption.
        if key is not None and (self._has_end_mark() or _has_picture_and_text(parts)):
            yield key, parts

    def _has_end_mark(self) -> bool:
        if self.path.suffix != ".tar":
            return True  # a compressed stream has its own checksum
        with self.path.open("rb") as file:
            file.seek(max(0, self.num_bytes - len(END_OF_ARCHIVE)))
            return file.read() == END_OF_ARCHIVE


class FolderSource:
    """A folder of pictures with captions: `NAME.jpg` + `NAME.txt`, or a table that names each file and its caption.

    Of a text file the first line that is not empty is the caption; more lines are often notes, or translations.
    """

    def __init__(self, path: Path):
        self.path = path
        self.name = path.name
        files = sorted(file for file in path.rglob("*") if file.is_file())
        self.pictures = [file for file in files if file.suffix.lower() in PICTURE_SUFFIXES]
        self.not_read = Counter(file.suffix.lower() for file in files if file.suffix.lower() in OTHER_PICTURE_SUFFIXES)
        """Pictures in formats that are not read, by suffix."""
        self.num_bytes = sum(file.stat().st_size for file in self.pictures)

    def samples(self) -> Iterator[CaptionImage | SourceDamage]:
        """All pictures in the order of their names; then those listed in the table but missing from the folder."""
        rows = _read_caption_table(self.path)
        for picture in self.pictures:
            name = picture.relative_to(self.path).as_posix()
            row = rows.pop(name, {})
            text = picture.with_suffix(".txt")
            caption = _first_line(text.read_bytes()) if text.is_file() else _first(row, CAPTION_COLUMNS)
            yield _sample(name, self.name, caption, picture.read_bytes(), row)
        for name, row in sorted(rows.items()):
            yield _sample(name, self.name, _first(row, CAPTION_COLUMNS), None, row)


def find_sources(paths: list[Path]) -> list[CaptionImageSource]:
    """The sources behind tars, folders of tars and folders of pictures, in the order given, tars by name.

    FileNotFoundError for a path that does not exist; ValueError for one with nothing to read.
    """
    sources: list[CaptionImageSource] = []
    for path in paths:
        if not path.exists():
            raise FileNotFoundError(f"There is no {path}. Expected a tar, a folder of tars or a folder of pictures.")
        tars = sorted(path.iterdir()) if path.is_dir() else [path]
        tars = [tar for tar in tars if tar.name.endswith(TAR_SUFFIXES) and not tar.name.startswith(".")]
        found = [TarSource(tar) for tar in tars] or ([FolderSource(path)] if path.is_dir() else [])
        if not found or (isinstance(found[0], FolderSource) and not found[0].pictures):
            raise ValueError(
                f"{path} has no tars ({', '.join(TAR_SUFFIXES)}) and no pictures ({', '.join(PICTURE_SUFFIXES)}). "
                "Download pairs with img2dataset (output_format webdataset), or point to a folder of pictures."
            )
        sources += found
    return sources


def _split_member_name(name: str) -> tuple[str, str]:
    path = PurePosixPath(name)
    stem, _, suffix = path.name.partition(".")
    return str(path.parent / stem), f".{suffix.lower()}"


def _has_picture_and_text(parts: Mapping[str, bytes]) -> bool:
    return any(suffix in parts for suffix in PICTURE_SUFFIXES) and bool({".txt", ".json"} & parts.keys())


def _sample_from_parts(key: str, source: str, parts: Mapping[str, bytes]) -> CaptionImage:
    metadata = _parse_json(parts.get(".json", b"{}"))
    caption = parts[".txt"].decode(errors="replace").strip() if ".txt" in parts else _first(metadata, CAPTION_COLUMNS)
    image_bytes = next((parts[suffix] for suffix in PICTURE_SUFFIXES if suffix in parts), None)
    return _sample(key, source, caption, image_bytes, metadata)


def _sample(
    key: str, source: str, caption: str | None, image_bytes: bytes | None, metadata: Mapping[str, Any]
) -> CaptionImage:
    nsfw = metadata.get("NSFW") or None
    return CaptionImage(
        key=key,
        source=source,
        caption=caption,
        image_bytes=image_bytes,
        nsfw=None if nsfw is None else str(nsfw),
        similarity=_number(metadata.get("similarity"), float),
        original_width=_number(metadata.get("original_width"), int),
        original_height=_number(metadata.get("original_height"), int),
    )


def _parse_json(content: bytes) -> dict[str, Any]:
    try:
        parsed = json.loads(content)
    except ValueError:  # damaged metadata: the picture and the caption may still be intact
        return {}
    return parsed if isinstance(parsed, dict) else {}


def _number(value: Any, kind: type) -> Any:
    try:
        return kind(float(value))
    except (TypeError, ValueError, OverflowError):
        return None


def _first_line(content: bytes) -> str:
    lines = content.decode("utf-8-sig", errors="replace").split("\n")  # a byte order mark is no part of a caption
    return next((line.strip() for line in lines if line.strip()), "")


def _first(row: Mapping[str, Any], columns: tuple[str, ...]) -> str | None:
    return next((str(row[column]).strip() for column in columns if row.get(column) is not None), None)


def _read_caption_table(folder: Path) -> dict[str, dict[str, Any]]:
    for name in CAPTION_TABLES:
        table = folder / name
        if table.is_file():
            with table.open(newline="", encoding="utf-8", errors="replace") as lines:
                rows = csv.DictReader(lines) if table.suffix == ".csv" else map(_parse_json, map(str.encode, lines))
                return {file: dict(row) for row in rows if (file := _first(row, FILE_COLUMNS))}
    return {}
