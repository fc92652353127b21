"""Fine-tuning of a published model on image codes, by LoRA or as a whole. The only import of peft."""

import math
import warnings
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from accelerate import Accelerator
from huggingface_hub import HfApi
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors import SafetensorError
from transformers import get_linear_schedule_with_warmup

from hub_tools.checks import check_loaded
from hub_tools.foreign.downloads import folder_of
from hub_tools.places import local_folder
from hub_tools.run_files import MODEL_FILES, PROCESSOR_FILES
from modeling_dalle_collab import DalleCollabConfig, DalleCollabForConditionalGeneration, DalleCollabProcessor
from pipelines.core.run.block_order import BlockOrder
from pipelines.core.run.span_source import WholeDataset
from pipelines.core.run.task import Batch
from pipelines.features.memory_estimate.hub_config import fetch_model
from pipelines.tasks.text_to_image.finetuning.finetuning_options import FinetuningOptions
from pipelines.tasks.text_to_image.image_code_stream import (
    check_size,
    dataset_layout,
    stream_batches,
    training_blocks,
)
from pipelines.tasks.text_to_image.image_codes.image_code_record import ImageCodeLayout

LORA_MODULES = ("qkv", "output", "input")
"""The linear layers that all layers of a group share, so that one adapter serves all of them."""

NUM_AVERAGED_LOSSES = 20

TrainableModel = DalleCollabForConditionalGeneration | PeftModel
"""A whole model, or a frozen one with an adapter."""


@dataclass(frozen=True, kw_only=True)
class FinetuningSource:
    """What fine-tuning starts from, each with its commit."""

    model_name: str
    """Model Hub repository or folder of the base model."""
    model_revision: str | None
    """Commit of the base model; None for a folder."""
    processor: DalleCollabProcessor
    """The base model's processor."""
    dataset: str
    """Dataset Hub repository of image codes."""
    dataset_revision: str
    """Commit of the dataset."""
    num_codes: int
    """Image codes of one picture."""

    def batches(self, options: FinetuningOptions) -> Iterator[Batch]:
        """Yield micro-batches endlessly. Raises ValueError for a dataset smaller than one."""
        blocks = training_blocks(self.dataset, self.dataset_revision)
        check_size(blocks, self.dataset, options.micro_batch_size)
        return stream_batches(
            blocks,
            WholeDataset(BlockOrder(lambda: len(blocks.shards), blocks.sizes, options.seed)),
            self.processor,
            num_codes=self.num_codes,
            batch_size=options.micro_batch_size,
            seed=options.seed,
        )


@dataclass(frozen=True, kw_only=True)
class FinetuningProgress:
    """Progress after a step."""

    step: int
    """Optimizer steps done."""
    loss: float
    """Mean loss of the step's micro-batches."""
    mean_loss: float
    """Mean loss of the newest steps, at most 20."""


def find_source(
    model_name: str, dataset: str, *, revision: str | None = None, dataset_revision: str | None = None
) -> FinetuningSource:
    """Look up model and dataset, and check that they match, before weights are downloaded.

    Raises:
        ValueError: there is no such dataset, or its codes were not made by the model's codec.
        OSError: there is no such model, or it has no processor.
    """
    commit = _model_commit(model_name, revision)
    folder = folder_of(model_name, revision=commit, patterns=PROCESSOR_FILES)
    processor = DalleCollabProcessor.from_pretrained(folder, trust_remote_code=False)
    config = DalleCollabConfig.from_pretrained(folder)
    layout = dataset_layout(dataset, dataset_revision or "main")
    _check_dataset_fits(layout, dataset, config, processor, model_name)
    return FinetuningSource(
        model_name=model_name if commit else str(Path(model_name).resolve()),
        model_revision=commit,
        processor=processor,
        dataset=dataset,
        dataset_revision=HfApi().dataset_info(dataset, revision=dataset_revision).sha,
        num_codes=layout.num_codes,
    )


def _model_commit(name: str, revision: str | None) -> str | None:
    folder = local_folder(name, revision=revision, expected="a folder or a Hub repository ORG/RUN")
    return HfApi().model_info(name, revision=revision).sha if folder is None else None


def _check_dataset_fits(
    layout: ImageCodeLayout, dataset: str, config: DalleCollabConfig, processor: DalleCollabProcessor, name: str
) -> None:
    if layout.codec_fingerprint != processor.image_codec_fingerprint:
        raise ValueError(
            f"The image codes of {dataset} were made by codec {layout.codec_fingerprint}, but {name} draws codes of "
            f"codec {processor.image_codec_fingerprint}. Prepare your pictures with the model's own codec: "
            f"dalle-collab data prepare PICTURES --codec {processor.image_codec_repository or 'CODEC'} --output FOLDER"
        )
    seen, expected = (layout.grid_size, layout.codebook_size), (config.image_grid_size, config.codebook_size)
    if seen != expected:
        raise ValueError(
            f"{dataset} has {seen[0]}x{seen[0]} codes out of {seen[1]}, but {name} draws {expected[0]}x{expected[0]} "
            f"out of {expected[1]}. Prepare your pictures with the codec of the model."
        )


def load_trainable_model(source: FinetuningSource, options: FinetuningOptions) -> TrainableModel:
    """Load the base model in float32: as a whole, or frozen with an adapter that does nothing yet.

    Raises:
        ValueError: the base model has no weights, or they are damaged.
    """
    model = _load_base(source)
    if options.full:
        return model
    lora = LoraConfig(
        r=options.lora_rank, lora_alpha=options.lora_alpha, lora_dropout=0.0, target_modules=list(LORA_MODULES)
    )
    model.name_or_path = source.model_name  # the name that peft records in the adapter
    with warnings.catch_warnings():
        # peft 0.21 asks transformers 5 by the old name whether activations are recomputed.
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
        return get_peft_model(model, lora, revision=source.model_revision)


def _load_base(source: FinetuningSource) -> DalleCollabForConditionalGeneration:
    try:
        fetch_model(source.model_name, revision=source.model_revision, patterns=MODEL_FILES)  # into the cache, bounded
        model, found = DalleCollabForConditionalGeneration.from_pretrained(
            source.model_name,
            revision=source.model_revision or "main",
            dtype=torch.float32,
            output_loading_info=True,
        )
    except (OSError, SafetensorError, RuntimeError) as error:
        raise ValueError(
            f"The weights of {source.model_name} are missing, damaged or do not fit its config.json "
            f"({str(error).strip().splitlines()[0]}). Wait for the run's first checkpoint, or load an earlier one: "
            "--revision COMMIT"
        ) from error
    check_loaded(model, found, source.model_name, may_have_others=False)
    return model


def trainable_parameters(model: torch.nn.Module) -> list[torch.nn.Parameter]:
    """Return the parameters that fine-tuning changes."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def finetune(
    model: TrainableModel, batches: Iterator[Batch], options: FinetuningOptions
) -> Iterator[FinetuningProgress]:
    """Train the model in place and yield after every optimizer step; it may be saved in between.

    The device is the one accelerate detects. Raises ValueError for a loss that is not finite, for a mixed precision
    that the device does not have, and for a dataset smaller than a micro-batch.
    """
    accelerator = Accelerator(
        mixed_precision=options.mixed_precision, gradient_accumulation_steps=options.gradient_accumulation
    )
    _check_processes(accelerator)
    optimizer = torch.optim.AdamW(_decay_groups(model, options.weight_decay), lr=options.learning_rate)
    num_warmup_steps = round(options.warmup_share * options.num_steps)
    schedule = get_linear_schedule_with_warmup(optimizer, num_warmup_steps, options.num_steps)
    prepared, optimizer = accelerator.prepare(model.train(), optimizer)
    newest: deque[float] = deque(maxlen=NUM_AVERAGED_LOSSES)
    try:
        for step in range(1, options.num_steps + 1):
            newest.append(_accumulate(accelerator, prepared, batches, options.gradient_accumulation))
            if not math.isfinite(newest[-1]):
                raise ValueError(
                    f"The loss of step {step} is {newest[-1]}, expected a number. Lower --learning-rate, or compute "
                    "with --mixed-precision no or bf16."
                )
            accelerator.clip_grad_norm_(trainable_parameters(prepared), options.max_gradient_norm)
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
            yield FinetuningProgress(step=step, loss=newest[-1], mean_loss=sum(newest) / len(newest))
    finally:
        accelerator.unwrap_model(prepared, keep_fp32_wrapper=False).eval()


def _check_processes(accelerator: Accelerator) -> None:
    if accelerator.num_processes > 1:
        raise ValueError(
            f"Fine-tuning was started as {accelerator.num_processes} processes, expected one. "
            "Start it without `accelerate launch`; --gradient-accumulation makes batches larger."
        )


def _decay_groups(model: torch.nn.Module, weight_decay: float) -> list[dict]:
    parameters = trainable_parameters(model)
    return [
        {"params": [parameter for parameter in parameters if parameter.dim() > 1], "weight_decay": weight_decay},
        {"params": [parameter for parameter in parameters if parameter.dim() < 2], "weight_decay": 0.0},
    ]


def _accumulate(accelerator: Accelerator, model: torch.nn.Module, batches: Iterator[Batch], num_batches: int) -> float:
    """Sum the gradients of micro-batches, which accelerate divides by their number; return their mean loss."""
    total = 0.0
    for _ in range(num_batches):
        batch = next(batches)
        loss = model(
            **{name: tensor.to(accelerator.device) for name, tensor in batch.items()},
            return_logits=False,
        ).loss
        accelerator.backward(loss)
        total += loss.item()
    return total / num_batches
