"""The OpenMoji pictures as webdataset tars: designers' drawings for the same pipeline as the demo's scenes.

OpenMoji is the open-source emoji and icon project, https://openmoji.org, licensed CC BY-SA 4.0. The pictures are
fetched from the npm package `openmoji` 17, never stored in this repository, and every record names licence and author.
"""

import hashlib
import io
import json
import subprocess
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from pipelines.demo.scenes.picture_tars import TarPicture, encode_jpeg, write_picture_tars

OPENMOJI_LICENSE = "CC-BY-SA-4.0"
OPENMOJI_PACKAGE = "openmoji@17"


@dataclass(frozen=True, kw_only=True)
class OpenMojiConfig:
    """How the set is turned into captioned pictures."""

    image_size: int = 64
    """Side of the pictures in pixels, at least 16."""

    captions_per_picture: int = 3
    """Captions per picture, one record each: its name, its name with tags, its name with its group; 1 to 3."""

    held_out_share: float = 0.05
    """Share of the emoji that are held out, all skin tones of one together; from 0 to 0.5."""

    skin_tones: bool = True
    """Whether to include the skin-tone variants; without them there are about 2,400 pictures instead of 4,400."""

    jpeg_quality: int = 94
    """Quality of the JPEG files, 50 to 100."""

    pictures_per_tar: int = 2_000
    """Records per tar, 1 to 10 000."""

    def __post_init__(self) -> None:
        if self.image_size < 16:
            raise ValueError(f"image_size is {self.image_size}; expected at least 16. Pass --image-size 64.")
        if not 1 <= self.captions_per_picture <= 3:
            raise ValueError(f"captions_per_picture is {self.captions_per_picture}; expected 1 to 3.")
        if not 0 <= self.held_out_share <= 0.5:
            raise ValueError(f"held_out_share is {self.held_out_share}; expected 0 to 0.5. Pass --held-out-share 0.05.")
        if not 50 <= self.jpeg_quality <= 100:
            raise ValueError(f"jpeg_quality is {self.jpeg_quality}; expected 50 to 100.")
        if not 1 <= self.pictures_per_tar <= 10_000:
            raise ValueError(f"pictures_per_tar is {self.pictures_per_tar}; expected 1 to 10000.")


@dataclass(frozen=True, kw_only=True)
class Emoji:
    """One drawing of the set."""

    hexcode: str
    """Its code points, also the name of its file."""

    base_hexcode: str
    """The same without a skin tone."""

    annotation: str
    """Its name, such as "grinning face"."""

    tags: tuple[str, ...]
    """Other words for it, possibly none."""

    group: str
    """Such as "smileys-emotion"."""

    author: str
    """Its designer."""

    @property
    def captions(self) -> tuple[str, str, str]:
        """Three captions, of which the last two may equal the first."""
        tags = ", ".join(self.tags[:5])
        words = self.group.replace("extras-", "").replace("-", " and ")
        return self.annotation, f"{self.annotation}: {tags}" if tags else self.annotation, f"{words}, {self.annotation}"


@dataclass(frozen=True, kw_only=True)
class OpenMojiCounts:
    """What was written."""

    training_pictures: int
    """Emoji in the training tars."""

    held_out_pictures: int
    """Emoji in the held-out tars."""

    records: int
    """Captioned records in the training tars."""

    missing: tuple[str, ...]
    """Listed hexcodes without a file, or without one that can be drawn."""


def fetch_openmoji(folder: Path) -> Path:
    """Install the npm package `openmoji` 17 into the folder and return the package's folder. Needs npm.

    Raises OSError with npm's last line of output if it fails.
    """
    folder.mkdir(parents=True, exist_ok=True)
    command = ["npm", "install", "--prefix", str(folder), "--no-audit", "--no-fund", OPENMOJI_PACKAGE]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        raise OSError("npm was not found; it fetches the OpenMoji pictures. Install it: apt-get install npm") from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise OSError(f"npm could not fetch {OPENMOJI_PACKAGE}: {last}. Check the network and run the command again.")
    return find_package(folder)


def find_package(source: Path) -> Path:
    """The package's folder, which holds `data/openmoji.json`: the source itself or its `node_modules/openmoji`."""
    for folder in (source, source / "node_modules" / "openmoji", source / "package"):
        if (folder / "data" / "openmoji.json").is_file():
            return folder
    raise FileNotFoundError(
        f"{source} has no data/openmoji.json; expected the npm package openmoji 17. "
        f"Fetch it: dalle-collab demo openmoji-fetch --output {source}"
    )


def read_emoji(package: Path, *, skin_tones: bool = True) -> list[Emoji]:
    """The set's emoji in the package's order. A skin-tone variant without tags gets those of its base.

    Raises ValueError if `data/openmoji.json` is not OpenMoji 17's list.
    """
    path = package / "data" / "openmoji.json"
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
        tags = {entry["hexcode"]: _tags(entry) for entry in entries}
        return [_emoji(entry, tags) for entry in entries if skin_tones or not entry["skintone"]]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} is not OpenMoji 17's list of emoji ({error!r}); expected objects with hexcode, annotation, tags, "
            "group and skintone. Fetch the package again: dalle-collab demo openmoji-fetch --output DIR"
        ) from None


def _tags(entry: dict) -> tuple[str, ...]:
    words = (entry.get("tags", "") + "," + entry.get("openmoji_tags", "")).split(",")
    known = {word.strip(): None for word in words if word.strip() and word.strip() != entry["annotation"]}
    return tuple(known)


def _emoji(entry: dict, tags: dict[str, tuple[str, ...]]) -> Emoji:
    base = entry.get("skintone_base_hexcode") or entry["hexcode"]
    return Emoji(
        hexcode=entry["hexcode"],
        base_hexcode=base,
        annotation=entry["annotation"].replace("⊛ ", "").replace(":", ","),
        tags=tags[entry["hexcode"]] or tags.get(base, ()),
        group=entry["group"],
        author=entry.get("openmoji_author") or "OpenMoji",
    )


def is_held_out(emoji: Emoji, share: float) -> bool:
    """Whether the emoji belongs to the held-out share: decided only by its base's code points, on every machine."""
    digest = hashlib.sha256(f"openmoji, held out|{emoji.base_hexcode}".encode()).digest()
    return int.from_bytes(digest[:8], "little") < share * 2**64


def write_openmoji_tars(
    source: Path, output: Path, config: OpenMojiConfig, on_progress: Callable[[int, int], None] | None = None
) -> OpenMojiCounts:
    """Write the set into `output/train` and `output/held_out` as webdataset tars.

    `on_progress` gets the number of emoji drawn so far and their total. A missing drawing is counted and skipped.
    """
    package = find_package(source)
    emoji = read_emoji(package, skin_tones=config.skin_tones)
    drawn: dict[str, bytes] = {}
    for index, one in enumerate(emoji):
        jpeg = _drawn(package, one, config)
        if jpeg is not None:
            drawn[one.hexcode] = jpeg
        if on_progress is not None:
            on_progress(index + 1, len(emoji))
    present = [one for one in emoji if one.hexcode in drawn]
    training = [one for one in present if not is_held_out(one, config.held_out_share)]
    held_out = [one for one in present if is_held_out(one, config.held_out_share)]
    records = _records(training, drawn, config, config.captions_per_picture)
    num_records = write_picture_tars(output / "train", records, pictures_per_tar=config.pictures_per_tar)
    # One caption each: held-out captions are prompts, and a picture needs only one.
    write_picture_tars(
        output / "held_out", _records(held_out, drawn, config, 1), pictures_per_tar=config.pictures_per_tar
    )
    return OpenMojiCounts(
        training_pictures=len(training),
        held_out_pictures=len(held_out),
        records=num_records,
        missing=tuple(one.hexcode for one in emoji if one.hexcode not in drawn),
    )


def _records(
    emoji: Iterable[Emoji], drawn: dict[str, bytes], config: OpenMojiConfig, captions_per_picture: int
) -> Iterator[TarPicture]:
    """Every emoji with each of its captions, in a pseudo-random order that is always the same."""
    pairs = [(one, caption) for one in emoji for caption in dict.fromkeys(one.captions[:captions_per_picture])]
    pairs.sort(key=lambda pair: hashlib.sha256(f"{pair[0].hexcode}|{pair[1]}".encode()).digest())
    for one, caption in pairs:
        yield TarPicture(
            jpeg=drawn[one.hexcode],
            caption=caption,
            size=(config.image_size, config.image_size),
            url=f"https://openmoji.org/library/emoji-{one.hexcode}/",
            license=OPENMOJI_LICENSE,
            attribution=f"{one.author}, OpenMoji (https://openmoji.org)",
        )


def _drawn(package: Path, emoji: Emoji, config: OpenMojiConfig) -> bytes | None:
    """The emoji on white as JPEG, or None if the package has no readable drawing of it."""
    picture = _picture(package / "color", emoji.hexcode, config.image_size)
    if picture is None:
        return None
    flat = Image.new("RGBA", picture.size, "white")
    flat.alpha_composite(picture)
    side = (config.image_size, config.image_size)
    return encode_jpeg(flat.convert("RGB").resize(side, Image.Resampling.LANCZOS), config.jpeg_quality)


def _picture(colour_folder: Path, hexcode: str, side: int) -> Image.Image | None:
    """The drawing as RGBA: from a PNG if there is one (as in the releases' archives), else from the SVG."""
    pngs = [colour_folder / size / f"{hexcode}.png" for size in ("618x618", "72x72")]
    svg = colour_folder / "svg" / f"{hexcode}.svg"
    path = next((path for path in (*pngs, svg) if path.is_file()), None)
    if path is None:
        return None
    render = _svg_renderer() if path == svg else None
    try:
        content = path.read_bytes() if render is None else render(path.read_text(encoding="utf-8"), 2 * side)
        return Image.open(io.BytesIO(content)).convert("RGBA")
    except (OSError, ValueError):
        return None


def _svg_renderer() -> Callable[[str, int], bytes]:
    """From an SVG's text and a width in pixels to a PNG. Raises OSError if resvg_py is not installed."""
    try:
        import resvg_py
    except ImportError:
        raise OSError(
            "The npm package contains SVG drawings, and resvg_py, which draws them, is not installed. "
            "Install it: pip install 'resvg_py>=0.2'"
        ) from None
    return lambda text, width: bytes(resvg_py.svg_to_bytes(svg_string=text, width=width, skip_system_fonts=True))
