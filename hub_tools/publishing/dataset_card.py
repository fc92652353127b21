"""The card of an image-code dataset: what is in it, which codec made it, and how to stream it."""

import json
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from ..counted import counted, file_size
from ..printing.marked_up import code, in_words, markdown_table, plain

SPLITS = ("train", "validation", "test")
SIZE_CATEGORIES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"))
LARGEST_SIZE_CATEGORY = "n>1M"
CAPTIONS_SHOWN, LONGEST_CAPTION = 5, 200


@dataclass(frozen=True, kw_only=True)
class ShardSummary:
    """One Parquet file of a dataset."""

    name: str
    """Path below the dataset's folder."""

    num_rows: int
    """Records in the shard."""

    num_bytes: int
    """Bytes of the file."""

    column_types: tuple[tuple[str, str], ...]
    """Names and Arrow types of the columns."""

    metadata: dict[str, str] = field(default_factory=dict)
    """What the schema says about the format and the codec; empty for other Parquet files."""

    @property
    def split(self) -> str:
        """The split that the file's name announces, "train" if none."""
        announced = Path(self.name).name.partition("-")[0]
        return announced if announced in SPLITS else "train"


@dataclass(frozen=True, kw_only=True)
class DatasetSummary:
    """All shards of a dataset; they agree in columns and metadata."""

    folder: Path
    """Where the shards lie."""

    shards: tuple[ShardSummary, ...]
    """The shards by name."""

    schema: pa.Schema
    """Their columns."""

    metadata: dict[str, str]
    """Format version, codec fingerprint, codebook and grid size, where known."""

    @property
    def num_rows(self) -> int:
        """Records in all shards."""
        return sum(shard.num_rows for shard in self.shards)

    @property
    def num_bytes(self) -> int:
        """Bytes of all files."""
        return sum(shard.num_bytes for shard in self.shards)

    def of_split(self, split: str) -> tuple[ShardSummary, ...]:
        """Return the shards of a split."""
        return tuple(shard for shard in self.shards if shard.split == split)

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits that have shards."""
        return tuple(split for split in SPLITS if self.of_split(split))


def dataset_card(dataset: DatasetSummary, repo_id: str, *, license: str | None = None, credits: str = "") -> str:
    """Return the README.md of a dataset: YAML block for the Hub, text for people, filters, licence, who made the
    pictures."""
    front_matter = yaml.safe_dump(_card_data(dataset, license), sort_keys=False, allow_unicode=True)
    return f"---\n{front_matter}---\n\n{_text(dataset, repo_id)}{_filters(dataset.folder)}{_licence(license, credits)}"


def _card_data(dataset: DatasetSummary, license: str | None) -> dict:
    data: dict = {"license": license} if license else {}
    data |= {"task_categories": ["text-to-image"], "tags": ["dalle-collab", "image-codes"]}
    data |= {"size_categories": [_size_category(dataset.num_rows)]}
    files = [{"split": split, "path": _patterns(dataset, split)} for split in dataset.splits]
    data["configs"] = [{"config_name": "default", "data_files": files}]
    features = [_feature(column) for column in dataset.schema]
    if None not in features:
        data["dataset_info"] = {"features": features, "splits": _split_infos(dataset), **_sizes(dataset)}
    return data


def _split_infos(dataset: DatasetSummary) -> list[dict]:
    infos = []
    for split in dataset.splits:
        shards = dataset.of_split(split)
        num_bytes = sum(shard.num_bytes for shard in shards)
        infos.append({"name": split, "num_bytes": num_bytes, "num_examples": sum(shard.num_rows for shard in shards)})
    return infos


def _sizes(dataset: DatasetSummary) -> dict[str, int]:
    return {"download_size": dataset.num_bytes, "dataset_size": dataset.num_bytes}


def _patterns(dataset: DatasetSummary, split: str) -> str | list[str]:
    shards = dataset.of_split(split)
    places = [shard.name if shard.name.startswith("data/") else f"data/{shard.name}" for shard in shards]
    flat = all(Path(place).parent == Path("data") for place in places)
    announced = all(Path(place).name.startswith(f"{split}-") for place in places)
    if flat and announced:
        return f"data/{split}-*.parquet"
    return "data/**/*.parquet" if len(dataset.splits) == 1 else places


def _feature(column: pa.Field) -> dict | None:
    """Return a column as `datasets` writes it in cards, or None for a type that readers must detect themselves."""
    kind = column.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        item = _scalar_type(kind.value_type)
        return {"name": column.name, "list": item} if item else None
    scalar = _scalar_type(kind)
    return {"name": column.name, "dtype": scalar} if scalar else None


def _scalar_type(kind: pa.DataType) -> str | None:
    if pa.types.is_string(kind) or pa.types.is_binary(kind) or pa.types.is_boolean(kind):
        return str(kind)
    if pa.types.is_integer(kind):
        return str(kind)
    names = {pa.float16(): "float16", pa.float32(): "float32", pa.float64(): "float64"}
    return names.get(kind)


def _size_category(num_rows: int) -> str:
    return next((name for bound, name in SIZE_CATEGORIES if num_rows < bound), LARGEST_SIZE_CATEGORY)


def _text(dataset: DatasetSummary, repo_id: str) -> str:
    columns = [(code(name), plain(kind)) for name, kind in dataset.shards[0].column_types]
    per_record = dataset.num_bytes / max(1, dataset.num_rows)
    facts = [
        f"- {counted(dataset.num_rows, 'record')} in {counted(len(dataset.shards), 'Parquet shard')}, "
        f"{file_size(dataset.num_bytes)} ({file_size(per_record)} per record)",
        *(f"- {plain(_words(key))}: {code(value)}" for key, value in sorted(dataset.metadata.items())),
    ]
    listed = "\n".join(facts)
    split = dataset.splits[0]
    return f"""# {plain(repo_id.partition("/")[2])}

Captions with the VQGAN codes of their pictures, for training text-to-image transformers.

{listed}

{markdown_table(("column", "type"), columns)}

Stream it, without downloading it first:

```python
from datasets import load_dataset

dataset = load_dataset("{repo_id}", split="{split}", streaming=True)
for record in dataset.take(3):
    print(record[{json.dumps(dataset.schema.names[0])}])
```
{_captions(dataset)}{_codec_note(dataset)}"""


def _captions(dataset: DatasetSummary) -> str:
    """Return some captions of the first shard, far apart: what the dataset is about."""
    path = dataset.folder / dataset.shards[0].name
    if "caption" not in dataset.schema.names or not path.is_file():
        return ""
    with pq.ParquetFile(path) as file:
        found = file.read_row_group(0, columns=["caption"]).column("caption").to_pylist()
    captions = [caption for caption in found if isinstance(caption, str) and caption.strip()]
    shown = captions[:: max(1, len(captions) // CAPTIONS_SHOWN)][:CAPTIONS_SHOWN]
    listed = "\n".join(f"- {plain(caption[:LONGEST_CAPTION])}" for caption in shown)
    return f"\n## Captions\n\nSome of them:\n\n{listed}\n" if shown else ""


def _filters(folder: Path) -> str:
    """What `data prepare` kept and dropped, and by which thresholds, where it has left its report."""
    report, manifest = (_read_json(folder / name) for name in ("report.json", "manifest.json"))
    dropped = report.get("dropped")
    if not isinstance(dropped, dict) or not isinstance(report.get("kept"), int):
        return ""
    seen = report["kept"] + sum(dropped.values())
    rows = [("kept", report["kept"]), *sorted(dropped.items(), key=lambda entry: -entry[1])]
    shares = [(plain(_words(name)), f"{count:,}", f"{count / max(1, seen):.1%}") for name, count in rows]
    settings = manifest.get("settings", {})
    thresholds = [*settings.get("filter", {}).items(), *settings.get("pictures", {}).items()]
    listed = "\n".join(f"- {plain(_words(name))}: {code(in_words(value))}" for name, value in thresholds)
    return (
        f"\n## Filters\n\nOf {seen:,} samples:\n\n{markdown_table(('', 'samples', 'share'), shares)}\n"
        f"\nThe filters were:\n\n{listed}\n"
    )


def _read_json(path: Path) -> dict:
    try:
        values = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except ValueError:
        return {}
    return values if isinstance(values, dict) else {}


def _words(name: str) -> str:
    return name.replace("_", " ")


def _licence(license: str | None, credits: str) -> str:
    stated = license or "Not stated; its owner adds one: `hub-tools publish dataset FOLDER ORG/NAME --license LICENCE`."
    return f"\n## Licence\n\n{stated}\n" + (f"\n## Credits\n\n{credits.strip()}\n" if credits.strip() else "")


def _codec_note(dataset: DatasetSummary) -> str:
    fingerprint = dataset.metadata.get("codec_fingerprint")
    shown = code(fingerprint or "")
    return f"\nOnly the codec with fingerprint {shown} turns these codes into pictures.\n" if shown else ""
