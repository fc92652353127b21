"""Captioned scenes for the demo: one coloured shape somewhere on a plain background.

A scene is five attributes (shape, colour, size, position, background) and a seed for everything not in the caption:
the exact place, size, rotation and tint. `scene_judge` reads the attributes back from a picture, so a picture made by
a trained model can be scored without trusting the model, the codec or CLIP.
"""

import functools
import hashlib
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw

Colour = tuple[int, int, int]

# Neighbouring colours are at least 80 units apart in RGB, so that the tint's jitter cannot turn one into another.
SHAPE_COLOURS: dict[str, Colour] = {
    "red": (215, 30, 35),
    "yellow": (252, 222, 60),
    "green": (40, 150, 65),
    "blue": (30, 90, 220),
    "white": (246, 246, 246),
    "black": (22, 22, 22),
}
BACKGROUND_COLOURS: dict[str, Colour] = {
    "white": (246, 246, 246),
    "black": (22, 22, 22),
    "grey": (150, 150, 150),
    "blue": (30, 90, 220),
    "pink": (245, 130, 175),
}
SHAPES = ("circle", "square", "triangle", "star", "heart", "cross", "diamond", "ring")
# The largest extent of a shape and its centre, as shares of the picture's side. With 8 x 8 image codes even a small
# shape covers almost three codes a side; with fewer, a star would look like a circle. All centres lie on the
# same place of the grid of codes, so that a shape has much the same codes everywhere.
SIZES: dict[str, float] = {"small": 0.36, "medium": 0.43, "large": 0.50}
POSITIONS: dict[str, tuple[float, float]] = {
    "left": (0.25, 0.5),
    "right": (0.75, 0.5),
    "top": (0.5, 0.25),
    "bottom": (0.5, 0.75),
    "centre": (0.5, 0.5),
    "top left": (0.25, 0.25),
    "top right": (0.75, 0.25),
    "bottom left": (0.25, 0.75),
    "bottom right": (0.75, 0.75),
}

_SUPERSAMPLING = 4
_HELD_OUT_LABEL = "dalle-collab demo scenes, held out, 1"


@dataclass(frozen=True, kw_only=True)
class ScenesConfig:
    """How scenes are drawn. Pictures of equal configuration, attributes and seed are equal to the byte."""

    image_size: int = 128
    """Side of the picture in pixels; a multiple of 8 and at least 32."""

    position_jitter: float = 0.008
    """Largest displacement of the shape along each axis, as a share of the picture's side."""

    size_jitter: float = 0.008
    """Largest change of the shape's extent, as a share of the picture's side."""

    rotation_jitter_degrees: float = 3.0
    """Largest rotation to either side, in degrees. From about 20 on, a square could pass for a diamond."""

    colour_jitter: int = 3
    """Largest change of each channel of the shape's colour, in units of 1/255. Backgrounds keep theirs: a codebook
    would spend a tenth of its codes on tints of flat areas, and a transformer its first bits on which it is."""

    def __post_init__(self) -> None:
        if self.image_size < 32 or self.image_size % 8:
            raise ValueError(f"image_size is {self.image_size}; expected a multiple of 8, at least 32. Use 128.")
        _check_range("position_jitter", self.position_jitter, 0, 0.08)
        _check_range("size_jitter", self.size_jitter, 0, 0.04)
        _check_range("rotation_jitter_degrees", self.rotation_jitter_degrees, 0, 20)
        _check_range("colour_jitter", self.colour_jitter, 0, 20)


def _check_range(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise ValueError(f"{name} is {value}; expected {low} to {high}, beyond which captions become false.")


@dataclass(frozen=True, kw_only=True, order=True)
class SceneAttributes:
    """What a caption says about a scene."""

    shape: str
    """One of SHAPES."""

    colour: str
    """Colour of the shape, one of SHAPE_COLOURS."""

    size: str
    """One of SIZES."""

    position: str
    """One of POSITIONS."""

    background: str
    """Colour of the background, one of BACKGROUND_COLOURS, not the shape's."""

    def __post_init__(self) -> None:
        for name, known in _KNOWN_VALUES.items():
            if getattr(self, name) not in known:
                raise ValueError(f"{name} is {getattr(self, name)!r}; expected one of {', '.join(known)}.")
        if self.colour == self.background:
            raise ValueError(f"A {self.colour} shape on a {self.background} background cannot be seen. Change one.")

    @property
    def scored(self) -> tuple[str, str, str, str]:
        """The four attributes that count for an exact match: colour, background, position, shape."""
        return self.colour, self.background, self.position, self.shape


_KNOWN_VALUES = {
    "shape": SHAPES,
    "colour": tuple(SHAPE_COLOURS),
    "size": tuple(SIZES),
    "position": tuple(POSITIONS),
    "background": tuple(BACKGROUND_COLOURS),
}


@functools.cache
def all_combinations() -> tuple[tuple[str, str, str, str], ...]:
    """Every (colour, background, position, shape) that can be seen, in a fixed order."""
    products = itertools.product(SHAPE_COLOURS, BACKGROUND_COLOURS, POSITIONS, SHAPES)
    return tuple(product for product in products if product[0] != product[1])


@functools.cache
def held_out_combinations() -> tuple[tuple[str, str, str, str], ...]:
    """The eighth of all combinations that training data never contains, at any size, with any seed, in any run.

    The codec and the CLIP in `pretrained/` have not seen them either. The order is fixed, and looks random.
    """

    def digest(combination: tuple[str, str, str, str]) -> bytes:
        return hashlib.sha256("|".join((_HELD_OUT_LABEL, *combination)).encode()).digest()

    return tuple(sorted(all_combinations(), key=digest)[: len(all_combinations()) // 8])


@functools.cache
def training_combinations() -> tuple[tuple[str, str, str, str], ...]:
    """Every combination that is not held out."""
    held_out = frozenset(held_out_combinations())
    return tuple(combination for combination in all_combinations() if combination not in held_out)


def attributes_of(combination: tuple[str, str, str, str], size: str) -> SceneAttributes:
    """The scene's attributes from (colour, background, position, shape) and a size."""
    colour, background, position, shape = combination
    return SceneAttributes(shape=shape, colour=colour, size=size, position=position, background=background)


def held_out_scenes(num_scenes: int) -> Iterator[SceneAttributes]:
    """The first `num_scenes` held-out scenes: each combination once, then again at another size, and a third time.

    Raises ValueError if there are not enough.
    """
    combinations, sizes = held_out_combinations(), tuple(SIZES)
    if not 0 <= num_scenes <= len(combinations) * len(sizes):
        most = len(combinations) * len(sizes)
        raise ValueError(f"{num_scenes} held-out scenes were requested; there are {most}.")
    for index in range(num_scenes):
        turn, place = divmod(index, len(combinations))
        yield attributes_of(combinations[place], sizes[(place + turn) % len(sizes)])


def scene_random(seed: int, *labels: object) -> np.random.Generator:
    """A random generator for one purpose: equal for equal seed and labels on every machine, independent otherwise."""
    text = "|".join(str(part) for part in (seed, *labels))
    return np.random.Generator(np.random.PCG64(int.from_bytes(hashlib.sha256(text.encode()).digest()[:16], "little")))


def draw_training_attributes(random: np.random.Generator) -> SceneAttributes:
    """Uniformly drawn attributes that are not held out."""
    combinations = training_combinations()
    combination = combinations[int(random.integers(len(combinations)))]
    return attributes_of(combination, tuple(SIZES)[int(random.integers(len(SIZES)))])


def render_scene(
    attributes: SceneAttributes,
    random: np.random.Generator,
    config: ScenesConfig | None = None,
    *,
    picture_size: tuple[int, int] | None = None,
) -> Image.Image:
    """Draw the scene: an RGB picture of `config.image_size` squared, or of `picture_size` (width, height) around it."""
    config = config or ScenesConfig()
    size = picture_size or (config.image_size, config.image_size)
    picture = Image.new("RGB", size, BACKGROUND_COLOURS[attributes.background])
    place = POSITIONS[attributes.position]
    draw_shape(picture, attributes.shape, attributes.colour, SIZES[attributes.size], place, random, config)
    return picture


def draw_shape(
    picture: Image.Image,
    shape: str,
    colour: str,
    extent: float,
    place: tuple[float, float],
    random: np.random.Generator,
    config: ScenesConfig,
) -> None:
    """Draw one shape on a picture, with its jitter.

    extent: share of `config.image_size`; place: of the centre, as shares of the picture's width and height.
    """
    shift = random.uniform(-config.position_jitter, config.position_jitter, size=2) * config.image_size
    extent = (extent + random.uniform(-config.size_jitter, config.size_jitter)) * config.image_size
    degrees = random.uniform(-config.rotation_jitter_degrees, config.rotation_jitter_degrees)
    centre = (place[0] * picture.width + shift[0], place[1] * picture.height + shift[1])
    mask = render_mask(shape, picture.size, centre=centre, extent=extent, degrees=degrees)
    picture.paste(_tinted(SHAPE_COLOURS[colour], random, config), mask=mask)


def render_mask(
    shape: str, picture_size: tuple[int, int], *, centre: tuple[float, float], extent: float, degrees: float
) -> Image.Image:
    """The shape as an anti-aliased picture of mode "L": 255 inside, 0 outside. All lengths are in pixels."""
    width, height = picture_size
    large = Image.new("L", (width * _SUPERSAMPLING, height * _SUPERSAMPLING), 0)
    draw = ImageDraw.Draw(large)
    angle = math.radians(degrees)
    rotation = np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    for outline, fill in zip(_outlines(shape), (255, 0), strict=False):
        points = (outline @ rotation.T * extent + np.asarray(centre)) * _SUPERSAMPLING - 0.5
        draw.polygon(points.ravel().tolist(), fill=fill)
    return large.reduce(_SUPERSAMPLING)


def _tinted(colour: Colour, random: np.random.Generator, config: ScenesConfig) -> Colour:
    jitter = random.integers(-config.colour_jitter, config.colour_jitter, size=3, endpoint=True)
    return tuple(int(channel) for channel in np.clip(np.asarray(colour) + jitter, 0, 255))


@functools.cache
def _outlines(shape: str) -> tuple[np.ndarray, ...]:
    """The shape's outline, then that of its hole if it has one: (points, 2), larger extent 1, centred, y downwards."""
    if shape == "ring":
        outer = _circle()
        return outer, outer * 0.52
    makers = {
        "circle": _circle,
        "square": lambda: _regular(4, offset_degrees=45),
        "triangle": lambda: _regular(3, offset_degrees=-90),
        "star": _star,
        "heart": _heart,
        "cross": _cross,
        "diamond": lambda: _regular(4, offset_degrees=0) * np.array([0.78, 1.0]),
    }
    return (_normalised(makers[shape]()),)


def _normalised(points: np.ndarray) -> np.ndarray:
    low, high = points.min(axis=0), points.max(axis=0)
    return (points - (low + high) / 2) / (high - low).max()


def _regular(num_corners: int, offset_degrees: float) -> np.ndarray:
    angles = np.radians(offset_degrees) + np.arange(num_corners) * 2 * np.pi / num_corners
    return np.stack([np.cos(angles), np.sin(angles)], axis=1)


def _circle() -> np.ndarray:
    return _regular(48, offset_degrees=0) / 2


def _star() -> np.ndarray:
    return _regular(10, offset_degrees=-90) * np.where(np.arange(10) % 2, 0.4, 1.0)[:, None]


def _cross() -> np.ndarray:
    # Twelve corners of a plus sign whose arms are a third of its extent wide, walked clockwise.
    inner, outer = 1 / 3, 1.0
    quarter = np.array([[inner, -inner], [inner, -outer], [-inner, -outer]])
    turns = [np.array([[0, 1], [-1, 0]])] * 4
    corners = [quarter]
    for turn in turns[:3]:
        corners.append(corners[-1] @ turn.T)
    return np.concatenate(corners)


def _heart() -> np.ndarray:
    t = np.linspace(0, 2 * np.pi, 48, endpoint=False)
    x = 16 * np.sin(t) ** 3
    y = 13 * np.cos(t) - 5 * np.cos(2 * t) - 2 * np.cos(3 * t) - np.cos(4 * t)
    return np.stack([x, -y], axis=1)
