"""Documents of a text dataset on the Hub: streamed, without empty ones, cut if they are gigantic."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeGuard

import datasets
import pyarrow as pa

from hub_tools.foreign.column_names import find_column
from hub_tools.foreign.dataset_opening import opening_dataset
from pipelines.core.run.training_run import TrainingRun, stable_seed
from pipelines.tasks.language_modeling.settings import LanguageSettings
from pipelines.tasks.streaming import NUM_OPEN_SHARDS, is_held_out, prepare_streaming
from pipelines.tasks.text_to_image.image_codes.dataset_shards import dataset_on_hub
from pipelines.tasks.text_to_image.image_codes.shard_blocks import ShardBlocks

EVALUATION_SPLITS = ("validation", "test")
DOCUMENTS_PER_READ = 64
DOCUMENTS_LOOKED_AT = 1000
"""How many records a check reads to find a document that is not empty."""

MOST_CHARACTERS = 2**18
"""Longest piece of a document tokenised at once, which bounds the memory for gigantic ones."""


def open_dataset(run: TrainingRun, settings: LanguageSettings) -> Mapping[str, datasets.IterableDataset]:
    """Return the splits of the run's dataset, without reading them yet.

    Raises:
        ValueError: there is no such dataset, or it has no split `train`.
    """
    prepare_streaming()
    repository, revision = run.dataset_repository, run.dataset_revision
    with opening_dataset(repository, revision):
        splits = datasets.load_dataset(repository, settings.dataset_subset or None, revision=revision, streaming=True)
    if "train" not in splits:
        raise ValueError(f"Dataset {repository} at revision {revision} has no split train; it has {', '.join(splits)}.")
    return splits


def training_blocks(run: TrainingRun, settings: LanguageSettings) -> ShardBlocks | None:
    """Return the blocks of the training split; None if it is not of Parquet files, which alone have any.

    None, too, if there is no such dataset: `open_dataset` says so when somebody wants to read it.
    """
    prepare_streaming()
    try:
        with opening_dataset(run.dataset_repository, run.dataset_revision):
            builder = datasets.load_dataset_builder(
                run.dataset_repository, settings.dataset_subset or None, revision=run.dataset_revision
            )
    except ValueError:
        return None
    files = [file.partition(f"{run.dataset_repository}@")[2].partition("/")[2] for file in _files(builder, "train")]
    if not files or not all(name.endswith(".parquet") for name in files):
        return None
    dataset = dataset_on_hub(run.dataset_repository, run.dataset_revision)
    shards = [shard for shard in dataset.shards if shard.name in files]

    def columns(names: Sequence[str]) -> Sequence[str]:
        found = find_column(names, settings.text_column)
        return [found] if found else names

    return ShardBlocks(dataset, shards, columns) if len(shards) == len(set(files)) else None


def _files(builder: datasets.DatasetBuilder, split: str) -> Sequence[str]:
    found = builder.config.data_files
    return found.get(split, ()) if isinstance(found, Mapping) else ()


def check_dataset(run: TrainingRun, settings: LanguageSettings) -> None:
    """Raise ValueError unless the dataset has documents in the named column."""
    documents = _texts(open_dataset(run, settings)["train"].take(DOCUMENTS_LOOKED_AT), run, settings)
    if not any(is_text(document) for document in documents):
        raise ValueError(
            f"Dataset {run.dataset_repository} has no text in column {settings.text_column}: all of its first "
            f"{DOCUMENTS_LOOKED_AT} records are empty, or it has none."
        )


def training_documents(
    run: TrainingRun, settings: LanguageSettings, source: datasets.IterableDataset, *, seed: int, number: int
) -> Iterator[str]:
    """Yield the documents of pass `number`, shards in an order that depends on the seed, without held-out ones."""
    order = source.shuffle(
        seed=stable_seed(seed, number) % 2**32, buffer_size=1, max_buffer_input_shards=NUM_OPEN_SHARDS
    )
    for document in _texts(order, run, settings):
        if is_training_document(document, run):
            yield document


def held_out_documents(run: TrainingRun, settings: LanguageSettings) -> Iterator[str]:
    """Yield the documents of the evaluation in the dataset's order: its own split's, else held-out ones."""
    splits = open_dataset(run, settings)
    own = next((split for split in EVALUATION_SPLITS if split in splits), None)
    if own is None and run.held_out_share == 0:
        return
    for document in _texts(splits[own or "train"], run, settings):
        if is_text(document) and (own or is_held_out(document.encode(), run.held_out_share)):
            yield document


def is_training_document(document: str | None, run: TrainingRun) -> TypeGuard[str]:
    """Tell whether a document is one to train on: it has text, and is not held out."""
    return is_text(document) and not is_held_out(document.encode(), run.held_out_share)


def is_text(document: str | None) -> TypeGuard[str]:
    """Tell whether a document contains any text."""
    return bool(document) and not document.isspace()


def pieces(document: str, most_characters: int = MOST_CHARACTERS) -> Iterator[str]:
    """Yield a document in pieces of at most `most_characters`, cut at white space where there is any."""
    start = 0
    while len(document) - start > most_characters:
        end = start + most_characters
        while end > start + most_characters // 2 and not document[end].isspace():
            end -= 1
        end = end if document[end].isspace() else start + most_characters
        yield document[start:end]
        start = end
    yield document[start:]


def _texts(
    source: Iterable | datasets.IterableDataset, run: TrainingRun, settings: LanguageSettings
) -> Iterator[str | None]:
    for table in source.with_format("arrow").iter(DOCUMENTS_PER_READ):
        yield from texts_in(table, run, settings)


def texts_in(table: pa.Table, run: TrainingRun, settings: LanguageSettings) -> Iterator[str | None]:
    """The texts in a table, row by row. ValueError if the column of the settings is missing, or not one of text."""
    column = find_column(table.column_names, settings.text_column)
    if column is None:
        raise ValueError(
            f"Dataset {run.dataset_repository} has no column {settings.text_column}; it has "
            f"{', '.join(table.column_names)}. Name the one with the text: --set text_column=COLUMN"
        )
    for document in table[column].to_pylist():
        if document is not None and not isinstance(document, str):
            raise ValueError(
                f"Column {settings.text_column} of {run.dataset_repository} holds {type(document).__name__}, "
                "expected text."
            )
        yield document
