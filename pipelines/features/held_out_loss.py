"""The loss on held-out samples, with how far it may be off because others could have been held out."""

import hashlib
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from pipelines.core.run.task import Batch, TrainingTask, num_samples

CONFIDENCE = 0.95


@dataclass(frozen=True, kw_only=True)
class HeldOutLoss:
    """A mean loss in nats, with its interval of 95 %."""

    mean: float
    low: float | None
    """Lower end; None where one sample alone says nothing of the spread."""

    high: float | None
    num_samples: int


def measure_held_out_loss(
    task: TrainingTask, model: torch.nn.Module, batches: Sequence[Batch], should_stop: Callable[[], bool]
) -> HeldOutLoss | None:
    """Return the loss of all batches, computed sample by sample; None if `should_stop` said so, or without a batch."""
    measured = []
    for one in sample_losses(task, model, batches):
        measured.append(one)
        if should_stop():
            return None
    return held_out_loss_of(measured) if measured else None


@torch.no_grad()
def sample_losses(task: TrainingTask, model: torch.nn.Module, batches: Sequence[Batch]) -> Iterator[tuple[float, int]]:
    """Yield the summed loss and the weight of each sample, computed on the model's device."""
    device = next(model.parameters()).device
    for batch in batches:
        for index in range(num_samples(batch)):
            total, weight = task.loss(
                model, {name: tensor[index : index + 1].to(device) for name, tensor in batch.items()}
            )
            yield total.item(), weight


def held_out_loss_of(samples: Sequence[tuple[float, int]]) -> HeldOutLoss:
    """Return the loss over all weights of samples, each a summed loss and its weight.

    The interval is that of a ratio of sums (Cochran 1977, 2.11) with the normal distribution's quantile; where all
    weights are equal it is that of a mean.
    """
    weight, number = sum(weight for _, weight in samples), len(samples)
    mean = math.fsum(total for total, _ in samples) / weight
    if number < 2:
        return HeldOutLoss(mean=mean, low=None, high=None, num_samples=number)
    squares = math.fsum((total - mean * part) ** 2 for total, part in samples)
    error = math.sqrt(number / (number - 1) * squares) / weight
    reach = statistics.NormalDist().inv_cdf((1 + CONFIDENCE) / 2) * error
    return HeldOutLoss(mean=mean, low=mean - reach, high=mean + reach, num_samples=number)


def weights_digest(model: torch.nn.Module) -> str:
    """Return a digest of all parameters and their precision: equal for equal models, wherever they come from."""
    digest = hashlib.sha256()
    named: dict[str, torch.Tensor] = dict(model.named_parameters(remove_duplicate=False))
    # As in a state dict, in which weights of 8 bits refuse to be; of those there are the scales.
    for place, module in model.named_modules(remove_duplicate=False):
        hidden = module._non_persistent_buffers_set
        buffers = module.named_buffers(place, recurse=False)
        named |= {name: value for name, value in buffers if name.rpartition(".")[2] not in hidden}
    for name, tensor in sorted(named.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
