"""Which column of a table holds pictures, and a sample from one of its rows."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import PurePosixPath

from pipelines.tasks.text_to_image.data_preparation.filtering import DropReason
from pipelines.tasks.text_to_image.data_preparation.reading.labels import (
    ALL_FIELDS,
    fields_of,
    first_value,
    fold_name,
    parse_metadata,
)
from pipelines.tasks.text_to_image.data_preparation.reading.reading_options import ReadingOptions
from pipelines.tasks.text_to_image.data_preparation.sources.assembly import (
    CAPTION_COLUMNS,
    find_caption,
    make_sample,
    picture_fault,
    with_fault,
)
from pipelines.tasks.text_to_image.data_preparation.sources.sample import CaptionImage

IMAGE_COLUMNS = ("image", "jpg", "jpeg", "png", "webp", "picture", "img", "photo", "image_bytes", "bytes")
KEY_COLUMNS = ("key", "__key__")


def find_image_column(
    columns: Sequence[str], of_pictures: Collection[str], reading: ReadingOptions, place: str
) -> str | None:
    """The column of pictures among those that can hold one; None if there is none.

    ValueError if the publisher's choice is no such column, or if it is not clear which one is meant.
    """
    if reading.caption_from != "files":
        raise ValueError(f"{place} is a table, whose rows have no names of files. Leave out --caption-from.")
    if reading.image_column is not None:
        wanted = [name for name in of_pictures if fold_name(name) == fold_name(reading.image_column)]
        if not wanted:
            raise ValueError(
                f"{place} has no column of pictures {reading.image_column!r}. Its columns are: "
                f"{', '.join(columns)}. Choose another --image-column."
            )
        return wanted[0]
    usual = [name for known in IMAGE_COLUMNS for name in of_pictures if fold_name(name) == known]
    found = usual or list(of_pictures)
    if len(found) > 1 and not usual:
        raise ValueError(f"{place} has several columns of pictures: {', '.join(found)}. Choose one: --image-column.")
    return found[0] if found else None


def is_wanted(column: str, reading: ReadingOptions) -> bool:
    """Whether a sample is made from this column; what else is in a table may be anything."""
    name = fold_name(column)
    chosen = None if reading.caption_column is None else fold_name(reading.caption_column)
    return name == chosen or name in ALL_FIELDS or name in (*CAPTION_COLUMNS, *KEY_COLUMNS, "json")


def sample_of_row(
    row: Mapping[str, object], number: int, source: str, image_column: str, reading: ReadingOptions
) -> CaptionImage:
    """The sample in a row; its picture is bytes, or bytes and path as `datasets` stores them."""
    fields = fields_of({name: value for name, value in row.items() if name != image_column})
    nested, is_damaged = _metadata(first_value(fields, ("json",)))
    fields = [*fields, *fields_of(nested)]
    picture = row.get(image_column)
    path = ""
    if isinstance(picture, Mapping):
        picture, path = picture.get("bytes"), str(picture.get("path") or "")
    key = first_value(fields, KEY_COLUMNS)
    sample = make_sample(
        key=str(number if key is None else key)[:4096],
        source=source,
        caption=find_caption(fields, [], reading),
        image_bytes=picture if isinstance(picture, bytes) else None,
        fields=fields,
    )
    if sample.image_bytes is not None:
        sample = with_fault(sample, picture_fault(PurePosixPath(path).suffix, sample.image_bytes))
    return with_fault(sample, (DropReason.DAMAGED_METADATA, "no JSON object") if is_damaged else None)


def _metadata(value: object) -> tuple[Mapping[str, object], bool]:
    """The object in img2dataset's column `json`, and whether it is damaged."""
    if value is None or isinstance(value, Mapping):
        return value or {}, False
    parsed = parse_metadata(value) if isinstance(value, str | bytes) else None
    return parsed or {}, parsed is None
