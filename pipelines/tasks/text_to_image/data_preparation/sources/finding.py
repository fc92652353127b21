"""Finds the sources behind what a user names. A new kind of source is a file beside this one and its lines here."""

from collections.abc import Sequence
from pathlib import Path

from hub_tools.foreign.linked_folders import files_below
from pipelines.tasks.text_to_image.data_preparation.reading.reading_options import ReadingOptions
from pipelines.tasks.text_to_image.data_preparation.sources.file_kinds import PICTURE_SUFFIXES, readable_name
from pipelines.tasks.text_to_image.data_preparation.sources.folder_source import FolderSource
from pipelines.tasks.text_to_image.data_preparation.sources.parquet_source import ParquetSource
from pipelines.tasks.text_to_image.data_preparation.sources.sample import CaptionImageSource
from pipelines.tasks.text_to_image.data_preparation.sources.tar_source import TAR_SUFFIXES, TarSource

PARQUET_SUFFIX = ".parquet"


def find_sources(places: Sequence[str | Path], reading: ReadingOptions | None = None) -> list[CaptionImageSource]:
    """The sources behind tars, Parquet files, folders of them or of pictures, and datasets of the Hub.

    In the order given, and in a folder by name. FileNotFoundError for what does not exist; ValueError for a place with
    nothing to read.
    """
    reading = reading or ReadingOptions()
    return [source for place in places for source in _sources_at(place, reading)]


def _sources_at(place: str | Path, reading: ReadingOptions) -> Sequence[CaptionImageSource]:
    if not Path(place).exists():
        return _hub_sources(str(place), reading)
    path = Path(place)
    files = _files_below(path) if path.is_dir() else [path]
    found = [source for file in files if (source := _source_of(file, _name_below(path, file), reading))]
    if path.is_dir():
        folder = FolderSource(path, reading)
        found += [folder] if folder.num_pictures else []
    if not found:
        raise ValueError(
            f"{path} has no tars ({', '.join(TAR_SUFFIXES)}), no Parquet files of pictures and no pictures "
            f"({', '.join(PICTURE_SUFFIXES)}). Point to a folder of pictures, or to tars or Parquet files of "
            "img2dataset; a list of addresses has to be downloaded first: dalle-collab data download"
        )
    return found


def _files_below(folder: Path) -> list[Path]:
    """The tars and Parquet files of a folder and its folders by name; among millions of pictures there are few."""
    return files_below(folder, (*TAR_SUFFIXES, PARQUET_SUFFIX))


def _source_of(file: Path, name: str, reading: ReadingOptions) -> CaptionImageSource | None:
    """The source that a file is by itself; Parquet files of metadata lie beside img2dataset's tars and folders."""
    if file.name.startswith(".") or (file.exists() and not file.is_file()):
        return None
    if file.name.lower().endswith(TAR_SUFFIXES):
        return TarSource(file, reading, name)
    if file.name.lower().endswith(PARQUET_SUFFIX):
        source = ParquetSource(file, reading, name)
        return source if source.has_pictures() else None
    return None


def _hub_sources(place: str, reading: ReadingOptions) -> Sequence[CaptionImageSource]:
    from pipelines.tasks.text_to_image.data_preparation.sources import hub_source  # `datasets` takes seconds to import

    dataset = hub_source.HubPlace.parse(place)
    if dataset is None:
        raise FileNotFoundError(
            f"There is no {place}. Expected a tar, a Parquet file, a folder of them or of pictures, or a dataset of "
            "the Hub, hub:ORG/NAME."
        )
    return hub_source.open_hub_dataset(dataset, reading)


def _name_below(path: Path, file: Path) -> str:
    """The file's name, with the folders between: two folders may have tars of one name."""
    return readable_name(file.name if file == path else file.relative_to(path).as_posix())
