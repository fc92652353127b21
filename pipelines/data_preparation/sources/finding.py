"""Finds the sources behind what a user names. A new kind of source is a file beside this one and its row here."""

from collections.abc import Sequence
from pathlib import Path

from pipelines.data_preparation.reading_options import ReadingOptions
from pipelines.data_preparation.sources.file_kinds import PICTURE_SUFFIXES, readable_name
from pipelines.data_preparation.sources.folder_source import FolderSource
from pipelines.data_preparation.sources.sample import CaptionImageSource
from pipelines.data_preparation.sources.tar_source import TAR_SUFFIXES, TarSource


def find_sources(places: Sequence[str | Path], reading: ReadingOptions | None = None) -> list[CaptionImageSource]:
    """The sources behind tars, folders of tars and folders of pictures, in the order given, tars by name.

    FileNotFoundError for a path that does not exist; ValueError for one with nothing to read.
    """
    reading = reading or ReadingOptions()
    return [source for place in places for source in _sources_at(Path(place), reading)]


def _sources_at(path: Path, reading: ReadingOptions) -> list[CaptionImageSource]:
    if not path.exists():
        raise FileNotFoundError(f"There is no {path}. Expected a tar, a folder of tars or a folder of pictures.")
    tars = sorted(filter(_is_tar, path.rglob("*"))) if path.is_dir() else [path] if _is_tar(path) else []
    found: list[CaptionImageSource] = [TarSource(tar, reading, _name_below(path, tar)) for tar in tars]
    if path.is_dir():
        folder = FolderSource(path, reading)
        found += [folder] if folder.num_pictures else []
    if not found:
        raise ValueError(
            f"{path} has no tars ({', '.join(TAR_SUFFIXES)}) and no pictures ({', '.join(PICTURE_SUFFIXES)}). "
            "Download pairs with img2dataset (output_format webdataset), or point to a folder of pictures."
        )
    return found


def _name_below(path: Path, tar: Path) -> str:
    """The tar's name, with the folders between: two folders may have tars of one name."""
    return readable_name(tar.name if tar == path else tar.relative_to(path).as_posix())


def _is_tar(path: Path) -> bool:
    return path.name.lower().endswith(TAR_SUFFIXES) and not path.name.startswith(".") and path.is_file()
