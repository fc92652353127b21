"""A few of the pictures that were dropped, small, for people to see what a filter does."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from hub_tools.atomic_files import write_text_whole, written_whole
from pipelines.tasks.text_to_image.data_preparation.filtering import DropReason, is_unsafe
from pipelines.tasks.text_to_image.data_preparation.pictures.decoding_pool import DecodingPool
from pipelines.tasks.text_to_image.data_preparation.sources.sample import CaptionImage

FOLDER_NAME = "dropped"
MOST_PER_REASON = 8
MOST_CHARACTERS = 200
"""Of a key or caption."""


@dataclass(frozen=True, kw_only=True)
class DroppedPicture:
    """A sample that was dropped."""

    reason: str
    """Value of the DropReason."""
    key: str
    """Source and name in it."""
    caption: str
    """Its beginning; empty if there was none."""
    picture: Path | None
    """A small JPEG, None if there is nothing to see."""


class DroppedPictures:
    """Keeps the first few of each reason below `dropped/`: `REASON-SHARD-NUMBER.jpg`, and `.txt` with key and caption.

    A shard that is made again writes the same files. Pictures that a label calls unsafe are never kept.
    """

    def __init__(self, output: Path, pool: DecodingPool):
        self.folder, self.pool = output / FOLDER_NAME, pool
        self._shard, self._num_earlier, self._num_here = 0, Counter[str](), Counter[str]()

    def begin_shard(self, number: int) -> None:
        """What is kept from now on belongs to this shard."""
        self._shard, self._num_here = number, Counter()
        self._num_earlier = Counter(reason for reason, shard, _ in _places(self.folder) if shard < number)

    def keep(self, sample: CaptionImage, reason: DropReason) -> None:
        """Keep this sample if there are few of its kind."""
        is_full = self._num_earlier[reason] + self._num_here[reason] >= MOST_PER_REASON
        may_be_unsafe = reason in (DropReason.NSFW, DropReason.DAMAGED_METADATA)  # a damaged label says nothing
        if is_full or may_be_unsafe or is_unsafe(sample, self.pool.settings.policy):
            return
        self.folder.mkdir(exist_ok=True)
        name = f"{reason}-{self._shard:05d}-{self._num_here[reason]}"
        self._num_here[reason] += 1
        # One that has killed its decoder is not tried again.
        can_be_seen = sample.image_bytes and reason is not DropReason.DECODING_FAILED
        if can_be_seen and (picture := self.pool.thumbnail(sample.image_bytes)):
            with written_whole(self.folder / f"{name}.jpg") as temporary:
                temporary.write_bytes(picture)
        lines = f"{sample.source}/{sample.key}", sample.caption or ""
        text = "".join(f"{' '.join(line[:MOST_CHARACTERS].split())}\n" for line in lines)
        write_text_whole(self.folder / f"{name}.txt", text.encode(errors="replace").decode())


def keep_first_dropped(output: Path) -> None:
    """Remove what is too much when shards were made side by side and did not see what earlier ones kept."""
    num_kept = Counter[str]()
    for reason, shard, number in sorted(_places(output / FOLDER_NAME)):
        num_kept[reason] += 1
        if num_kept[reason] > MOST_PER_REASON:
            for suffix in (".txt", ".jpg"):
                (output / FOLDER_NAME / f"{reason}-{shard:05d}-{number}{suffix}").unlink(missing_ok=True)


def read_dropped_pictures(folder: Path) -> list[DroppedPicture]:
    """What `DroppedPictures` has kept in a folder of shards, by reason."""
    found = []
    for path in sorted((folder / FOLDER_NAME).glob("*-*-*.txt")):
        key, _, caption = path.read_text(encoding="utf-8").partition("\n")
        picture = path.with_suffix(".jpg")
        found.append(
            DroppedPicture(
                reason=path.stem.split("-")[0],
                key=key,
                caption=caption.strip(),
                picture=picture if picture.is_file() else None,
            )
        )
    return found


def _places(folder: Path) -> list[tuple[str, int, int]]:
    """Reason, shard and number of all that is kept."""
    names = [path.stem.split("-") for path in folder.glob("*-*-*.txt")]
    return [(reason, int(shard), int(number)) for reason, shard, number in names if f"{shard}{number}".isdecimal()]
