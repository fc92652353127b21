"""Trains a small tokenizer on a dataset's captions, laid out as T5's: id 0 `<pad>`, id 1 `</s>`, id 2 `<unk>`."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq

from hub_tools.places import local_folder
from pipelines.tasks.text_to_image.image_codes.image_code_record import ImageCodeFormatError, open_shard

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

SPECIAL_TOKENS = ("<pad>", "</s>", "<unk>")


def captions_of(folder_or_dataset: str) -> Iterator[str]:
    """The captions of a folder of shards, or of the `train` split of a dataset on the Hub.

    ValueError if there are neither shards nor such a dataset.
    """
    folder = local_folder(folder_or_dataset, expected="a folder of shards or a dataset ORG/NAME")
    if folder is not None:
        yield from _captions_of_folder(folder)
        return
    import datasets

    from hub_tools.foreign.dataset_opening import opening_dataset

    with opening_dataset(folder_or_dataset, None):
        rows = datasets.load_dataset(folder_or_dataset, split="train", streaming=True).select_columns(["caption"])
    yield from (row["caption"] for row in rows if row["caption"])


def train_tokenizer(captions: Iterator[str], vocab_size: int, model_max_length: int = 256) -> "PreTrainedTokenizerFast":
    """A lowercasing byte-pair tokenizer of at most vocab_size tokens, including special ones.

    Padding and end of text are both id 1 (`</s>`), as in the original run. Equal captions give an equal
    tokenizer. ValueError if there are no captions or vocab_size leaves no room for letters.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    if vocab_size <= len(SPECIAL_TOKENS):
        raise ValueError(
            f"A vocabulary of {vocab_size} has no room for letters. Increase --vocab-size to a few hundred."
        )
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Metaspace(), pre_tokenizers.Punctuation("isolated")]
    )
    tokenizer.decoder = decoders.Metaspace()
    counter = _CountedCaptions(captions)
    tokenizer.train_from_iterator(
        counter,
        trainers.BpeTrainer(
            vocab_size=vocab_size,
            special_tokens=list(SPECIAL_TOKENS),
            limit_alphabet=max(1, vocab_size - len(SPECIAL_TOKENS)),
            show_progress=False,
        ),
    )
    if counter.num_captions == 0:
        raise ValueError("There are no captions to learn from. Prepare a dataset first: dalle-collab data prepare")
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="</s>",
        eos_token="</s>",
        unk_token="<unk>",
        model_max_length=model_max_length,
    )


class _CountedCaptions:
    def __init__(self, captions: Iterator[str]):
        self.captions, self.num_captions = captions, 0

    def __iter__(self) -> Iterator[str]:
        for caption in self.captions:
            self.num_captions += 1
            yield caption


def _captions_of_folder(folder: Path) -> Iterator[str]:
    shards = sorted(folder.glob("*.parquet"))
    if not shards:
        raise ValueError(f"{folder} has no Parquet shards. Make some: dalle-collab data prepare --output {folder}")
    for path in shards:
        with open_shard(path) as shard:
            yield from _captions_of_shard(shard, path)


def _captions_of_shard(shard: pq.ParquetFile, path: Path) -> Iterator[str]:
    if "caption" not in shard.schema_arrow.names:
        raise ImageCodeFormatError(f"Shard {path.name} has no column `caption`. Give a folder made by data prepare.")
    for batch in shard.iter_batches(columns=["caption"]):
        yield from (caption for caption in batch["caption"].to_pylist() if caption)
