"""Putting a new run together from its dataset, tokenizer, codec and settings; all is checked before it is published."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from huggingface_hub import HfApi
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from hub_tools.checks import check_known
from hub_tools.foreign.downloads import folder_of
from hub_tools.run_files import PROCESSOR_FILES
from modeling_dalle_collab import DalleCollabConfig, DalleCollabProcessor
from pipelines.core.run.training_run import TrainingRun
from pipelines.core.run.versions import package_version
from pipelines.features.publishing.publishable_task import RunRequest
from pipelines.tasks.required_versions import required_versions
from pipelines.tasks.text_to_image.image_code_stream import dataset_layout
from pipelines.tasks.text_to_image.image_codes.codec_code import open_codec
from pipelines.tasks.text_to_image.image_codes.image_code_record import ImageCodeLayout
from pipelines.tasks.text_to_image.model import known_settings, model_configuration


def compose(request: RunRequest) -> tuple[TrainingRun, DalleCollabProcessor]:
    """Return a new run and its processor; see `tasks.choice`."""
    if request.codec is None:
        raise ValueError("A text-to-image run needs the codec that made its image codes: --codec ORG/CODEC")
    check_names(request.settings)  # before the Hub is asked for anything
    layout = dataset_layout(request.dataset, "main")
    try:
        folder = folder_of(request.tokenizer, revision=None, patterns=PROCESSOR_FILES)
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"No fast tokenizer can be loaded from {request.tokenizer!r}: there is no such folder, and no such "
            "repository on this Hub. Name one with --tokenizer, or train one: "
            "dalle-collab data train-tokenizer DATASET --output DIR"
        ) from error
    run = compose_run(
        run_id=request.run_id,
        dataset_repository=request.dataset,
        layout=layout,
        tokenizer=tokenizer,
        settings=request.settings,
    )
    processor = compose_processor(
        tokenizer,
        run,
        layout,
        codec_repository=request.codec,
        codec_fingerprint=open_codec(request.codec).fingerprint,
        clip_repository=request.clip,
    )
    return run, processor


def compose_run(
    *,
    run_id: str,
    dataset_repository: str,
    layout: ImageCodeLayout,
    tokenizer: PreTrainedTokenizerBase,
    settings: Mapping[str, Any],
) -> TrainingRun:
    """Return a run whose model fits the dataset and the tokenizer; `settings` overrides the paper's defaults.

    Keys of `settings` are fields of `TrainingRun` or arguments of `DalleCollabConfig`. Raises ValueError for unknown
    keys and for invalid sizes.
    """
    run_fields = {item.name for item in dataclasses.fields(TrainingRun)}
    run_settings = {key: value for key, value in settings.items() if key in run_fields}
    model_settings = {key: value for key, value in settings.items() if key not in run_fields}
    check_names(settings)
    model_config = dict(
        model_settings,
        text_vocab_size=len(tokenizer),
        codebook_size=layout.codebook_size,
        image_grid_size=layout.grid_size,
    )
    if tokenizer.pad_token_id is not None:
        model_config.setdefault("pad_token_id", tokenizer.pad_token_id)
    DalleCollabConfig(**model_config)  # raises ValueError if sizes do not fit together
    values = dict(
        run_settings,
        run_id=run_id,
        model_config=model_config,
        dataset_repository=dataset_repository,
        dataset_revision=HfApi().dataset_info(dataset_repository).sha,
        package_version=package_version(),
        required_versions=settings.get("required_versions", required_versions()),
    )
    return TrainingRun.from_mapping(values)


def check_names(settings: Iterable[str]) -> None:
    """Raise ValueError naming settings that neither runs nor models have."""
    run_fields = {item.name for item in dataclasses.fields(TrainingRun)}
    cure = "All settings: dalle-collab run settings"
    check_known(settings, run_fields | known_settings(), of="a text-to-image run", cure=cure)


def compose_processor(
    tokenizer: PreTrainedTokenizerBase,
    run: TrainingRun,
    layout: ImageCodeLayout,
    *,
    codec_repository: str,
    codec_fingerprint: str,
    clip_repository: str | None,
) -> DalleCollabProcessor:
    """Return the processor that says which codec and which CLIP belong to the run.

    Raises:
        ValueError: the codec is not the one that made the dataset.
    """
    check_codec_fits(layout, codec_fingerprint, run.dataset_repository)
    config = model_configuration(run)
    return DalleCollabProcessor(
        tokenizer,
        image_codec_repository=codec_repository,
        image_codec_revision=HfApi().model_info(codec_repository).sha,
        image_codec_fingerprint=codec_fingerprint,
        clip_repository=clip_repository,
        text_sequence_length=config.text_sequence_length,
        pad_token_id=config.pad_token_id,
    )


def check_codec_fits(layout: ImageCodeLayout, codec_fingerprint: str | None, dataset_repository: str) -> None:
    """Raise ValueError unless the dataset's image codes were made by the codec with this fingerprint."""
    if layout.codec_fingerprint != codec_fingerprint:
        raise ValueError(
            f"The image codes of {dataset_repository} were made by codec {layout.codec_fingerprint}, but the run's "
            f"codec is {codec_fingerprint}: pictures would be noise. Name the dataset's codec, or prepare the dataset "
            "again: dalle-collab data prepare SOURCE --codec CODEC --output FOLDER"
        )


def check_dataset_fits(run: TrainingRun, layout: ImageCodeLayout) -> None:
    """Raise ValueError unless the dataset's codes have the number and range that the run's model expects."""
    config = model_configuration(run)
    if (layout.codebook_size, layout.grid_size) != (config.codebook_size, config.image_grid_size):
        raise ValueError(
            f"Dataset {run.dataset_repository} has {layout.grid_size}x{layout.grid_size} codes out of "
            f"{layout.codebook_size}; the run's model expects {config.image_grid_size}x{config.image_grid_size} out of "
            f"{config.codebook_size}. Create the run again for this dataset: dalle-collab run create"
        )
