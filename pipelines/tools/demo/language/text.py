"""Real English text that every machine has: the language reference and the docstrings of the running Python.

`pydoc_data.topics` is what `help("yield")` shows; the rest are the docstrings of the standard library, one document per
module. Both depend only on the Python version. Repeated paragraphs, of which there are many, are dropped, so that
held-out documents are not copies of training documents.
"""

import ast
import re
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path
from pydoc_data.topics import topics

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.tasks.streaming import is_held_out

TEXT_FOLDER, TOKENIZER_FOLDER = "dataset", "tokenizer"
HELD_OUT_SHARE = 0.06
NUM_SHARDS = 4
SHORTEST_PARAGRAPH = 40
"""Minimum length in characters. Shorter paragraphs are mostly headings and signatures, the same everywhere."""

LEFT_OUT = ("site-packages", "dist-packages", "test", "tests", "idle_test", "pydoc_data", "__pycache__")


def documents() -> Iterator[str]:
    """Yield the topics of the language reference, then one document for each module of the standard library."""
    library = Path(sysconfig.get_path("stdlib"))
    texts = (text for _, text in sorted(topics.items()))
    yield from without_repetitions((*texts, *(docstrings(path) for path in _modules(library))))


def _modules(library: Path) -> list[Path]:
    paths = [path.relative_to(library) for path in library.rglob("*.py")]
    return [library / path for path in sorted(paths) if not set(path.parts) & set(LEFT_OUT)]


def docstrings(path: Path) -> str:
    """Return all docstrings of a module, in its order, as paragraphs; empty if it is not Python."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError):
        return ""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = (ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, kinds))
    return "\n\n".join(text for text in found if text)


def without_repetitions(texts: Iterable[str]) -> Iterator[str]:
    """Yield texts without paragraphs that occurred before, in them or in others, and without the shortest."""
    seen: set[str] = set()
    for text in texts:
        kept = []
        for paragraph in re.split(r"\n\s*\n", text):
            words = " ".join(paragraph.split())
            if len(words) >= SHORTEST_PARAGRAPH and words not in seen:
                kept.append(paragraph.rstrip())
            seen.add(words)
        if kept:
            yield "\n\n".join(kept)


def write_text_dataset(folder: Path, texts: Iterable[str]) -> tuple[list[str], list[str]]:
    """Write a dataset with the splits `train` and `validation` into `folder/data`; return the documents of both."""
    (folder / "data").mkdir(parents=True)
    train, validation = [], []
    for text in texts:
        (validation if is_held_out(text.encode(), HELD_OUT_SHARE) else train).append(text)
    for shard in range(NUM_SHARDS):
        _write_shard(folder / "data" / f"train-{shard:05d}-of-{NUM_SHARDS:05d}.parquet", train[shard::NUM_SHARDS])
    _write_shard(folder / "data" / "validation-00000-of-00001.parquet", validation)
    return train, validation


def _write_shard(path: Path, texts: list[str]) -> None:
    pq.write_table(pa.table({"text": pa.array(texts, pa.string())}), path)
