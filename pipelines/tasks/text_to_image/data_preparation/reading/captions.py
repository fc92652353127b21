"""Captions as people and crawlers leave them: decoded, cleaned, and recognised when they say nothing. Pure."""

import codecs
import html
import re
import unicodedata

LARGEST_TEXT = 2**16
"""Bytes or characters of a text that are looked at; no caption is longer."""

BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),  # before UTF-16, whose mark it begins with
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
LINE_BREAKS = re.compile(r"\r\n|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]")
ENTITY = re.compile(r"&(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[a-zA-Z][a-zA-Z0-9]{1,30});")
# Only names of HTML: Conceptual Captions write <PERSON>, and people write "2 < 3 > 1".
BLOCK_TAG = re.compile(r"<!--.{0,500}?-->|</?(?:br|p|div|li|ul|ol|h[1-6]|t[dhr]|table|hr|img)\b[^<>]{0,500}>", re.I)
INLINE_TAG = re.compile(
    r"</?(?:a|b|i|u|s|em|strong|span|font|small|big|su[bp]|code|mark|strike|center)\b[^<>]{0,500}>", re.I
)
# Joiners, selectors and tags stay: emoji, Persian and the scripts of India are spelled with them.
INVISIBLE = re.compile(
    "[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\u00ad\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u2064\u2066-\u206f"
    "\ufeff\ufff9-\ufffb\ufffe\uffff\ud800-\udfff]"
)
BLANKS = re.compile("[\\s\u115f\u1160\u2800\u3164\uffa0]+")  # fillers of Hangul and Braille look like spaces

COUNTERS = re.compile(r"(?:[\s(\[]+[0-9]+(?:x[0-9]+)?[)\]]*)+$")
"""What numbers the pictures of one thing, or says their size: `robin 02`, `robin (3)`, `robin 64x64`."""
FRAME_NUMBER = re.compile(r"(?<=[^\W\d_]{3})[0-9]+$")
"""Of the last of several words of a picture's name: `robin fly12`, but not `route66` or `mp3`."""
HUMP = re.compile(r"(?<=[a-z])(?=[A-Z][a-z])")

PLACEHOLDERS = frozenset(
    (
        *("nan", "none", "null", "nil", "n/a", "na", "undefined", "unknown", "untitled", "true", "false", "default"),
        *("no caption", "no description", "no alt text", "no title", "not available", "object object", "lorem ipsum"),
        *("image", "img", "picture", "photo", "thumbnail", "placeholder", "alt", "alt text", "caption", "description"),
        *("image description", "image caption", "ref!", "name?", "value!", "div/0!"),
    )
)
FILE_SUFFIX = "jpe?g|jpe|jfif|png|gif|webp|bmp|tiff?|hei[cf]|avif|jxl|svgz?|psd|raw|cr2|nef|dng|pdf|mp4|mov"
FILE_NAME = re.compile(
    rf"[^\n]{{0,250}}\.(?:{FILE_SUFFIX})"
    r"|(?:img|dsc[nf]?|pict|image|photo|pic|scan|screen ?shot|wp|pxl|vid|p)[ _-]?[0-9][0-9 _.-]{2,40}"
    r"|(?=[^ ]*[0-9])(?:[0-9a-f]{16,128}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})",
    re.I,
)
URL = re.compile(r"(?:[a-z][a-z0-9+.-]{1,10}://|www\.|data:[a-z]+/)\S+", re.I)
# Lists, tuples, dictionaries and bytes as Python, JSON and NumPy write them; text of a word processor.
WRITTEN_LIST = re.compile(
    r"\{\\rtf.*|[\[(]\s*[ub]?(['\"]).*\1\s*,?\s*[\])]|\[\s*\]|\{\s*\}|\{\s*['\"].*:.*\}|b(['\"]).*\2", re.DOTALL
)


def decode_text(content: bytes) -> str | None:
    """The text of a file's beginning, in UTF-8, or UTF-16 or UTF-32 with their marks; None: something else."""
    content = content[:LARGEST_TEXT]
    for mark, encoding in BYTE_ORDER_MARKS:
        if content.startswith(mark):
            return _decoded(content[len(mark) :], encoding)
    return _decoded(content, _encoding_by_zeros(content))


def clean_caption(text: str, caption_lines: str) -> str:
    """The caption without what nobody sees or means: tags, entities, controls, zero-width and doubled blanks; in NFC.

    With `drop`, several lines stay several lines, to be judged; with `first` and `join` one is left.
    """
    text = text[:LARGEST_TEXT]
    if "&" in text:
        text = _without_entities(_without_entities(text))  # crawlers escape what was escaped
    if "<" in text:
        text = INLINE_TAG.sub("", BLOCK_TAG.sub(" ", text))
    lines = [line for part in LINE_BREAKS.split(text) if (line := _clean_line(part))]
    return {"drop": "\n", "join": " "}[caption_lines].join(lines) if caption_lines != "first" else "".join(lines[:1])


def words_of_name(path: str, caption_from: str) -> str:
    """Read a caption off a picture's path without suffix: `birds/house-sparrow_02` says "house sparrow" by its name.

    By its folder it says "birds", and by its path "birds, house sparrow"; `IMG_2019` and `00012` say nothing.
    """
    folder, _, name = path.rpartition("/")
    chosen = {"name": (name,), "folder": (folder.rpartition("/")[2],), "path": (*folder.split("/"), name)}[caption_from]
    words = (" ".join(re.sub(r"[_\-+.]", " ", HUMP.sub(" ", part)).split()) for part in chosen)
    said = [COUNTERS.sub("", part) for part in words if not is_file_name(part) and not is_placeholder(part)]
    if caption_from != "folder" and said and " " in said[-1]:
        said[-1] = FRAME_NUMBER.sub("", said[-1])
    return ", ".join(said)


def visible_length(caption: str) -> int:
    """Characters as a reader counts them: an ideograph, a syllable of Hangul or an emoji counts two."""
    if caption.isascii():
        return len(caption)
    return sum(_weight(character) for character in caption)


def is_placeholder(caption: str) -> bool:
    """Whether it stands for a caption that is not there: "nan", "None", "[no caption]", or no letter and no symbol."""
    if not any(unicodedata.category(character) == "So" or character.isalpha() for character in caption):
        return True
    bare = caption.strip(" \t'\"`[](){}<>.,:;!-_#*").casefold()
    return bare in PLACEHOLDERS or caption.strip(" #").casefold() in PLACEHOLDERS or bare.startswith("lorem ipsum ")


def is_file_name(caption: str) -> bool:
    """Whether it is what a camera or a program called the file: `IMG_2019.jpg`, `DSC 0042`, a digest."""
    # A sentence that happens to end in .jpg has many blanks.
    return FILE_NAME.fullmatch(caption) is not None and caption.count(" ") <= 5


def is_url(caption: str) -> bool:
    """Whether it is an address and nothing else."""
    return URL.fullmatch(caption) is not None


def is_written_list(caption: str) -> bool:
    """Whether a program printed a list, a dictionary or bytes where a caption belongs."""
    return WRITTEN_LIST.fullmatch(caption) is not None


def _decoded(content: bytes, encoding: str) -> str | None:
    try:
        return codecs.getincrementaldecoder(encoding)().decode(content, final=len(content) < LARGEST_TEXT - 4)
    except UnicodeDecodeError:
        return None


def _encoding_by_zeros(content: bytes) -> str:
    """UTF-16 of most texts has a zero in every other byte, and no UTF-8 has."""
    half = len(content) // 2
    for first, encoding in ((1, "utf-16-le"), (0, "utf-16-be")):
        if half and content[first::2].count(0) > 0.4 * half:
            return encoding
    return "utf-8"


def _without_entities(text: str) -> str:
    return ENTITY.sub(lambda found: html.unescape(found[0]), text)


def _clean_line(line: str) -> str:
    if not line.isascii() or not line.isprintable():
        line = unicodedata.normalize("NFC", INVISIBLE.sub("", line))
    return BLANKS.sub(" ", line).strip(" \u200c\u200d")


def _weight(character: str) -> int:
    category = unicodedata.category(character)
    if category[0] in "MC":  # marks, joiners
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" or category == "So" else 1
