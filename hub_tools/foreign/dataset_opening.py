"""Datasets of the Hub, which may be a stranger's. `datasets` lists their files whole, so they are bounded before."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

from hub_tools.foreign.downloads import listed_files
from hub_tools.hub_client import is_outage
from hub_tools.one_line_errors import explain_error


@contextlib.contextmanager
def opening_dataset(place: str, revision: str | None, name: str | None = None) -> Iterator[None]:
    """Let `datasets` open a dataset of the Hub, or a folder, in the block: bounded, and from no other host.

    Raises ValueError with the dataset's `name` if there is none, or it has too many files; outages as they are.
    """
    import datasets

    datasets.config.USE_PARQUET_EXPORT = False  # the viewer's, on another host than the Hub in use
    absent = (datasets.exceptions.DatasetsError, RepositoryNotFoundError, RevisionNotFoundError, FileNotFoundError)
    try:
        if not Path(place).is_dir():
            listed_files(place, revision, "dataset")
        yield
    except (*absent, ValueError) as error:
        if is_outage(error):
            raise
        where = name or f"{place} at revision {revision or 'main'}"
        raise ValueError(f"The dataset {where} cannot be read: {explain_error(error)}") from error
