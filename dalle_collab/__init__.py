"""Train a text-to-image transformer together with strangers, and use what came out of it: everything in one import.

Importing this module loads nothing heavy; each name brings what it needs when it is first used. Where a function takes
`ORG/RUN`, that is the Model Hub repository of a run.

Example:
    import dalle_collab

    for picture in dalle_collab.generate("my-org/birds", "a robin on a branch", num_candidates=16):
        picture.image.save(f"robin-{picture.candidate_index}.png")
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hub_tools.local_hub.local_hub_process import LocalHub as LocalHub
    from hub_tools.publishing.dataset_publishing import publish_dataset as publish_dataset
    from hub_tools.publishing.folder_publishing import Published
    from hub_tools.publishing.folder_publishing import publish_folder as publish_folder
    from pipelines.core.peer.reports import StepReport
    from pipelines.core.run.compute_options import ComputeOptions
    from pipelines.core.run.training_run import TrainingRun
    from pipelines.core.swarm.network_options import NetworkOptions
    from pipelines.features.evaluation.report import EvaluationReport
    from pipelines.features.serving.blocks.client.distributed_model import DistributedModel
    from pipelines.features.serving.blocks.client.stream_swarm import join_as_client as connect
    from pipelines.features.serving.blocks.layers_offer import BlockReport
    from pipelines.features.serving.draw.drawing_offer import ServingReport
    from pipelines.joining.collaborating import collaborate
    from pipelines.tasks.text_to_image.data_preparation.shard_writing import PreparationOptions, PreparationResult
    from pipelines.tasks.text_to_image.generation.installed_pipeline import InstalledTextToImagePipeline
    from pipelines.tasks.text_to_image.generation.text_to_image import RankedImage
    from pipelines.tasks.text_to_image.image_codes.codec_code import open_codec
    from pipelines.tools.doctor.check_result import CheckResult

__all__ = [
    "ComputeOptions", "DistributedModel", "LocalHub", "NetworkOptions", "TrainingRun", "check_machine", "collaborate",
    "connect", "evaluate", "generate", "join", "load", "open_codec", "prepare_dataset", "publish_dataset",
    "publish_folder", "publish_space", "serve", "serve_layers",
]  # fmt: skip

_PLACES = {
    "ComputeOptions": "pipelines.core.run.compute_options:ComputeOptions",
    "DistributedModel": "pipelines.features.serving.blocks.client.distributed_model:DistributedModel",
    "LocalHub": "hub_tools.local_hub.local_hub_process:LocalHub",
    "NetworkOptions": "pipelines.core.swarm.network_options:NetworkOptions",
    "TrainingRun": "pipelines.core.run.training_run:TrainingRun",
    "collaborate": "pipelines.joining.collaborating:collaborate",
    "connect": "pipelines.features.serving.blocks.client.stream_swarm:join_as_client",
    "open_codec": "pipelines.tasks.text_to_image.image_codes.codec_code:open_codec",
    "publish_dataset": "hub_tools.publishing.dataset_publishing:publish_dataset",
    "publish_folder": "hub_tools.publishing.folder_publishing:publish_folder",
}
"""Where the names are that are not defined here."""


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")
    module, _, attribute = _PLACES[name].partition(":")
    with _one_line():
        found = globals()[name] = getattr(import_module(module), attribute)
    return found


def __dir__() -> list[str]:
    return sorted(__all__)


# hivemind calls it when it is imported; nobody who uses this module can do anything about it.
warnings.filterwarnings("ignore", message=r"`torch\.jit\.script` is deprecated", category=FutureWarning)


@contextmanager
def _one_line() -> Iterator[None]:
    """Say in one line, with the cure, what a client of the Hub or an import has failed with."""
    try:
        yield
    except Exception as error:
        from hub_tools.one_line_errors import CLIENT_PACKAGES, explain_error
        from hub_tools.printing.extras import missing_extra

        if missing_extra(error):
            raise ModuleNotFoundError(explain_error(error)) from None
        if type(error).__module__.partition(".")[0] in CLIENT_PACKAGES:
            raise OSError(explain_error(error)) from None
        raise


@_one_line()
def load(name: str | Path, *, revision: str | None = None, device: str = "cpu") -> InstalledTextToImagePipeline:
    """Load the pipeline of transformers that draws with a run's newest checkpoint, or with that of a folder.

    It runs no code of the repository. The model is its `.model`, an ordinary one of transformers.

    Example:
        draw = dalle_collab.load("my-org/birds")
        draw("a robin on a branch", num_images_per_prompt=4, top_k=256, seed=1)[0].save("robin.png")

    Raises:
        NoCheckpointError: the run has published no weights yet.
        ValueError: model, processor and codec do not fit together, or are damaged.
        OSError: a file or the Hub cannot be read.
    """
    from pipelines.tasks.text_to_image.generation.image_generation import load_drawing_parts
    from pipelines.tasks.text_to_image.generation.installed_pipeline import InstalledTextToImagePipeline

    parts = load_drawing_parts(name, revision=revision, device=device)
    return InstalledTextToImagePipeline(model=parts.model, processor=parts.processor, codec=parts.codec)


@_one_line()
def generate(
    name: str | Path,
    prompt: str,
    *,
    num_candidates: int = 128,
    keep: int = 4,
    top_k: int | None = 256,
    top_p: float | None = None,
    temperature: float = 1.0,
    seed: int = 0,
    clip: str | None = None,
    device: str = "cpu",
) -> list[RankedImage]:
    """Draw candidates for a prompt with a run's newest checkpoint; return those that CLIP finds best, best first.

    `clip` is the model that ranks, by default the one that the run names. To draw for many prompts, or again, `load`
    the model once.

    Example:
        best, *others = dalle_collab.generate("my-org/birds", "a robin on a branch", num_candidates=32)
        best.image.save("robin.png")

    Raises:
        NoCheckpointError: the run has published no weights yet.
        ValueError: an option is out of its range, or model, processor and codec do not fit together.
        OSError: a file or the Hub cannot be read.
    """
    from modeling_dalle_collab.sampling_dalle_collab import SamplingOptions
    from pipelines.tasks.text_to_image.generation.generation_options import GenerationOptions
    from pipelines.tasks.text_to_image.generation.image_generation import load_text_to_image
    from pipelines.tasks.text_to_image.generation.text_to_image import generate_images_for_prompts

    sampling = SamplingOptions(top_k=top_k, top_p=top_p, temperature=temperature)
    options = GenerationOptions(num_candidates=num_candidates, keep=keep, seed=seed, sampling=sampling)
    parts = load_text_to_image(name, clip=clip, device=device)
    return generate_images_for_prompts(parts, [prompt], options)[0]


def join(
    repository: str, *, network: NetworkOptions | None = None, compute: ComputeOptions | None = None
) -> Iterator[StepReport]:
    """Train in a run until it is over; yield a report after each micro-batch. Leaving the loop leaves the swarm.

    Call it in the main thread of a process that has no other threads: hivemind forks.

    Example:
        for report in dalle_collab.join("my-org/birds", compute=dalle_collab.ComputeOptions(device="cuda")):
            print(report.epoch, report.loss)

    Raises:
        RunFinishedError: the run is at its last epoch.
        ValueError: run, dataset and package do not match, or the run has no entry address.
        AdmissionRefusedError: the run's authority does not admit this user, or no longer does.
        ConnectionError: the Hub, the authority or the swarm cannot be reached.
    """
    from pipelines.core.run.compute_options import ComputeOptions
    from pipelines.core.swarm.network_options import NetworkOptions
    from pipelines.joining.join_run import join_run
    from pipelines.tasks.choice import open_task

    network, compute = network or NetworkOptions(), compute or ComputeOptions(device="auto")
    with _one_line(), join_run(repository, open_task, network=network, compute=compute) as membership:
        yield from membership.train()


def serve(
    repository: str, *, network: NetworkOptions | None = None, device: str = "auto", max_hours: float | None = None
) -> Iterator[ServingReport]:
    """Draw for others with a run's newest checkpoint, whole on this machine; yield a report every few seconds.

    Call it in the main thread of a process that has no other threads: hivemind forks.

    Example:
        for report in dalle_collab.serve("my-org/birds", max_hours=8):
            print(report.state, report.num_drawn)

    Raises:
        ValueError: the run has no weights yet, no entry address, or makes nothing that is drawn.
        AdmissionRefusedError: the run's authority does not admit this user, or no longer does.
        ConnectionError: the Hub, the authority or the swarm cannot be reached.
    """
    from pipelines.core.swarm.network_options import NetworkOptions
    from pipelines.features.serving.offer import ServingOptions
    from pipelines.features.serving.serving_run import serve_run

    options = ServingOptions(device=device, max_hours=max_hours)
    with _one_line(), serve_run(repository, network=network or NetworkOptions(), options=options) as (server, stop):
        yield from server.follow(stop)


def serve_layers(
    repository: str,
    layers: str = "auto",
    *,
    network: NetworkOptions | None = None,
    device: str = "auto",
    max_hours: float | None = None,
) -> Iterator[BlockReport]:
    """Serve some layers of a run's model, such as `"0:16"`, or as many as fit; yield a report every few seconds.

    Call it in the main thread of a process that has no other threads: hivemind forks.

    Example:
        for report in dalle_collab.serve_layers("my-org/birds", "0:16"):
            print(report.layers, report.missing)

    Raises:
        ValueError: the run has no weights yet, no entry address, no such layers, or a model of another kind.
        AdmissionRefusedError: the run's authority does not admit this user, or no longer does.
        ConnectionError: the Hub, the authority or the swarm cannot be reached.
    """
    from pipelines.core.swarm.network_options import NetworkOptions
    from pipelines.features.serving.offer import ServingOptions
    from pipelines.features.serving.serving_run import serve_run

    options = ServingOptions(blocks=layers, device=device, max_hours=max_hours)
    with _one_line(), serve_run(repository, network=network or NetworkOptions(), options=options) as (server, stop):
        yield from server.follow(stop)


@_one_line()
def evaluate(
    name: str | Path,
    *,
    revision: str | None = None,
    num_records: int = 400,
    num_drawings: int = 4,
    features: Sequence[str] = ("clip",),
    seed: int = 0,
    output: str | Path = "evaluation",
    device: str = "cpu",
) -> EvaluationReport:
    """Measure a checkpoint that draws: losses, FID, KID, CLIPScore and more, each with its 95 % interval.

    The captions of `num_records` held-out records are the prompts, each drawn `num_drawings` times. What is drawn is
    kept in `output`, where the same call goes on. `dalle-collab evaluate` also compares two checkpoints, and measures
    language models.

    Example:
        report = dalle_collab.evaluate("my-org/birds", num_records=100)
        for figure in report.measurement.figures:
            print(figure.name, figure.value, figure.low, figure.high)

    Raises:
        NoCheckpointError: the run has published no weights yet.
        ValueError: it is no text-to-image run, or holds out no records.
        OSError: a file or the Hub cannot be read.
    """
    from hub_tools.printing.stage_progress import report_nothing
    from pipelines.features.evaluation.opening import TEXT_TO_IMAGE, Reading, Subject, evaluate_pictures, settings_of
    from pipelines.tasks.text_to_image.generation.generation_options import GenerationOptions
    from pipelines.tools.demo.scenes.caption_judge import judge_caption

    reading = Reading(num_records=num_records, num_training_records=2000, features=features, judge=judge_caption)
    if (run := settings_of(str(name), revision)).task != TEXT_TO_IMAGE:
        raise ValueError(f"{name} is a {run.task} run, which draws nothing. Measure it: dalle-collab evaluate {name}")
    options = GenerationOptions(num_candidates=num_drawings, keep=1, seed=seed)
    reports, _ = evaluate_pictures(
        run,
        [(Subject(place=str(name), revision=revision), options)],
        reading,
        lambda side: None,
        device,
        Path(output),
        report_nothing,
    )
    return reports[0]


@_one_line()
def prepare_dataset(
    sources: str | Path | Sequence[str | Path],
    codec: str | Path,
    output: str | Path,
    *,
    options: PreparationOptions | None = None,
    device: str = "cpu",
) -> PreparationResult:
    """Make shards of image codes from pictures with captions: folders, tars of img2dataset, or datasets of the Hub.

    Called again after an interruption it goes on where it stopped, and writes the same bytes.

    Example:
        result = dalle_collab.prepare_dataset(["pictures/"], "my-org/vqgan-f8", "birds-codes")
        print(result.report.kept, "kept of", result.report.seen)
        dalle_collab.publish_dataset("birds-codes", "my-org/birds-codes")

    Raises:
        PreparationError: `output` was started with other settings.
        ValueError: a source or the codec cannot be used.
        OSError: a file or the Hub cannot be read.
    """
    from pipelines.tasks.text_to_image.data_preparation.shard_writing import PreparationOptions, prepare_shards
    from pipelines.tasks.text_to_image.data_preparation.sources.finding import find_sources
    from pipelines.tasks.text_to_image.image_codes.codec_code import open_codec

    options = options or PreparationOptions(devices=(device,))
    named = [sources] if isinstance(sources, str | Path) else sources
    places = [Path(place) if Path(place).exists() else str(place) for place in named]
    found = find_sources(places, options.policy.reading)
    return prepare_shards(found, open_codec(str(codec), device=device), Path(output).absolute(), options)


@_one_line()
def publish_space(
    name: str, repository: str, *, settings: Mapping[str, str] | None = None, private: bool = False
) -> Published:
    """Publish one of the project's pages, such as `text_to_image_demo`, as the Space `repository`.

    Example:
        dalle_collab.publish_space(
            "text_to_image_demo", "my-org/draw-birds", settings={"MODEL_REPOSITORY": "my-org/birds"}
        )

    Raises:
        ValueError: there is no such page, or a setting has a bad name or looks like a secret; nothing was written.
    """
    from hub_tools.publishing.space_publishing import SpacePlan, publish_space

    return publish_space(SpacePlan(name=name, repository=repository, settings=settings or {}, private=private))


def check_machine(
    repository: str, *, network: NetworkOptions | None = None, compute: ComputeOptions | None = None
) -> Iterator[CheckResult]:
    """Check whether this machine can train in a run, as `dalle-collab doctor` does; yield one finding after another.

    Example:
        for result in dalle_collab.check_machine("my-org/birds"):
            print(result.status, result.line())
    """
    from pipelines.core.run.compute_options import ComputeOptions
    from pipelines.core.swarm.network_options import NetworkOptions
    from pipelines.tools.doctor.examination import run_checks

    with _one_line():
        yield from run_checks(repository, network or NetworkOptions(), compute or ComputeOptions(device="auto"))
