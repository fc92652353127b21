"""Computes the gradient of named batches again, to compare it with what a peer signed of it."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from pipelines.core.gradients.computation import GradientComputation
from pipelines.core.optimizers.parameter_groups import in_optimizer_order
from pipelines.core.run.spans import Intervals
from pipelines.core.run.task import TrainingTask
from pipelines.features.ledger.gradient_files import SignedGradient
from pipelines.features.ledger.gradient_sketch import NUM_SUMS, GradientSketcher, sketch_difference
from pipelines.features.ledger.ledger_files import Booking


@dataclass(frozen=True, kw_only=True)
class Recomputed:
    """How far a signed gradient is from the one computed again."""

    difference: float
    """Norm of the difference over the norm of the one computed again, as their sketches tell; infinite without one."""

    num_samples: int
    problem: str = ""
    """Why no batches can have been made of the records that the peer named."""


def recompute(task: TrainingTask, model: torch.nn.Module, signed: SignedGradient) -> Recomputed:
    """Compute a signed gradient again, in float32, with a model that has the parameters of its `model_epoch`."""
    device = str(next(model.parameters()).device)
    computation = GradientComputation(task, model, device=device, precision="fp32", compiled=False)
    sketcher, parameters = GradientSketcher(task.run.run_id), in_optimizer_order(model)
    total, num_samples = np.zeros(NUM_SUMS), 0
    model.train()
    try:
        batches = list(task.read_again(signed.spans, signed.num_batches))
    except ValueError as error:
        return Recomputed(difference=math.inf, num_samples=0, problem=str(error))
    for batch in batches:
        model.zero_grad(set_to_none=True)
        torch.manual_seed(batch.seed(task.run))
        weight = computation.backward(batch, 1.0).weight
        total += sketcher.sketch([parameter.grad for parameter in parameters], weight)
        num_samples += weight
    return Recomputed(difference=sketch_difference(signed.sketch, tuple(total.tolist())), num_samples=num_samples)


def signed_share(bookings: Iterable[Booking], gradients: Sequence[SignedGradient]) -> float:
    """The share of the booked records whose gradients their peers signed, of the epochs of which any is signed."""
    epochs = {gradient.epoch for gradient in gradients}
    signed: dict[tuple, Intervals] = {}
    for gradient in gradients:
        for span in gradient.spans:
            signed.setdefault((gradient.epoch, gradient.name, span.block), Intervals()).add(span.interval)
    num_booked = num_signed = 0
    for booking in bookings:
        if booking.epoch in epochs:
            held = signed.get((booking.epoch, booking.name, booking.span.block), Intervals())
            num_booked += booking.span.num_records
            num_signed += sum(stop - start for start, stop in held.within(booking.span.interval))
    return num_signed / num_booked if num_booked else 0.0
