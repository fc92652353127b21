"""The demo's independent judge: reads a scene's attributes back from a picture by matching it with the renderer.

It knows nothing about the transformer, the codec or CLIP. The background is the colour of the border, the shape is what
differs from it, and the shape's name is that of the rendered template that best covers the same pixels.

Axis names: height, width = the picture's; frame = 32, the side of the square that shapes are brought to.
"""

import functools
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

from pipelines.tools.demo.scenes.scenes import (
    BACKGROUND_COLOURS,
    POSITIONS,
    SHAPE_COLOURS,
    SHAPES,
    SIZES,
    Colour,
    all_combinations,
    render_mask,
)

_FRAME = 32
# Root mean square distance of a shape's pixels from their centre, after it is brought to the frame, in frame pixels.
_FRAME_RADIUS = 8.0
_TEMPLATE_DEGREES = (-12.0, -8.0, -4.0, 0.0, 4.0, 8.0, 12.0)
_LOWEST_MATCH = 0.7
_LARGEST_COLOUR_DISTANCE = 70.0
# Half way between neighbouring positions is 0.125.
_LARGEST_POSITION_DISTANCE = 0.1
# All in units of 1/255: a pixel further than this from every mixture of the two colours belongs to something else,
_LARGEST_STRAY_DISTANCE = 60.0
# and colours nearer to the background than this are noise of JPEG or of a codec.
_LEAST_CONTRAST = 45.0
_LEAST_SHAPE_SHARE = 0.008


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """What the judge sees in one picture. Attributes that it cannot determine are None."""

    shape: str | None = None
    """One of SHAPES."""

    colour: str | None = None
    """Colour of the shape."""

    size: str | None = None
    """One of SIZES."""

    position: str | None = None
    """One of POSITIONS."""

    background: str | None = None
    """Colour of the background."""

    match: float = 0.0
    """How well the best template covers the shape: 1 is perfect, below 0.7 the shape is None."""

    @property
    def scored(self) -> tuple[str | None, str | None, str | None, str | None]:
        """The four attributes that count for an exact match: colour, background, position, shape."""
        return self.colour, self.background, self.position, self.shape

    @property
    def description(self) -> str:
        """What the judge sees, in words."""
        if self.shape is None:
            return f"no clear shape on a {self.background or 'nameless'} background"
        shape = f"{self.size} {self.colour or 'strangely coloured'} {self.shape}"
        return f"{shape}, {self.position or 'oddly placed'}, on a {self.background or 'nameless'} background"


def chance_level() -> float:
    """Probability that a guess is exactly right: one in the number of combinations of the four scored attributes."""
    return 1 / len(all_combinations())


def judge_picture(picture: np.ndarray) -> Judgement:
    """Read the attributes from a picture: (height, width, 3) uint8, square, at least 32 pixels a side.

    Raises ValueError for any other array.
    """
    _check_picture(picture)
    pixels = picture.astype(np.float32)
    background_pixel = _border_colour(pixels)
    background = _nearest_colour(background_pixel, BACKGROUND_COLOURS)
    coverage, shape_pixel, num_strays = _shape_coverage(pixels, background_pixel)
    if coverage is None:
        return Judgement(background=background)
    centre, radius = _centre_and_radius(coverage)
    shape, match = _best_template(coverage, centre, radius, num_strays)
    if shape is None:
        return Judgement(background=background, match=match)
    side = picture.shape[0]
    return Judgement(
        shape=shape,
        colour=_nearest_colour(shape_pixel, SHAPE_COLOURS),
        size=_nearest_size(radius / _unit_radius(shape) / side),
        position=_nearest_position(centre / side, shape, radius / side),
        background=background,
        match=match,
    )


def read_picture(path: Path) -> np.ndarray:
    """The picture of a file: (height, width, 3) uint8. OSError if it cannot be read."""
    try:
        with Image.open(path) as picture:
            return np.asarray(picture.convert("RGB"))
    except UnidentifiedImageError:
        raise OSError(f"{path} cannot be read as a picture; expected a PNG or JPEG file. Write it again.") from None


def share_unlike_background(picture: np.ndarray, where: np.ndarray) -> float:
    """The share of some pixels, (height, width) bool, that differ from the background, the colour of the border."""
    pixels = picture.astype(np.float32)
    return float((np.linalg.norm(pixels - _border_colour(pixels), axis=2)[where] > _LARGEST_STRAY_DISTANCE).mean())


def _check_picture(picture: np.ndarray) -> None:
    good_shape = picture.ndim == 3 and picture.shape[2] == 3 and picture.shape[0] == picture.shape[1] >= 32
    if not good_shape or picture.dtype != np.uint8:
        raise ValueError(
            f"The picture is an array of shape {picture.shape} and type {picture.dtype}; expected a square RGB picture "
            "of type uint8 with at least 32 pixels a side. Convert it with numpy.asarray(image.convert('RGB'))."
        )


def _border_colour(pixels: np.ndarray) -> np.ndarray:
    # A large shape may touch one side, hence the median over all four.
    border = [pixels[:2], pixels[-2:], pixels[:, :2].swapaxes(0, 1), pixels[:, -2:].swapaxes(0, 1)]
    return np.median(np.concatenate([part.reshape(-1, 3) for part in border]), axis=0)


def _nearest_colour(pixel: np.ndarray, colours: dict[str, Colour]) -> str | None:
    distances = {name: float(np.linalg.norm(pixel - np.asarray(colour))) for name, colour in colours.items()}
    name = min(distances, key=distances.__getitem__)
    return name if distances[name] <= _LARGEST_COLOUR_DISTANCE else None


def _shape_coverage(pixels: np.ndarray, background: np.ndarray) -> tuple[np.ndarray | None, np.ndarray, int]:
    """How much of each pixel the shape covers, (height, width) in [0, 1], the shape's colour, the pixels of neither.

    The coverage is None if nothing stands out from the background.
    """
    distances = np.linalg.norm(pixels - background, axis=2)
    strongest = np.quantile(distances, 1 - _LEAST_SHAPE_SHARE)
    if strongest < _LEAST_CONTRAST:
        return None, background, 0
    colour = np.median(pixels[distances > 0.75 * strongest], axis=0)
    direction = colour - background
    coverage = np.clip((pixels - background) @ direction / max(float(direction @ direction), 1.0), 0, 1)
    mixture = background + coverage[..., None] * direction
    num_strays = int((np.linalg.norm(pixels - mixture, axis=2) > _LARGEST_STRAY_DISTANCE).sum())
    # Faint traces far from the shape would shift its centre.
    coverage = np.clip((coverage - 0.2) / 0.6, 0, 1)
    enough = coverage.mean() >= _LEAST_SHAPE_SHARE
    return (coverage if enough else None), colour, num_strays


def _centre_and_radius(coverage: np.ndarray) -> tuple[np.ndarray, float]:
    """Centre of mass (x, y) and root mean square distance from it, in pixels."""
    rows, columns = np.indices(coverage.shape)
    total = coverage.sum()
    centre = np.array([(coverage * (columns + 0.5)).sum(), (coverage * (rows + 0.5)).sum()]) / total
    squared = (columns + 0.5 - centre[0]) ** 2 + (rows + 0.5 - centre[1]) ** 2
    return centre, math.sqrt(float((coverage * squared).sum() / total))


def _in_frame(coverage: np.ndarray, centre: np.ndarray, radius: float) -> np.ndarray:
    """The coverage moved and scaled (bilinear) so that its radius becomes _FRAME_RADIUS: (frame, frame)."""
    steps = (np.arange(_FRAME) + 0.5 - _FRAME / 2) * (radius / _FRAME_RADIUS)
    rows = _interpolation(centre[1] + steps, coverage.shape[0])
    columns = _interpolation(centre[0] + steps, coverage.shape[1])
    return rows @ coverage @ columns.T


def _interpolation(places: np.ndarray, length: int) -> np.ndarray:
    # Pixel i reaches from i to i + 1, so its centre is at i + 0.5; places outside the picture get nothing.
    return np.clip(1 - np.abs(places[:, None] - 0.5 - np.arange(length)[None, :]), 0, None)  # (frame, length)


def _best_template(
    coverage: np.ndarray, centre: np.ndarray, radius: float, num_strays: int
) -> tuple[str | None, float]:
    """The shape whose template fits best and the share of the picture's shape that it explains."""
    framed = _in_frame(coverage, centre, radius).astype(np.float32).ravel()
    templates, energies = _templates()  # (shape, rotation, frame * frame), (shape, rotation)
    scale = (_FRAME_RADIUS / radius) ** 2
    outside = max(float((coverage**2).sum()) * scale - float(framed @ framed), 0.0)
    errors = (energies - 2 * templates @ framed + framed @ framed).min(axis=1) + outside + num_strays * scale
    matches = 1 - errors / energies.mean(axis=1)
    best = int(matches.argmax())
    match = float(matches[best])
    return (SHAPES[best] if match >= _LOWEST_MATCH else None), match


@functools.cache
def _templates() -> tuple[np.ndarray, np.ndarray]:
    """Every shape at every rotation, (shape, rotation, frame * frame) float32, and the sums of their squares."""
    templates = [[_template(shape, degrees).ravel() for degrees in _TEMPLATE_DEGREES] for shape in SHAPES]
    array = np.asarray(templates, dtype=np.float32)
    return array, (array**2).sum(axis=2)


def _template(shape: str, degrees: float) -> np.ndarray:
    # Drawn at the size of a medium shape in a picture of 64 pixels, so that its edges are as soft as a real one's.
    coverage = _rendered_coverage(shape, degrees)
    return _in_frame(coverage, *_centre_and_radius(coverage))


def _rendered_coverage(shape: str, degrees: float) -> np.ndarray:
    mask = render_mask(shape, (64, 64), centre=(32.0, 32.0), extent=SIZES["medium"] * 64, degrees=degrees)
    return np.clip((np.asarray(mask) / 255 - 0.2) / 0.6, 0, 1)


@functools.cache
def _unit_radius(shape: str) -> float:
    """Root mean square radius of the shape whose extent is 1."""
    return _centre_and_radius(_rendered_coverage(shape, 0.0))[1] / (SIZES["medium"] * 64)


@functools.cache
def _unit_offset(shape: str) -> np.ndarray:
    """From the middle of the shape's extent to its centre of mass, (x, y), for extent 1."""
    return (_centre_and_radius(_rendered_coverage(shape, 0.0))[0] - 32) / (SIZES["medium"] * 64)


def _nearest_size(extent: float) -> str:
    return min(SIZES, key=lambda name: abs(SIZES[name] - extent))


def _nearest_position(centre: np.ndarray, shape: str, radius: float) -> str | None:
    middle = centre - _unit_offset(shape) * radius / _unit_radius(shape)
    distances = {name: float(np.linalg.norm(middle - np.asarray(place))) for name, place in POSITIONS.items()}
    name = min(distances, key=distances.__getitem__)
    return name if distances[name] <= _LARGEST_POSITION_DISTANCE else None
