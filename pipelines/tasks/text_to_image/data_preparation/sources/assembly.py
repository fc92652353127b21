"""From the files or columns of one sample to the sample: the same for all sources."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from pipelines.tasks.text_to_image.data_preparation.filtering import DropReason
from pipelines.tasks.text_to_image.data_preparation.reading.captions import (
    LARGEST_TEXT,
    clean_caption,
    decode_text,
    words_of_name,
)
from pipelines.tasks.text_to_image.data_preparation.reading.labels import (
    LARGEST_METADATA_BYTES,
    Fields,
    fields_of,
    first_value,
    fold_name,
    parse_metadata,
    read_labels,
)
from pipelines.tasks.text_to_image.data_preparation.reading.reading_options import ReadingOptions
from pipelines.tasks.text_to_image.data_preparation.sources.file_kinds import (
    LARGEST_PICTURE_BYTES,
    FileKind,
    FileName,
    readable_name,
    unsupported_format,
)
from pipelines.tasks.text_to_image.data_preparation.sources.sample import CaptionImage

CAPTION_COLUMNS = (
    *("caption", "text", "alt_text", "alttext", "alt", "description", "title", "prompt", "txt"),
    *("captions", "sentence", "comment"),
)

Fault = tuple[DropReason, str]
SamplesOfKey = tuple[int, Iterator[CaptionImage]]
"""How many samples the files of one key make, and the samples, which are read when they are asked for."""


@dataclass(frozen=True, kw_only=True)
class SampleFile:
    """One file of a sample."""

    name: FileName
    """Its name, taken apart."""
    size: int
    """Bytes."""
    read: Callable[[int], bytes]
    """Reads at most so many bytes from its start; OSError if it cannot."""
    obstacle: str | None = None
    """Why it cannot be read, such as "link"; None: it can."""


@dataclass(frozen=True, kw_only=True)
class CaptionFound:
    """A caption, or what is wrong with it."""

    caption: str | None = None
    fault: Fault | None = None


def assemble(
    key: str,
    source: str,
    parts: Sequence[SampleFile],
    reading: ReadingOptions,
    rows: Sequence[Mapping[str, object]] = (),
) -> Iterator[CaptionImage]:
    """One sample for each picture among the parts of one key, or one without picture; rows of tables add fields.

    A picture with several rows is one sample for each row: data sets of captions have five to a picture.
    """
    pictures = [part for part in parts if part.name.kind is FileKind.PICTURE]
    texts = [part for part in parts if part.name.kind is FileKind.TEXT]
    metadata, damage = _read_metadata([part for part in parts if part.name.kind is FileKind.METADATA])
    number, reads_names = 0, reading.caption_from != "files"
    for picture in pictures or (None,):
        image_bytes, obstacle = _read_picture(picture) if picture else (None, None)
        for row in rows or ({},):
            fields = fields_of(row, *metadata)
            found = _named(picture, reading) if picture and reads_names else find_caption(fields, texts, reading)
            number += 1
            sample = make_sample(
                key=numbered(key, number), source=source, caption=found, image_bytes=image_bytes, fields=fields
            )
            if not pictures and not texts and not rows and found.caption is None:
                seen = (parts[0].obstacle or parts[0].name.suffix.lower()[:8]) if parts else ""
                yield with_fault(sample, (DropReason.UNKNOWN_KIND, seen or "no suffix"))
            else:
                yield with_fault(sample, obstacle or damage)


def num_assembled(parts: Sequence[SampleFile], rows: Sequence[Mapping[str, object]] = ()) -> int:
    """How many samples `assemble` makes of these."""
    return max(1, sum(part.name.kind is FileKind.PICTURE for part in parts)) * max(1, len(rows))


def samples_after(begin: int, found: Iterable[SamplesOfKey]) -> Iterator[CaptionImage]:
    """All samples after the first `begin`; of keys that lie before, nothing is read."""
    for num_samples, samples in found:
        if begin < num_samples:
            yield from itertools.islice(samples, begin, None)
        begin = max(0, begin - num_samples)


def make_sample(
    *, key: str, source: str, caption: CaptionFound, image_bytes: bytes | None, fields: Fields
) -> CaptionImage:
    """The sample with all that its fields say."""
    labels = read_labels(fields)
    sample = CaptionImage(
        key=readable_name(key),
        source=source,
        caption=caption.caption,
        image_bytes=image_bytes,
        nsfw=labels.nsfw,
        unsafe_score=labels.unsafe_score,
        similarity=labels.similarity,
        original_width=labels.original_width,
        original_height=labels.original_height,
    )
    return with_fault(sample, caption.fault)


def numbered(key: str, number: int) -> str:
    """A name of its own for each sample of one key."""
    return key if number == 1 else f"{key}#{number}"


def with_fault(sample: CaptionImage, fault: Fault | None) -> CaptionImage:
    """The sample with this fault, unless it has one already."""
    if fault is None or sample.fault is not None:
        return sample
    return replace(sample, fault=fault[0], fault_detail=fault[1])


def picture_fault(suffix: str, content: bytes) -> Fault | None:
    """What keeps a picture from being tried, or None."""
    if len(content) > LARGEST_PICTURE_BYTES:
        return DropReason.TOO_LARGE, "picture"
    unsupported = unsupported_format(suffix, content)
    return (DropReason.UNSUPPORTED_FORMAT, unsupported) if unsupported else None


def find_caption(fields: Fields, texts: Sequence[SampleFile], reading: ReadingOptions) -> CaptionFound:
    """The chosen column, else the first text that says something, else the usual columns."""
    if reading.caption_column is not None:
        return caption_of_value(first_value(fields, (fold_name(reading.caption_column),)), reading)
    found = CaptionFound()
    for part in texts:
        found = _caption_of_text(part, reading)
        if found.caption or found.fault:
            return found
    of_columns = caption_of_value(first_value(fields, CAPTION_COLUMNS), reading)
    return of_columns if of_columns.caption or of_columns.fault or not texts else found


def caption_of_value(value: object, reading: ReadingOptions) -> CaptionFound:
    """The caption in a column: a text, or a list of texts, which counts as several lines."""
    if value is None or value != value:  # NaN is how tables say "nothing"
        return CaptionFound()
    if isinstance(value, list | tuple) and value and all(isinstance(text, str) for text in value):
        value = "\n".join(text for text in value[:1000])
    if isinstance(value, bytes):
        return _caption_of_bytes(value, reading)
    if isinstance(value, list | tuple | dict):
        return CaptionFound(fault=(DropReason.LIST_CAPTION, type(value).__name__))
    # The csv and file readers keep bytes that are not UTF-8 as lone surrogates of this range.
    if any("\udc80" <= character <= "\udcff" for character in str(value)[:LARGEST_TEXT] if character > "\ud7ff"):
        return CaptionFound(fault=(DropReason.UNREADABLE_TEXT, "not UTF-8"))
    return CaptionFound(caption=clean_caption(str(value), reading.caption_lines))


def _named(picture: SampleFile, reading: ReadingOptions) -> CaptionFound:
    return caption_of_value(words_of_name(picture.name.key, reading.caption_from), reading)


def _caption_of_text(part: SampleFile, reading: ReadingOptions) -> CaptionFound:
    if part.obstacle:
        return CaptionFound(fault=(DropReason.UNREADABLE_FILE, part.obstacle))
    try:
        return _caption_of_bytes(part.read(LARGEST_TEXT), reading)
    except OSError as error:
        return CaptionFound(fault=_unreadable(error))


def _caption_of_bytes(content: bytes, reading: ReadingOptions) -> CaptionFound:
    text = decode_text(content)
    if text is None:
        return CaptionFound(fault=(DropReason.UNREADABLE_TEXT, "neither UTF-8 nor UTF-16"))
    return CaptionFound(caption=clean_caption(text, reading.caption_lines))


def _read_metadata(parts: Sequence[SampleFile]) -> tuple[list[dict[str, object]], Fault | None]:
    """All objects, and the first damage: what cannot be read may have said that the picture is unsafe."""
    objects, damage = [], None
    for part in parts:
        if part.obstacle:
            damage = damage or (DropReason.DAMAGED_METADATA, part.obstacle)
            continue
        try:
            parsed = parse_metadata(part.read(LARGEST_METADATA_BYTES + 1))
        except OSError as error:
            damage = damage or (DropReason.DAMAGED_METADATA, _unreadable(error)[1])
            continue
        if parsed is None:
            damage = damage or (DropReason.DAMAGED_METADATA, "no JSON object")
        else:
            objects.append(parsed)
    return objects, damage


def _read_picture(part: SampleFile) -> tuple[bytes | None, Fault | None]:
    if part.obstacle:
        return None, (DropReason.UNREADABLE_FILE, part.obstacle)
    if part.size > LARGEST_PICTURE_BYTES:
        return None, (DropReason.TOO_LARGE, "picture")
    try:
        content = part.read(LARGEST_PICTURE_BYTES + 1)
    except OSError as error:
        return None, _unreadable(error)
    return content, picture_fault(part.name.suffix, content)


def _unreadable(error: OSError) -> Fault:
    return DropReason.UNREADABLE_FILE, error.strerror or type(error).__name__
