"""`make demo-emoji`: the whole pipeline on emoji in four styles, and what the model draws that it never saw."""

import json
import tarfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from rich.console import Console

from pipelines.demo.codec_and_clip import train_codec_and_clip
from pipelines.demo.demo_plan import DemoPlan
from pipelines.demo.emoji.emoji_judge import Gallery, Judgement, judge_pictures, open_gallery
from pipelines.demo.emoji.emoji_pairs import COLOURS_TEST, SEPARATOR, STYLES_TEST, TONES_TEST, TRAIN, parse_caption
from pipelines.demo.emoji.emoji_prompts import judged_groups, pictured_concepts
from pipelines.demo.emoji.emoji_report import judgement_table, side_by_side
from pipelines.demo.emoji.emoji_sets import STYLES
from pipelines.demo.emoji.emoji_tars import split_folder
from pipelines.demo.running.progress_lines import ProgressLines
from pipelines.demo.stages import Stages
from pipelines.demo.summary import DemoSummary, mean_picture_bytes, summarise_demo, write_summary
from pipelines.demo.whole_line import LineResult, run_whole_line
from pipelines.image_codes.codec_code import open_codec
from pipelines.image_codes.thumbnails import to_picture
from pipelines.image_codes.vqgan_codec import VQGANCodec

MOST_JUDGED_OF_A_GROUP = 100
CONCEPTS_PICTURED_OF_A_GROUP = 2
JUDGED_FILE, PICTURE_FILE = "judged.json", "side_by_side.png"
TRUE_PICTURES = "the true pictures themselves"
SPLITS = (TRAIN, STYLES_TEST, TONES_TEST, COLOURS_TEST)
CREDITS = "\n".join(f"- {style.attribution}: {style.license}" for style in STYLES)

RUN_SETTINGS: dict[str, Any] = dict(
    hidden_size=160,
    num_hidden_layers=6,
    num_attention_heads=5,
    head_dim=32,
    attention_pattern=["row", "column", "row", "column", "row"],
    text_sequence_length=22,
    recompute="none",
    target_batch_size=192,
    num_epochs=330,
    num_warmup_epochs=15,
    peak_learning_rate=0.0125,
    weight_decay=0.01,
    matchmaking_seconds=2.0,
    averaging_timeout_seconds=60.0,
    progress_expiration_seconds=30.0,
    checkpoint_interval_epochs=110,
)
"""Everything that makes this run smaller than the paper's."""


@dataclass(frozen=True, kw_only=True)
class EmojiDemoResult:
    """Results of the demo."""

    summary: DemoSummary
    judgements: tuple[Judgement, ...]


def run_emoji_demo(output: Path, console: Console, *, source: Path | None = None) -> EmojiDemoResult:
    """Run the demo, or the rest of an interrupted one, from given sets or ones it fetches; return what it judges."""
    work = output / "work"
    plan = DemoPlan(
        name="emoji",
        output=output,
        codec_folder=work / "codec",
        clip_folder=work / "clip",
        run_settings=RUN_SETTINGS,
        opens_spaces=True,
        vocabulary_size=2048,
        num_candidates=8,
        top_k=64,
        num_captions_in_grid=12,
        source=dict(source="fetched" if source is None else str(source.resolve())),
        dataset_license="other",  # four licences, which the credits name
        dataset_credits=f"The pictures are those of four sets of emoji, each under its own licence:\n\n{CREDITS}",
    )
    result = run_whole_line(
        plan,
        lambda stages, folder: _make_pictures(stages, plan, folder, source),
        lambda: _prompts(work / "pictures").captions,
        console,
        train_models=lambda stages: train_codec_and_clip(stages, plan, codec_steps=1500, clip_steps=500),
    )
    with ProgressLines(console).doing("Judging the pictures"):
        judgements = _judge(output, _prompts(work / "pictures"), result, open_codec(plan.codec_folder))
        summary = summarise_demo(
            result, picture_bytes=mean_picture_bytes(split_folder(work / "pictures", TRAIN).glob("*.tar"))
        )
        write_summary(
            output,
            "Emoji in four styles drawn by a model that two peers trained together",
            summary,
            result.history,
            grid_title="Concepts that were held out in some style or in all, in every style, best first",
        )
    return EmojiDemoResult(summary=summary, judgements=judgements)


def show_judgements(result: EmojiDemoResult, output: Path, console: Console) -> None:
    """Print the judge's table."""
    console.print(judgement_table(result.judgements))
    console.print(f"As figures in {output / JUDGED_FILE}; {output / PICTURE_FILE} shows them.", highlight=False)


def _make_pictures(stages: Stages, plan: DemoPlan, folder: Path, source: Path | None) -> None:
    fetched = source or plan.work / "source"
    if source is None:
        stages.once(
            "fetching", "Fetching the emoji",
            lambda: stages.run("dalle-collab", "demo", "emoji-fetch", "--output", str(fetched), log_name="pictures"),
            outputs=[fetched],
        )  # fmt: skip
    stages.run(
        "dalle-collab", "demo", "emoji-tars", "--source", str(fetched), "--output", str(folder), log_name="pictures"
    )


@dataclass(frozen=True, kw_only=True)
class _Prompts:
    """What the demo draws."""

    groups: Mapping[str, list[str]]
    pictured: list[str]
    """Concepts of the picture, which are drawn in every style."""

    held_out: frozenset[str]

    @property
    def captions(self) -> list[str]:
        """All captions, each once: the picture's, then the judge's."""
        shown = [f"{concept}{SEPARATOR}{style.name}" for concept in self.pictured for style in STYLES]
        return list(dict.fromkeys([*shown, *(caption for group in self.groups.values() for caption in group)]))


def _prompts(pictures: Path) -> _Prompts:
    captions = {split: _captions(split_folder(pictures, split).glob("*.tar")) for split in SPLITS}
    groups = judged_groups(captions, MOST_JUDGED_OF_A_GROUP)
    return _Prompts(
        groups=groups,
        pictured=pictured_concepts(
            groups,
            {caption for found in captions.values() for caption in found},
            [style.name for style in STYLES],
            per_group=CONCEPTS_PICTURED_OF_A_GROUP,
        ),
        held_out=frozenset(caption for split in SPLITS[1:] for caption in captions[split]),
    )


def _captions(tars: Iterable[Path]) -> list[str]:
    found = []
    for path in sorted(tars):
        with tarfile.open(path) as tar:
            found += [tar.extractfile(member).read().decode() for member in tar if member.name.endswith(".txt")]
    return found


def _judge(output: Path, prompts: _Prompts, result: LineResult, codec: VQGANCodec) -> tuple[Judgement, ...]:
    """Judge what was drawn; write the figures and the picture beside the grid."""
    gallery, true = open_gallery([split_folder(output / "work" / "pictures", split) for split in SPLITS], codec)
    best = dict(zip(prompts.captions, result.best_pictures, strict=True))
    first = dict(zip(prompts.captions, result.unranked_pictures, strict=True))
    everything = [caption for captions in prompts.groups.values() for caption in captions]
    check = judge_pictures(TRUE_PICTURES, everything, torch.stack([true[caption] for caption in everything]), gallery)
    judgements = (*_judge_groups(prompts.groups, best, gallery), check)
    text = dict(
        best_of_candidates=[judgement.to_json() for judgement in judgements],
        single_candidate=[judgement.to_json() for judgement in _judge_groups(prompts.groups, first, gallery)],
    )
    (output / JUDGED_FILE).write_text(json.dumps(text, indent=2) + "\n", encoding="utf-8")
    _draw_side_by_side(prompts, true, best).save(output / PICTURE_FILE)
    return judgements


def _draw_side_by_side(prompts: _Prompts, true: Mapping[str, torch.Tensor], files: Mapping[str, str]) -> Image.Image:
    shown = {caption: picture for caption, picture in true.items() if parse_caption(caption)[0] in prompts.pictured}
    return side_by_side(
        prompts.pictured,
        [style.name for style in STYLES],
        {caption: to_picture(picture.float() / 255) for caption, picture in shown.items()},
        {caption: Image.open(file) for caption, file in files.items()},
        prompts.held_out,
    )


def _judge_groups(groups: Mapping[str, list[str]], files: Mapping[str, str], gallery: Gallery) -> tuple[Judgement, ...]:
    return tuple(
        judge_pictures(group, captions, torch.stack([_read(files[caption]) for caption in captions]), gallery)
        for group, captions in groups.items()
    )


def _read(file: str) -> torch.Tensor:
    with Image.open(file) as picture:
        return torch.from_numpy(np.array(picture.convert("RGB"))).permute(2, 0, 1)
