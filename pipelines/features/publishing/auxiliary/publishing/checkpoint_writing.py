"""Writing a checkpoint: what the task saves of the model, and the state to resume the run from."""

from pathlib import Path

import torch
from safetensors import SafetensorError

from pipelines.features.publishing.checkpoint_tensors import RunState, save_training_state
from pipelines.features.publishing.publishable_task import PublishableTask


def write_checkpoint(
    folder: Path, task: PublishableTask, model: torch.nn.Module, optimizer: torch.optim.Optimizer, state: RunState
) -> None:
    """Write all that a checkpoint's manifest lists into an empty folder.

    Raises:
        OSError: writing failed; the disk may be full.
    """
    try:
        task.save(folder, model)
        save_training_state(folder, model, optimizer, state)
    except Exception as error:
        # safetensors and tokenizers wrap system errors in their own, the latter in plain exceptions.
        if isinstance(error, SafetensorError) or type(error) is Exception:
            raise OSError(f"{folder} cannot be written: {error}") from error
        raise
