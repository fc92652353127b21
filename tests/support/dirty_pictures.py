"""Tars of captioned pictures with dirt of every kind among them."""

import io
import json
import tarfile
import zlib
from collections import Counter
from pathlib import Path

import numpy as np
from PIL import Image

NUM_PICTURES = 48
DIRT_INTERVAL = 8
"""One sample in so many is dirty."""


def png_of_zeros(width: int, height: int, *, colour: int = 2, is_interlaced: bool = False) -> bytes:
    """A whole PNG of black pixels, written without having them in memory: 13,000 x 13,000 are 0.5 MB."""
    bytes_per_row = 1 + width * {0: 1, 2: 3, 6: 4}[colour]
    packer, packed = zlib.compressobj(1), []
    for _ in range(height):
        packed.append(packer.compress(bytes(bytes_per_row)))
    if is_interlaced:  # each of the seven passes has its own filter bytes; a few too many do no harm
        packed.append(packer.compress(bytes(8 * height)))
    packed.append(packer.flush())
    header = width.to_bytes(4) + height.to_bytes(4) + bytes([8, colour, 0, 0, int(is_interlaced)])
    chunks = [(b"IHDR", header), (b"IDAT", b"".join(packed)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        len(body).to_bytes(4) + name + body + zlib.crc32(name + body).to_bytes(4) for name, body in chunks
    )


def stored_picture(picture: Image.Image, kind: str, **options) -> bytes:
    """The picture as a file."""
    buffer = io.BytesIO()
    picture.save(buffer, kind, **options)
    return buffer.getvalue()


def clean_pictures(side: int) -> list[bytes]:
    """Pictures of every format, mode and orientation."""
    random, files = np.random.default_rng(0), []
    for number in range(NUM_PICTURES):
        small = Image.fromarray(random.integers(0, 256, (8, 8, 3), np.uint8))
        picture = small.resize((side + number * side // 100, side), Image.Resampling.BICUBIC)
        exif = Image.Exif()
        exif[0x0112] = 1 + number % 8
        grey = np.asarray(picture.convert("L")).astype(np.uint16) * 257
        files.append(
            [
                lambda picture=picture, exif=exif: stored_picture(picture, "JPEG", exif=exif),
                lambda picture=picture, exif=exif: stored_picture(picture, "PNG", exif=exif),
                lambda picture=picture, exif=exif: stored_picture(picture, "WEBP", exif=exif),
                lambda picture=picture: stored_picture(picture, "JPEG", progressive=True),
                lambda grey=grey: stored_picture(Image.fromarray(grey), "PNG"),
                lambda picture=picture: stored_picture(picture.convert("CMYK"), "JPEG"),
                lambda picture=picture: stored_picture(picture, "JPEG", quality=60),
                lambda picture=picture: stored_picture(picture.quantize(32), "PNG", transparency=0),
            ][number % 8]()
        )
    return files


def dirt(side: int) -> list[tuple[str | None, dict]]:
    """What may be wrong with a sample: the reason for which it is dropped, and what of it is changed."""
    wide = stored_picture(Image.new("RGB", (3 * side, side)), "PNG")
    whole = stored_picture(
        Image.fromarray(np.random.default_rng(1).integers(0, 256, (side, side, 3), np.uint8)), "JPEG"
    )
    return [
        ("short_caption", {"txt": b"x"}),
        ("corrupt_image", {"jpg": b"<html>404</html>"}),
        ("corrupt_image", {"jpg": whole[: len(whole) // 2]}),
        ("corrupt_image", {"jpg": b""}),
        ("nsfw", {"json": b'{"NSFW": "NSFW"}'}),
        ("missing_image", {"jpg": None}),
        ("extreme_aspect_ratio", {"jpg": wide}),
        ("unsupported_format", {"jpg": b"\0\0\0\x18ftypheic" + bytes(40)}),
        ("unsupported_format", {"jpg": b"<svg xmlns='http://www.w3.org/2000/svg'/>"}),
        ("damaged_metadata", {"json": b"{damaged"}),
    ]


def write_dirty_tars(
    folder: Path, num_samples: int, *, samples_per_tar: int, side: int, large: tuple[int, ...]
) -> Counter[str]:
    """Write tars and return how many samples are to be dropped, by reason.

    large: sides of black square PNGs, each of which is one sample somewhere; beyond 8,192 they are too large.
    """
    clean, wrong, dropped = clean_pictures(side), dirt(side), Counter[str]()
    places = {(1 + number) * num_samples // (1 + len(large)): side for number, side in enumerate(large)}
    folder.mkdir(parents=True)
    for start in range(0, num_samples, samples_per_tar):
        with tarfile.open(folder / f"{start // samples_per_tar:05d}.tar", "w") as tar:
            for number in range(start, min(num_samples, start + samples_per_tar)):
                sample = {
                    "jpg": clean[number % len(clean)],
                    "txt": f"picture number {number} of {number % 7} things".encode(),
                    "json": json.dumps({"NSFW": "UNLIKELY", "similarity": number / num_samples}).encode(),
                }
                reason = None
                if number in places:
                    sample["jpg"] = png_of_zeros(places[number], places[number])
                    reason = "too_many_pixels" if places[number] > 8192 else None
                elif number % DIRT_INTERVAL == 0:
                    reason, changes = wrong[number // DIRT_INTERVAL % len(wrong)]
                    sample |= changes
                dropped.update([reason] if reason else [])
                _add_sample(tar, f"{number:09d}", sample)
    return dropped


def _add_sample(tar: tarfile.TarFile, key: str, sample: dict[str, bytes | None]) -> None:
    for suffix, body in sample.items():
        if body is not None:
            info = tarfile.TarInfo(f"{key}.{suffix}")
            info.size = len(body)
            tar.addfile(info, io.BytesIO(body))
