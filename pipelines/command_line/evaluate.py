"""`dalle-collab evaluate`: how good a checkpoint is, and whether another one is better."""

import dataclasses
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipelines.command_line.terminal import setting_options as shared
from pipelines.command_line.terminal.setting_options import refuse_given

if TYPE_CHECKING:
    import torch

    from pipelines.evaluation.checkpoint_evaluation import Yardsticks
    from pipelines.evaluation.language.finetuning import FinetuningOptions
    from pipelines.evaluation.language.labelled_source import LabelledSource
    from pipelines.evaluation.measurement import Measurement
    from pipelines.evaluation.opening import Subject
    from pipelines.evaluation.report import EvaluationReport
    from pipelines.generation.generation_options import GenerationOptions
    from pipelines.generation.image_generation import DrawingParts
    from pipelines.stage_progress import OnProgress
    from pipelines.training.run.training_run import TrainingRun


SAMPLER = ("top_k", "top_p", "temperature", "guidance_scale")
ABOUT_PICTURES = (
    *("drawings", "features", "originals", "training_records", "clip", "batch_size"),
    *(f"{which}{name}" for which in ("", "compare_") for name in ("codec", *SAMPLER)),
)
COMPARED = tuple(f"compare_{name}" for name in ("revision", "codec", "precision", *SAMPLER))
FINETUNED = ("train_examples", "test_examples", "seeds", "passes", "learning_rate", "tokens")

DATASET = "REPO[:CONFIG]"
PANEL: dict[str, Any] = dict(rich_help_panel="Classification, of language runs")


def evaluate(
    context: typer.Context,
    repository: shared.RunOrFolder,
    compare: Annotated[
        str | None, typer.Option(metavar="ORG/RUN", help="Measure this one too, on the same prompts and seeds.")
    ] = None,
    revision: shared.Revision = None,
    records: Annotated[int, typer.Option(min=2, help="Held-out records; their captions are the prompts.")] = 400,
    drawings: Annotated[int, typer.Option(min=1, help="Pictures drawn for each prompt.")] = 4,
    features: Annotated[
        list[str] | None,
        typer.Option(help="What FID and KID compare: clip, inception, inception:FILE, transformers:REPOSITORY."),
    ] = None,
    originals: Annotated[
        list[Path] | None, typer.Option(help="Pictures as they were before the codec: tars or folders.")
    ] = None,
    training_records: Annotated[
        int, typer.Option(min=0, help="Training pictures among which copies are looked for.")
    ] = 2000,
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
    token_classification: Annotated[
        list[str] | None,
        typer.Option(
            metavar=DATASET, help="Fine-tune to find entities in this dataset's words, and measure it.", **PANEL
        ),
    ] = None,
    sentence_classification: Annotated[
        list[str] | None,
        typer.Option(metavar=DATASET, help="Fine-tune to sort this dataset's texts into classes.", **PANEL),
    ] = None,
    train_examples: Annotated[int, typer.Option(min=20, help="Most examples to fine-tune on.", **PANEL)] = 1000,
    test_examples: Annotated[int, typer.Option(min=20, help="Most examples to measure with.", **PANEL)] = 1000,
    seeds: Annotated[int, typer.Option(min=1, help="Fine-tunings with other orders and heads.", **PANEL)] = 3,
    passes: Annotated[int, typer.Option(min=1, help="Passes over the examples.", **PANEL)] = 5,
    learning_rate: Annotated[
        list[float] | None,
        typer.Option(help="The best on validation examples is used. Default: 3e-5, 2e-4, 1e-3.", **PANEL),
    ] = None,
    tokens: Annotated[int, typer.Option(min=8, help="Longest text in tokens; the rest is cut off.", **PANEL)] = 128,
    output: Annotated[Path, typer.Option(help="Folder for the report, and for what is drawn or fine-tuned.")] = Path(
        "evaluation"
    ),
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
    from pipelines.command_line.terminal.evaluation_reports import show_comparison, show_report
    from pipelines.demo.scenes.caption_judge import judge_caption
    from pipelines.evaluation.features import CLIP, check_specification
    from pipelines.evaluation.language.labelled_source import SENTENCES, TOKENS, LabelledSource
    from pipelines.evaluation.opening import TEXT_TO_IMAGE, Reading, Subject, open_yardsticks, settings_of
    from pipelines.generation.generation_options import GenerationOptions
    from pipelines.stage_progress import stage_progress
    from pipelines.torch_devices import torch_device

    extractors = tuple(dict.fromkeys(features or (CLIP,)))
    for text in extractors:
        check_specification(text)
    device = torch_device(device)
    subject = Subject(place=repository, revision=revision, codec=codec, precision=precision)
    options = GenerationOptions(
        num_candidates=drawings,
        keep=1,
        seed=seed,
        batch_size=batch_size,
        sampling=SamplingOptions(top_k=top_k, top_p=top_p, temperature=temperature, guidance_scale=guidance_scale),
    )
    other = other_options = None
    if compare is None:
        refuse_given(context, "it has no effect without --compare ORG/RUN", *COMPARED)
    else:
        same = compare == repository
        other = Subject(
            place=compare,
            revision=compare_revision if compare_revision or not same else revision,
            codec=compare_codec or (codec if same else None),
            precision=compare_precision or precision,
        )
        changed = dict(
            top_k=compare_top_k, top_p=compare_top_p, temperature=compare_temperature,
            guidance_scale=compare_guidance_scale,
        )  # fmt: skip
        given = {name: value for name, value in changed.items() if value is not None}
        other_options = dataclasses.replace(options, sampling=dataclasses.replace(options.sampling, **given))
    named = {TOKENS: token_classification, SENTENCES: sentence_classification}
    sources = [
        LabelledSource.from_text(kind, text) for kind, texts in named.items() for text in dict.fromkeys(texts or ())
    ]
    if not sources:
        why = "it has no effect without --token-classification or --sentence-classification"
        refuse_given(context, why, *FINETUNED)
    run = settings_of(repository, revision)
    if run.task != TEXT_TO_IMAGE:
        refuse_given(context, f"it is about pictures, and {repository} is a {run.task} run", *ABOUT_PICTURES)
        from pipelines.evaluation.language.finetuning import FinetuningOptions

        rates = {"learning_rates": tuple(learning_rate)} if learning_rate else {}
        finetuning = FinetuningOptions(
            num_training=train_examples, num_test=test_examples, num_seeds=seeds, seed=seed, num_passes=passes,
            max_tokens=tokens, **rates,
        )  # fmt: skip
        subjects = [each for each in (subject, other) if each is not None]
        _evaluate_language(run, subjects, records, sources, finetuning, device, output, as_json=as_json)
        return
    if sources:
        raise ValueError(
            f"{repository} is a {run.task} run; labelled text is for language runs. Leave out the datasets."
        )
    parts = subject.load(device)
    other_parts = None if other is None else other.load(device)
    pictures = _read_originals(originals, parts.codec.config.image_size, records)
    reading = Reading(
        num_records=records, num_training_records=training_records, features=extractors, clip=clip, judge=judge_caption
    )
    yardsticks, left_out = open_yardsticks(run, parts, reading, pictures, device)
    with stage_progress() as on_progress:
        first = _measured(subject, parts, yardsticks, options, left_out, output, on_progress)
        if other is None or other_parts is None or other_options is None:
            show_report(first, output, as_json=as_json)
            return
        second = _measured(other, other_parts, yardsticks, other_options, left_out, output, on_progress)
    prompts = [caption for caption in yardsticks.held_out.captions if caption.strip()]
    show_comparison(first, second, prompts, output, as_json=as_json)


def _measured(
    subject: "Subject",
    parts: "DrawingParts",
    yardsticks: "Yardsticks",
    options: "GenerationOptions",
    left_out: dict[str, str],
    output: Path,
    on_progress: "OnProgress",
) -> "EvaluationReport":
    from pipelines.evaluation.checkpoint_evaluation import evaluate_checkpoint

    started = time.monotonic()
    measurement = evaluate_checkpoint(parts, yardsticks, options, output / "drawn", on_progress)
    facts = dict(dataclasses.asdict(subject), name=parts.name, epoch=parts.epoch, weights=measurement.weights)
    settings = dict(
        options.facts(),
        num_records=len(yardsticks.held_out),
        device=str(parts.model.device),
        features=[extractor.name for extractor in yardsticks.extractors],
    )
    return _report(facts, settings, measurement, left_out, started)


def _evaluate_language(
    run: "TrainingRun",
    subjects: "Sequence[Subject]",
    num_records: int,
    sources: "Sequence[LabelledSource]",
    finetuning: "FinetuningOptions",
    device: str,
    output: Path,
    *,
    as_json: bool,
) -> None:
    from pipelines.command_line.terminal.evaluation_reports import show_comparison, show_report
    from pipelines.evaluation.language.yardsticks import (
        evaluate_language,
        open_language_checkpoint,
        open_language_yardsticks,
    )
    from pipelines.stage_progress import stage_progress

    reports, place = [], subjects[0].place
    checkpoints = [open_language_checkpoint(each, run, place, device) for each in subjects]
    with stage_progress() as on_progress:
        yardsticks = open_language_yardsticks(run, place, num_records, sources, finetuning, on_progress)
        settings = dict(device=device, **yardsticks.facts())
        for each, checkpoint in zip(subjects, checkpoints, strict=True):
            started = time.monotonic()
            measured, left_out = evaluate_language(yardsticks, checkpoint, output / "fine-tuned", on_progress)
            facts = dict(dataclasses.asdict(each), name=each.place, weights=measured.weights)
            reports.append(_report(facts, settings, measured, left_out, started))
    if len(reports) == 1:
        show_report(reports[0], output, as_json=as_json)
    else:
        show_comparison(*reports, (), output, as_json=as_json)


def _report(
    subject: dict[str, object],
    settings: dict[str, object],
    measurement: "Measurement",
    left_out: dict[str, str],
    started: float,
) -> "EvaluationReport":
    import resource

    from pipelines.evaluation.report import EvaluationReport

    return EvaluationReport(
        subject=subject,
        settings=settings,
        command=shlex.join(["dalle-collab", *sys.argv[1:]]),
        measurement=measurement,
        left_out=left_out,
        seconds=time.monotonic() - started,
        peak_memory_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    )


def _read_originals(paths: list[Path] | None, size: int, limit: int) -> "torch.Tensor | None":
    from collections import Counter

    from pipelines.clip.clip_pictures import collect_pictures
    from pipelines.command_line.clip import captioned_pictures

    if not paths:
        return None
    dropped: Counter[str] = Counter()
    pictures = collect_pictures(captioned_pictures(paths, dropped, size, limit=limit), size).pictures
    if dropped:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in dropped.most_common())
        typer.echo(f"Originals left out: {reasons}", err=True)
    return pictures
