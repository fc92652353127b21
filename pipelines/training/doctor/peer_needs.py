"""What a peer of a run needs of its machine."""

import torch
from huggingface_hub import HfApi

from modeling_dalle_collab import DalleCollabForConditionalGeneration
from pipelines.training.doctor.machine_checks import PeerNeeds
from pipelines.training.peer_options import PeerOptions
from pipelines.training.run_repository import model_configuration
from pipelines.training.training_run import TrainingRun

SHARED_TENSORS = 3
"""float32 copies of the parameters in /dev/shm: the optimizer's own, the averaged ones and the averaged gradients."""

PRIVATE_TENSORS = 3
"""float32 copies in the process: the model, its gradients and the gathered gradients."""

PROGRAM_BYTES = 1536 * 2**20
"""torch, hivemind and their processes, before there is a model."""

SPARE_DISK_BYTES = 256 * 2**20
"""Tokenizer, settings and the daemon's files."""


def peer_needs(repository: str, run: TrainingRun, options: PeerOptions) -> PeerNeeds:
    """Return the bytes that a peer needs; the checkpoint's size is asked of the Hub.

    Raises:
        ValueError: the run's model has sizes that cannot work.
    """
    num_parameters = count_parameters(run)
    copy, statistics = 4 * num_parameters, 2 * num_parameters * run.optimizer_bits // 8
    on_gpu = options.device.startswith("cuda")
    shared = SHARED_TENSORS * copy
    return PeerNeeds(
        memory=PROGRAM_BYTES + shared + statistics + (1 if on_gpu else PRIVATE_TENSORS) * copy,
        shared_memory=shared,
        gpu_memory=2 * copy if on_gpu else None,
        disk=SPARE_DISK_BYTES + checkpoint_bytes(repository),
        explanation=f"{num_parameters / 1e6:,.1f} M parameters, micro-batch {options.micro_batch_size or 1}",
    )


def count_parameters(run: TrainingRun) -> int:
    """Return the number of the model's parameters without making them."""
    with torch.device("meta"):
        return DalleCollabForConditionalGeneration(model_configuration(run)).num_parameters()


def checkpoint_bytes(repository: str) -> int:
    """Return the bytes of the files in the run's repository: what a newcomer may have to download."""
    info = HfApi().model_info(repository, files_metadata=True)
    return sum(sibling.size or 0 for sibling in info.siblings or ())
