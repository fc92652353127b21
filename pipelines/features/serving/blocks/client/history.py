"""What was sent into a hop, as it went over the wire. Axes: stream, sample, place, hidden."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

FIRST_PLACES = 64
"""Places for which memory is taken at first."""


class History:
    """What went into a hop, by sample and place, in the wire's codec."""

    def __init__(self, first_place: int) -> None:
        self.first_place = self._end = first_place
        self._parts: dict[str, Tensor] = {}

    def write(self, parts: Mapping[str, Tensor], places: Tensor) -> None:
        """Keep what is sent for places (sample, step); what was there is replaced."""
        at, self._end = places - self.first_place, max(self._end, int(places.max()) + 1)
        if not self._parts or int(at.max()) >= next(iter(self._parts.values())).shape[2]:
            self._grow(parts, int(at.max()) + 1)
        for name, part in parts.items():
            index = at[None, :, :, None].expand(*part.shape)
            self._parts[name].scatter_(2, index, part)

    def until(self, end: int) -> dict[str, Tensor]:
        """Return what was sent for all places before `end`."""
        return {name: part[:, :, : end - self.first_place] for name, part in self._parts.items()}

    def reorder(self, rows: Tensor) -> None:
        """Go on with these samples in place of all."""
        self._parts = {name: part[:, rows] for name, part in self._parts.items()}

    @property
    def end(self) -> int:
        """The place behind the last one that was sent."""
        return self._end

    @property
    def num_samples(self) -> int:
        """Samples, all of which have read as far."""
        return next(iter(self._parts.values())).shape[1]

    @property
    def num_bytes(self) -> int:
        """Memory that it takes."""
        return sum(part.numel() * part.element_size() for part in self._parts.values())

    def _grow(self, like: Mapping[str, Tensor], length: int) -> None:
        length = max(FIRST_PLACES, length * 3 // 2)
        for name, part in like.items():
            larger = part.new_zeros(part.shape[0], part.shape[1], length, part.shape[3])
            if (old := self._parts.get(name)) is not None:
                larger[:, :, : old.shape[2]] = old
            self._parts[name] = larger


@dataclass
class Recording:
    """All that went into a hop, as it went over the wire: enough for another server to take its place."""

    prompts: list[tuple[dict[str, object], dict[str, Tensor], tuple[int, ...]]] = field(default_factory=list)
    """Each part of the prompts: the message, its tensors, and the shape of the states."""

    history: History | None = None
    """None: nothing was read yet, or it has become too much to keep."""
