"""What files are by their names and first bytes: pictures that are read, pictures that are not, captions, metadata."""

import hashlib
from dataclasses import dataclass
from enum import StrEnum

PICTURE_SUFFIXES = (
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".apng", ".webp", ".gif"),
    *(".bmp", ".dib", ".tif", ".tiff", ".avif", ".avifs"),
)
"""Suffixes of formats that are read."""
OTHER_PICTURE_SUFFIXES = (
    *(".svg", ".svgz", ".heic", ".heif", ".jxl", ".psd", ".psb", ".xcf", ".eps", ".ai", ".pdf", ".ico", ".cur"),
    *(".jp2", ".j2k", ".jpx", ".tga", ".dds", ".exr", ".hdr", ".pcx", ".ppm", ".pgm", ".pbm", ".pnm", ".qoi"),
    *(".raw", ".cr2", ".cr3", ".nef", ".arw", ".dng", ".orf", ".rw2", ".raf", ".wmf", ".emf", ".fits"),
)
"""Suffixes of pictures in formats that are not read: they are counted."""
TEXT_SUFFIXES = (".txt", ".caption")
METADATA_SUFFIXES = (".json",)
LARGEST_PICTURE_BYTES = 64 * 2**20
LONGEST_KEY = 512

READ_BEGINNINGS = {
    b"\xff\xd8\xff": ".jpg",
    b"\x89PNG\r\n\x1a\n": ".png",
    b"GIF87a": ".gif",
    b"GIF89a": ".gif",
    b"BM": ".bmp",
    b"II*\0": ".tif",
    b"MM\0*": ".tif",
}
OTHER_BEGINNINGS = {
    b"\xff\x0a": "JPEG XL",
    b"\0\0\0\x0cJXL \r\n": "JPEG XL",
    b"\0\0\0\x0cjP  ": "JPEG 2000",
    b"8BPS": "PSD",
    b"%PDF": "PDF",
    b"%!PS": "EPS",
    b"<svg": "SVG",
    b"\0\0\x01\0": "ICO",
    b"qoif": "QOI",
    b"v/1\x01": "OpenEXR",
    b"DDS ": "DDS",
    b"gimp xcf": "XCF",
}


class FileKind(StrEnum):
    """What a file is to a sample."""

    PICTURE = "picture"
    TEXT = "text"
    METADATA = "metadata"
    OTHER = "other"


KINDS = {
    **dict.fromkeys((*PICTURE_SUFFIXES, *OTHER_PICTURE_SUFFIXES), FileKind.PICTURE),
    **dict.fromkeys(TEXT_SUFFIXES, FileKind.TEXT),
    **dict.fromkeys(METADATA_SUFFIXES, FileKind.METADATA),
}


@dataclass(frozen=True, kw_only=True)
class FileName:
    """A file's name taken apart."""

    key: str
    """The name before its last known suffix, with its folders; files of one key are one sample."""
    suffix: str
    """What follows, as it is written."""
    kind: FileKind


def split_name(name: str) -> FileName:
    """Take a name apart: `photo.1.jpg` has the key `photo.1`; a text may be named after the picture: `a.jpg.txt`."""
    name = name.removeprefix("./")
    key, suffix = _split_suffix(name)
    kind = FileKind.OTHER if _is_hidden(name) else KINDS.get(suffix.lower(), FileKind.OTHER)
    if kind in (FileKind.TEXT, FileKind.METADATA):
        inner, picture_suffix = _split_suffix(key)
        key = inner if KINDS.get(picture_suffix.lower()) is FileKind.PICTURE else key
    return FileName(key=key, suffix=suffix, kind=kind)


def readable_name(name: str) -> str:
    """The name with whatever is not printable as escapes, such as `caf\\xe9`; what is too long ends in its digest."""
    if not name.isprintable():
        name = "".join(character if character.isprintable() else _escaped(character) for character in name)
    if len(name) > LONGEST_KEY:
        digest = hashlib.sha256(name.encode()).hexdigest()[:16]
        name = f"{name[: LONGEST_KEY - 17]}-{digest}"
    return name


def unsupported_format(suffix: str, content: bytes) -> str | None:
    """The format of a picture that is not read, by content before suffix; None: a reader may try."""
    if suffix_by_content(content) is not None:
        return None
    start = content[:64]
    if start[4:8] == b"ftyp":
        return "HEIC"
    text = content[:1024].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if text.startswith((b"<?xml", b"<!--", b"<!doctype svg")) and b"<svg" in text:
        return "SVG"
    beginnings = (name for beginning, name in OTHER_BEGINNINGS.items() if start.startswith(beginning))
    found = next(beginnings, "SVG" if text.startswith(b"<svg") else None)
    return found or (suffix.lower() if suffix.lower() in OTHER_PICTURE_SUFFIXES else None)


def suffix_by_content(content: bytes) -> str | None:
    """The usual suffix of a format that is read, by the content's beginning; None for everything else."""
    start = content[:64]
    if start[:4] == b"RIFF" and start[8:12] == b"WEBP":
        return ".webp"
    if start[4:8] == b"ftyp":
        brands = start[8 : max(12, min(int.from_bytes(start[:4], "big"), len(start)))]
        return ".avif" if b"avif" in brands or b"avis" in brands else None
    return next((suffix for beginning, suffix in READ_BEGINNINGS.items() if start.startswith(beginning)), None)


def _split_suffix(name: str) -> tuple[str, str]:
    folder, slash, base = name.rpartition("/")
    stem, dot, suffix = base.rpartition(".")
    return (f"{folder}{slash}{stem}", f".{suffix}") if dot and stem else (name, "")


def _is_hidden(name: str) -> bool:
    """Whether an operating system left it there: `._a.jpg`, `.DS_Store`, `__MACOSX/a.jpg`."""
    return name.rpartition("/")[2].startswith(".") or "__MACOSX" in name.split("/")


def _escaped(character: str) -> str:
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:  # a byte that is not UTF-8, as Python keeps it in names
        return f"\\x{code - 0xDC00:02x}"
    return character.encode("unicode_escape").decode()
