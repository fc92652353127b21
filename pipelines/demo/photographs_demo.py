"""`dalle-collab demo photographs`: the whole pipeline on a folder of pictures and text files as people have them."""

import hashlib
from pathlib import Path
from typing import Any

from rich.console import Console

from pipelines.data_preparation.filtering import FilterPolicy, drop_reason
from pipelines.data_preparation.reading.reading_options import ReadingOptions
from pipelines.data_preparation.sources.finding import find_sources
from pipelines.data_preparation.sources.folder_source import FolderSource
from pipelines.demo.codec_and_clip import train_codec_and_clip
from pipelines.demo.demo_plan import DemoPlan
from pipelines.demo.running.progress_lines import ProgressLines
from pipelines.demo.summary import DemoSummary, summarise_demo, write_summary
from pipelines.demo.whole_line import run_whole_line

NUM_CAPTIONS = 16
# Text files of collections hold translations and notes below the caption.
READING = ReadingOptions(caption_lines="first")

RUN_SETTINGS: dict[str, Any] = dict(
    hidden_size=160,
    num_hidden_layers=6,
    num_attention_heads=5,
    head_dim=32,
    attention_pattern=["row", "column"],
    text_sequence_length=24,
    recompute="none",
    target_batch_size=128,
    num_epochs=120,
    num_warmup_epochs=10,
    peak_learning_rate=0.01,
    weight_decay=0.01,
    matchmaking_seconds=2.0,
    averaging_timeout_seconds=60.0,
    progress_expiration_seconds=30.0,
    checkpoint_interval_epochs=60,
)
"""Everything that makes this run smaller than the paper's."""


def run_photographs_demo(source: Path, output: Path, console: Console) -> DemoSummary:
    """Run the demo, or the rest of an interrupted one, on a folder of `NAME.png` with `NAME.txt`; return its figures.

    The grid shows captions that were trained on: with one picture for most of them, memory is what there is to see.

    Raises:
        FileNotFoundError, ValueError: there is no such folder, or nothing in it can be read.
    """
    work = output / "work"
    with ProgressLines(console).doing("Reading the captions"):
        captions, pictures = captions_to_draw(source), FolderSource(source)
    plan = DemoPlan(
        name="photographs",
        output=output,
        own_pictures=source,
        caption_lines=READING.caption_lines,
        codec_folder=work / "codec",
        clip_folder=work / "clip",
        run_settings=RUN_SETTINGS,
        vocabulary_size=1024,
        num_captions_in_grid=NUM_CAPTIONS,
        source=dict(source=str(source.resolve()), num_pictures=pictures.num_pictures, picture_bytes=pictures.num_bytes),
    )
    result = run_whole_line(
        plan,
        lambda *_: None,
        lambda: captions,
        console,
        train_models=lambda stages: train_codec_and_clip(stages, plan, codec_steps=600, clip_steps=300),
    )
    summary = summarise_demo(result, picture_bytes=pictures.num_bytes / pictures.num_pictures)
    write_summary(
        output,
        "Pictures from a folder, drawn by a model that two peers trained together",
        summary,
        result.history,
        grid_title="Captions that were trained on, best first",
    )
    return summary


def captions_to_draw(source: Path) -> list[str]:
    """Return some of the folder's captions, always the same, each once.

    Raises:
        FileNotFoundError, ValueError: there is no such folder, or nothing in it can be read.
    """
    samples = (sample for found in find_sources([source], READING) for sample in found.samples())
    captions = {sample.caption for sample in samples if drop_reason(sample, FilterPolicy(reading=READING)) is None}
    return sorted(captions, key=lambda caption: hashlib.sha256(caption.encode()).digest())[:NUM_CAPTIONS]
