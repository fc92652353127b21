"""`dalle-collab evaluate`: how good a checkpoint is, and whether another one is better."""

import dataclasses
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipelines.command_line.terminal import setting_options as shared
from pipelines.command_line.terminal.setting_options import refuse_given

if TYPE_CHECKING:
    import torch

    from pipelines.core.run.training_run import TrainingRun
    from pipelines.features.evaluation.opening import Reading, Subject
    from pipelines.features.evaluation.report import EvaluationReport
    from pipelines.tasks.language_modeling.evaluation.labelled_source import LabelledSource
    from pipelines.tasks.text_to_image.generation.generation_options import GenerationOptions


SAMPLER = ("top_k", "top_p", "temperature", "guidance_scale")
ABOUT_PICTURES = (
    *("drawings", "features", "originals", "training_records", "clip", "batch_size"),
    *(f"{which}{name}" for which in ("", "compare_") for name in ("codec", *SAMPLER)),
)
COMPARED = tuple(f"compare_{name}" for name in ("revision", "codec", "precision", *SAMPLER))
FINETUNED = ("train_examples", "test_examples", "seeds", "passes", "learning_rate", "tokens")
PANEL = shared.CLASSIFICATION


def evaluate(
    context: typer.Context,
    repository: shared.RunOrFolder,
    compare: shared.Compare = None,
    revision: shared.Revision = None,
    records: Annotated[int, typer.Option(min=2, help="Held-out records; their captions are the prompts.")] = 400,
    drawings: Annotated[int, typer.Option(min=1, help="Pictures drawn for each prompt.")] = 4,
    features: shared.Features = None,
    originals: shared.Originals = None,
    training_records: shared.TrainingRecords = 2000,
    clip: shared.Clip = None,
    codec: shared.Codec = None,
    top_k: shared.TopK = 256,
    top_p: shared.TopP = None,
    temperature: shared.Temperature = 1.0,
    guidance_scale: shared.GuidanceScale = 1.0,
    precision: Annotated[str, typer.Option(help="float32, bfloat16, float16 or int8 (weights, on a CPU).")] = "float32",
    compare_revision: Annotated[str | None, typer.Option(help="The same for the one compared with.")] = None,
    compare_codec: Annotated[str | None, typer.Option(help="The same for the one compared with.")] = None,
    compare_top_k: Annotated[int | None, typer.Option(help="The same for the one compared with.")] = None,
    compare_top_p: Annotated[float | None, typer.Option(help="The same for the one compared with.")] = None,
    compare_temperature: Annotated[float | None, typer.Option(help="The same for the one compared with.")] = None,
    compare_guidance_scale: Annotated[float | None, typer.Option(help="The same for the one compared with.")] = None,
    compare_precision: Annotated[str | None, typer.Option(help="The same for the one compared with.")] = None,
    seed: shared.SamplingSeed = 0,
    batch_size: Annotated[int, typer.Option(min=1, help="Pictures drawn at once; fewer need less memory.")] = 64,
    token_classification: shared.TokenClassification = None,
    sentence_classification: shared.SentenceClassification = None,
    train_examples: Annotated[int, typer.Option(min=20, help="Most examples to fine-tune on.", **PANEL)] = 1000,
    test_examples: Annotated[int, typer.Option(min=20, help="Most examples to measure with.", **PANEL)] = 1000,
    seeds: Annotated[int, typer.Option(min=1, help="Fine-tunings with other orders and heads.", **PANEL)] = 3,
    passes: Annotated[int, typer.Option(min=1, help="Passes over the examples.", **PANEL)] = 5,
    learning_rate: shared.LearningRates = None,
    tokens: Annotated[int, typer.Option(min=8, help="Longest text in tokens; the rest is cut off.", **PANEL)] = 128,
    output: shared.ReportFolder = Path("evaluation"),
    device: shared.Device = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Measure how good a checkpoint is, every figure with its 95 % interval.

    Loss on held-out records, caption and picture apart; FID, KID and CMMD between drawn and held-out pictures; how
    well pictures fit their prompts (CLIPScore), how much they vary, and how close they come to training pictures. What
    cannot be computed here is left out and named. The same command goes on where it was interrupted.

    Of a language run: loss and perplexity on held-out text. With --token-classification the F1 of entities, and with
    --sentence-classification the accuracy, after a short fine-tuning on a labelled dataset with several seeds; beside
    the same model from random weights, so that the difference is what pretraining gave. A dataset is named by its
    repository, ORG/NAME or ORG/NAME:CONFIG. If its columns and splits have unusual names, those follow, such as
    ORG/NAME,text=body,label=topic,test=evaluation.

    With --compare the second checkpoint (or the same one with another sampler, precision or codec) is measured on the
    same prompts and seeds, and a page shows the differences and the pictures side by side.

    Examples:

      dalle-collab evaluate my-org/birds

      dalle-collab evaluate my-org/birds --features clip --features inception --originals pictures/

      dalle-collab evaluate my-org/birds --revision epoch-200 --compare my-org/birds --output progress

      dalle-collab evaluate my-org/birds --compare my-org/birds --compare-precision bfloat16 --json

      dalle-collab evaluate my-org/bengali --token-classification unimelb-nlp/wikiann:bn
    """
    from modeling_dalle_collab.sampling_dalle_collab import SamplingOptions
    from pipelines.features.evaluation.features import CLIP
    from pipelines.features.evaluation.opening import TEXT_TO_IMAGE, Reading, Subject, settings_of
    from pipelines.features.torch_devices import torch_device
    from pipelines.tasks.text_to_image.generation.generation_options import GenerationOptions
    from pipelines.tools.demo.scenes.caption_judge import judge_caption

    reading = Reading(
        num_records=records, num_training_records=training_records, features=tuple(dict.fromkeys(features or (CLIP,))),
        clip=clip, judge=judge_caption,
    )  # fmt: skip
    device = torch_device(device)
    sampling = SamplingOptions(top_k=top_k, top_p=top_p, temperature=temperature, guidance_scale=guidance_scale)
    options = GenerationOptions(num_candidates=drawings, keep=1, seed=seed, batch_size=batch_size, sampling=sampling)
    asked = [(Subject(place=repository, revision=revision, codec=codec, precision=precision), options)]
    if compare is None:
        refuse_given(context, "it has no effect without --compare OTHER", *COMPARED)
    else:
        asked.append(_compared(compare, context.params, *asked[0]))
    sources = _labelled_sources(context, token_classification, sentence_classification)
    run = settings_of(repository, revision)
    if run.task != TEXT_TO_IMAGE:
        refuse_given(context, f"it is about pictures, and {repository} is a {run.task} run", *ABOUT_PICTURES)
        amounts = dict(num_training=train_examples, num_test=test_examples, num_seeds=seeds, num_passes=passes)
        finetuning: dict[str, object] = dict(amounts, seed=seed, max_tokens=tokens)
        finetuning |= {"learning_rates": tuple(learning_rate)} if learning_rate else {}
        _evaluate_language(
            run, [one for one, _ in asked], records, sources, finetuning, device, output, as_json=as_json
        )
        return
    if sources:
        raise ValueError(
            f"{repository} is a {run.task} run; labelled text is for language runs. Leave out the datasets."
        )
    _evaluate_pictures(run, asked, reading, originals, device, output, as_json=as_json)


def _compared(
    place: str, given: Mapping[str, Any], subject: "Subject", options: "GenerationOptions"
) -> "tuple[Subject, GenerationOptions]":
    """Return what is compared with: as the first one, but for what is `given` as the command's `compare_*`."""
    if place != subject.place:
        subject = dataclasses.replace(subject, place=place, revision=None, codec=None)
    how = {name: given[f"compare_{name}"] or getattr(subject, name) for name in ("revision", "codec", "precision")}
    sampler = {name: given[f"compare_{name}"] for name in SAMPLER if given[f"compare_{name}"] is not None}
    sampling = dataclasses.replace(options.sampling, **sampler)
    return dataclasses.replace(subject, **how), dataclasses.replace(options, sampling=sampling)


def _labelled_sources(
    context: typer.Context, tokens: list[str] | None, sentences: list[str] | None
) -> "list[LabelledSource]":
    from pipelines.tasks.language_modeling.evaluation.labelled_source import SENTENCES, TOKENS, LabelledSource

    named = {TOKENS: tokens, SENTENCES: sentences}
    sources = [
        LabelledSource.from_text(kind, text) for kind, texts in named.items() for text in dict.fromkeys(texts or ())
    ]
    if not sources:
        why = "it has no effect without --token-classification or --sentence-classification"
        refuse_given(context, why, *FINETUNED)
    return sources


def _evaluate_pictures(
    run: "TrainingRun",
    asked: "Sequence[tuple[Subject, GenerationOptions]]",
    reading: "Reading",
    originals: list[Path] | None,
    device: str,
    output: Path,
    *,
    as_json: bool,
) -> None:
    """Measure one checkpoint or two."""
    from hub_tools.printing.stage_progress import stage_progress
    from pipelines.features.evaluation.opening import evaluate_pictures

    read_originals = partial(_read_originals, originals, limit=reading.num_records)
    with stage_progress() as on_progress:
        reports, prompts = evaluate_pictures(run, asked, reading, read_originals, device, output, on_progress)
    _show(reports, prompts, output, as_json=as_json)


def _show(reports: "list[EvaluationReport]", prompts: Sequence[str], output: Path, *, as_json: bool) -> None:
    from pipelines.command_line.terminal.evaluation_reports import show_comparison, show_report

    if len(reports) == 1:
        show_report(reports[0], output, as_json=as_json)
    else:
        show_comparison(*reports, prompts, output, as_json=as_json)


def _evaluate_language(
    run: "TrainingRun",
    subjects: "Sequence[Subject]",
    num_records: int,
    sources: "Sequence[LabelledSource]",
    finetuning: Mapping[str, Any],
    device: str,
    output: Path,
    *,
    as_json: bool,
) -> None:
    """Measure one checkpoint or two; `finetuning` are fields of `ClassifierOptions`."""
    from hub_tools.printing.stage_progress import stage_progress
    from pipelines.features.evaluation.report import report_of
    from pipelines.tasks.language_modeling.evaluation.finetuning import ClassifierOptions
    from pipelines.tasks.language_modeling.evaluation.references import (
        evaluate_language,
        open_language_checkpoint,
        open_language_references,
    )

    tuning = ClassifierOptions(**finetuning)
    reports, place = [], subjects[0].place
    checkpoints = [open_language_checkpoint(each, run, place, device) for each in subjects]
    with stage_progress() as on_progress:
        references = open_language_references(run, place, num_records, sources, tuning, on_progress)
        settings = dict(device=device, **references.facts())
        for each, checkpoint in zip(subjects, checkpoints, strict=True):
            started = time.monotonic()
            measured, left_out = evaluate_language(references, checkpoint, output / "fine-tuned", on_progress)
            facts = dict(dataclasses.asdict(each), name=each.place, weights=measured.weights)
            reports.append(report_of(facts, settings, measured, left_out, started))
    _show(reports, (), output, as_json=as_json)


def _read_originals(paths: list[Path] | None, size: int, *, limit: int) -> "torch.Tensor | None":
    from collections import Counter

    from pipelines.command_line.clip import captioned_pictures
    from pipelines.tasks.text_to_image.clip.clip_pictures import collect_pictures

    if not paths:
        return None
    dropped: Counter[str] = Counter()
    pictures = collect_pictures(captioned_pictures(paths, dropped, size, limit=limit), size).pictures
    if dropped:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in dropped.most_common())
        typer.echo(f"Originals left out: {reasons}", err=True)
    return pictures
