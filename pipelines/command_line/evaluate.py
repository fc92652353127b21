"""`dalle-collab evaluate`: how good a checkpoint is, and whether another one is better."""

import dataclasses
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    import torch

    from pipelines.evaluation.checkpoint_evaluation import Yardsticks
    from pipelines.evaluation.measurement import Measurement
    from pipelines.evaluation.opening import Subject
    from pipelines.evaluation.report import EvaluationReport
    from pipelines.generation.generation_options import GenerationOptions
    from pipelines.generation.image_generation import DrawingParts
    from pipelines.stage_progress import OnProgress
    from pipelines.training.run.training_run import TrainingRun


def evaluate(
    repository: Annotated[str, typer.Argument(metavar="ORG/RUN", help="Model Hub repository of a run, or a folder.")],
    compare: Annotated[
        str | None, typer.Option(metavar="ORG/RUN", help="Measure this one too, on the same prompts and seeds.")
    ] = None,
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit of the checkpoint.")] = None,
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
    clip: Annotated[
        str | None, typer.Option(help="open_clip folder, Hub repository or MODEL/TAG; default: the run's.")
    ] = None,
    codec: Annotated[str | None, typer.Option(help="VQGAN folder or repository; default: the run's.")] = None,
    top_k: Annotated[int, typer.Option(help="Sample from this many likeliest codes; 0 for all.")] = 256,
    top_p: Annotated[float | None, typer.Option(help="Sample from codes up to this total probability.")] = None,
    temperature: Annotated[float, typer.Option(help="Below 1: safer pictures; above 1: stranger ones.")] = 1.0,
    guidance_scale: Annotated[float, typer.Option(help="Above 1: closer to the prompt.")] = 1.0,
    precision: Annotated[str, typer.Option(help="float32, bfloat16 or float16.")] = "float32",
    compare_revision: Annotated[str | None, typer.Option(help="The same for the one compared with.")] = None,
    compare_codec: Annotated[str | None, typer.Option(help="The same for the one compared with.")] = None,
    compare_top_k: Annotated[int | None, typer.Option(help="The same for the one compared with.")] = None,
    compare_top_p: Annotated[float | None, typer.Option(help="The same for the one compared with.")] = None,
    compare_temperature: Annotated[float | None, typer.Option(help="The same for the one compared with.")] = None,
    compare_guidance_scale: Annotated[float | None, typer.Option(help="The same for the one compared with.")] = None,
    compare_precision: Annotated[str | None, typer.Option(help="The same for the one compared with.")] = None,
    seed: Annotated[int, typer.Option(help="The same seed draws the same pictures.")] = 0,
    batch_size: Annotated[int, typer.Option(min=1, help="Pictures drawn at once; fewer need less memory.")] = 64,
    output: Annotated[Path, typer.Option(help="Folder for the report, and for what is drawn.")] = Path("evaluation"),
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Measure how good a checkpoint is, every figure with its 95 % interval.

    Loss on held-out records, caption and picture apart; FID, KID and CMMD between drawn and held-out pictures; how
    well pictures fit their prompts (CLIPScore), how much they vary, and how close they come to training pictures. What
    cannot be computed here is left out and named. The same command goes on where it was interrupted.

    Of a language run: loss and perplexity on held-out text.

    With --compare the second checkpoint (or the same one with another sampler, precision or codec) is measured on the
    same prompts and seeds, and a page shows the differences and the pictures side by side.

    Examples:

      dalle-collab evaluate my-org/birds

      dalle-collab evaluate my-org/birds --features clip --features inception --originals pictures/

      dalle-collab evaluate my-org/birds --revision epoch-200 --compare my-org/birds --output progress

      dalle-collab evaluate my-org/birds --compare my-org/birds --compare-precision bfloat16 --json
    """
    from pipelines.evaluation.features import CLIP, check_specification
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
        top_k=top_k,
        top_p=top_p,
        temperature=temperature,
        guidance_scale=guidance_scale,
        seed=seed,
        batch_size=batch_size,
    )
    other = other_options = None
    if compare is not None:
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
        other_options = dataclasses.replace(options, **given)
    run = settings_of(repository, revision)
    if run.task != TEXT_TO_IMAGE:
        _evaluate_language(run, subject, other, records, device, output, as_json=as_json)
        return
    parts = subject.load(device)
    other_parts = None if other is None else other.load(device)
    pictures = _read_originals(originals, parts.codec.config.image_size, records)
    reading = Reading(num_records=records, num_training_records=training_records, features=extractors, clip=clip)
    yardsticks, left_out = open_yardsticks(run, parts, reading, pictures, device)
    with stage_progress() as on_progress:
        first = _measured(subject, parts, yardsticks, options, left_out, output, on_progress)
        if other is None or other_parts is None or other_options is None:
            _show(first, output, as_json=as_json)
            return
        second = _measured(other, other_parts, yardsticks, other_options, left_out, output, on_progress)
    prompts = [caption for caption in yardsticks.held_out.captions if caption.strip()]
    _show_comparison(first, second, prompts, output, as_json=as_json)


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
        dataclasses.asdict(options),
        num_records=len(yardsticks.held_out),
        device=str(parts.model.device),
        features=[extractor.name for extractor in yardsticks.extractors],
    )
    return _report(facts, settings, measurement, left_out, started)


def _evaluate_language(
    run: "TrainingRun",
    subject: "Subject",
    other: "Subject | None",
    num_records: int,
    device: str,
    output: Path,
    *,
    as_json: bool,
) -> None:
    from pipelines.evaluation.language_evaluation import evaluate_language_model, held_out_task, open_language_model
    from pipelines.stage_progress import stage_progress

    task, reports = held_out_task(run, subject.place, num_records), []
    models = [(each, open_language_model(each, run, device)) for each in (subject, other) if each is not None]
    with stage_progress() as on_progress:
        for each, model in models:
            started = time.monotonic()
            measurement = evaluate_language_model(task, model, on_progress)
            number = measurement.figures[0].num_items
            subject_facts = dict(dataclasses.asdict(each), name=each.place)
            reports.append(_report(subject_facts, dict(num_records=number, device=device), measurement, {}, started))
    if other is None:
        _show(reports[0], output, as_json=as_json)
    else:
        _show_comparison(*reports, (), output, as_json=as_json)


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


def _show(report: "EvaluationReport", output: Path, *, as_json: bool) -> None:
    from rich.console import Console

    from pipelines.evaluation.report import figures_table, write_report

    path = write_report(report, output)
    if as_json:
        typer.echo(path.read_text(encoding="utf-8"))
        return
    Console().print(figures_table(report))
    typer.echo(f"{path}: {len(report.measurement.figures)} figures, in {report.seconds:.0f} s.")


def _show_comparison(
    first: "EvaluationReport", second: "EvaluationReport", prompts: Sequence[str], output: Path, *, as_json: bool
) -> None:
    from rich.console import Console

    from pipelines.evaluation.comparison import compare
    from pipelines.evaluation.report import (
        comparison_page,
        describe,
        differences_table,
        write_comparison,
    )

    differences = compare(first.measurement, second.measurement)
    names = describe(first), describe(second)
    page = comparison_page(names, prompts, (first.measurement, second.measurement), differences)
    path, page_path = write_comparison(first, second, differences, page, output)
    if as_json:
        typer.echo(path.read_text(encoding="utf-8"))
        return
    Console().print(differences_table(*names, differences))
    typer.echo(f"{path} and {page_path}: {len(differences)} figures compared.")


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
