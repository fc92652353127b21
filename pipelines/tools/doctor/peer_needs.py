"""What a peer of a run needs of its machine."""

from hub_tools.counted import memory_size
from hub_tools.foreign.downloads import listed_files
from pipelines.core.run.compute_options import ComputeOptions
from pipelines.features.memory_estimate.run_memory import run_settings
from pipelines.features.publishing.publishable_task import PublishableTask
from pipelines.features.publishing.repository.snapshot import RunSnapshot
from pipelines.tools.doctor.machine_checks import PeerNeeds

SHARED_BYTES_PER_PARAMETER = 8
"""float32 parameters and gradients of the offloaded optimizer are in /dev/shm, shared with the averagers."""

PROGRAM_BYTES = 1536 * 2**20
"""torch, hivemind and their processes, without a model."""

SPARE_DISK_BYTES = 256 * 2**20
"""Tokenizer, settings and the daemon's files."""


def peer_needs(task: PublishableTask, compute: ComputeOptions, checkpoint_bytes: int) -> PeerNeeds:
    """Return the bytes that a peer needs, including a checkpoint of `checkpoint_bytes` that it may have to download.

    Raises:
        ValueError: the run's model has invalid sizes.
    """
    on_gpu = compute.device.startswith("cuda")
    # A peer with automatic micro-batch and precision takes what fits: it is judged by the minimum.
    micro_batch_size = compute.micro_batch_size or 1
    settings = run_settings(
        task.run,
        micro_batch_size=micro_batch_size,
        precision=compute.precision if compute.precision != "auto" else "fp32",
        device="cuda" if on_gpu else "cpu",
    )
    estimate = task.memory(settings)
    return PeerNeeds(
        memory=PROGRAM_BYTES + estimate.ram.total,
        shared_memory=SHARED_BYTES_PER_PARAMETER * estimate.num_parameters,
        gpu_memory=estimate.gpu.total if on_gpu else None,
        disk=SPARE_DISK_BYTES + checkpoint_bytes,
        num_parameters=estimate.num_parameters,
        explanation=f"{estimate.num_parameters / 1e6:,.1f} M parameters, micro-batch {micro_batch_size}",
    )


def server_needs(weights_bytes: int, device: str) -> PeerNeeds:
    """Return the bytes that a server of a run's model needs besides what it gives to others."""
    on_gpu = device.startswith("cuda")
    return PeerNeeds(
        memory=PROGRAM_BYTES + weights_bytes,
        shared_memory=None,
        gpu_memory=weights_bytes if on_gpu else None,
        disk=SPARE_DISK_BYTES + weights_bytes,
        explanation=f"weights of {memory_size(weights_bytes)}",
    )


def checkpoint_bytes(snapshot: RunSnapshot, name: str | None = None) -> int:
    """Return the bytes of the files in the run's repository: what a newcomer may have to download; or of one file."""
    files = listed_files(snapshot.repository, snapshot.commit)
    return sum(file.size for file in files if name in (None, file.path))
