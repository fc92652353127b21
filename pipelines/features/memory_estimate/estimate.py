"""Bytes of a training step on the GPU and in RAM: nothing is allocated or run."""

import math

from pipelines.features.memory_estimate.model_presets import (
    DEFAULT_POSITIONS,
    ModelFigures,
    ModelSizes,
    StepKind,
    activations_of,
    figures_of,
)
from pipelines.features.memory_estimate.optimizer_states import Shapes, count_elements, optimizer_state_bytes
from pipelines.features.memory_estimate.settings import MemoryEstimate, MemorySettings, MemorySplit


def estimate_training_memory(sizes: ModelSizes, settings: MemorySettings) -> MemoryEstimate:
    """Return what one training step needs. Raises ValueError if model and settings do not fit together."""
    model = figures_of(sizes)
    shapes = _parameter_shapes(sizes, model, settings)
    weight_bytes = (2 if settings.precision.startswith("pure-") else 4) * (number := count_elements(shapes))
    share = settings.num_gpus if settings.shard_over_gpus else 1
    state_bytes = optimizer_state_bytes(shapes, settings, model.vocab_size)
    # With local steps the optimizer of these statistics makes the inner steps, on the device.
    is_offloaded = settings.keeps_optimizer_in_ram and not (settings.collaborative and settings.local_steps)
    on_device = MemorySplit(
        weights=-(-weight_bytes // share),
        gradients=-(-weight_bytes // share),
        activations=round(_activations(sizes, model, settings)),
        optimizer=0 if is_offloaded else -(-state_bytes // share),
        buffers=_device_buffers(model, settings, weight_bytes),
    )
    computing = on_device.gradients + on_device.activations if settings.device == "cpu" else 0
    in_ram = _offloaded(number, state_bytes, 0 if settings.delays_averaging else computing, settings)
    if settings.device == "cpu":
        return MemoryEstimate(gpu=MemorySplit(), ram=on_device + in_ram, num_parameters=number)
    return MemoryEstimate(gpu=on_device, ram=in_ram, num_parameters=number)


def count_parameters(sizes: ModelSizes) -> int:
    """Return how many parameters a model has, shared ones once; raises as `figures_of`."""
    return count_elements(dict(figures_of(sizes).shapes))


def _parameter_shapes(sizes: ModelSizes, model: ModelFigures, settings: MemorySettings) -> Shapes:
    shapes, groups = dict(model.shapes), settings.num_shared_groups
    if sizes.is_ours:
        groups_of_ours = len(sizes.values.get("attention_pattern", "....")) + 1
        if groups not in (None, groups_of_ours):
            raise ValueError(
                f"num_shared_groups is {groups}; our model has {groups_of_ours} sets of weights, one for each place in "
                "its attention pattern and one for the last layer. Leave it out."
            )
        return shapes
    for shape, number in model.layer_shapes:
        shapes[shape] -= round(number * _num_shared(model, settings))
    return shapes


def _num_shared(model: ModelFigures, settings: MemorySettings) -> int:
    """Return how many layers use weights of other layers."""
    return max(0, model.num_layers - (settings.num_shared_groups or model.num_layers))


def _activations(sizes: ModelSizes, model: ModelFigures, settings: MemorySettings) -> float:
    sequence, positions = settings.sequence_length, model.num_positions
    if sizes.is_ours and sequence not in (None, positions):
        raise ValueError(
            f"sequence_length is {sequence}; our model's sequence has {positions} places, text and image codes. "
            "Leave it out."
        )
    if sequence is not None and positions is not None and sequence > positions:
        raise ValueError(f"sequence_length is {sequence}; this model has positions for {positions} tokens.")
    precision = "fp32" if settings.precision == "fp32" else settings.precision.partition("-")[0]
    kind = StepKind(
        sequence_length=sequence or positions or DEFAULT_POSITIONS,
        precision=precision if precision in ("fp32", "pure") else "autocast",
        recompute=settings.recompute,
        device=settings.device,
    )
    activations = activations_of(sizes, kind, settings.micro_batch_size)
    if kind.precision == "autocast" and kind.recompute in ("none", "partial"):
        # Autocast keeps one half copy of weights that layers share.
        copies = 2 * sum(math.prod(shape) * number for shape, number in model.layer_shapes if len(shape) > 1)
        activations -= _num_shared(model, settings) * copies
    return activations


def _device_buffers(model: ModelFigures, settings: MemorySettings, weight_bytes: int) -> int:
    """Return the bytes of accumulated gradients, of data-parallel buckets, or of the two layers that are gathered."""
    accumulated = weight_bytes if settings.collaborative else 0
    if settings.num_gpus == 1:
        return accumulated
    if not settings.shard_over_gpus:
        return accumulated + weight_bytes
    return accumulated + 2 * weight_bytes // max(2, model.num_layers)


def _offloaded(number: int, state_bytes: int, not_computing: int, settings: MemorySettings) -> MemorySplit:
    """Return what an optimizer in RAM needs, and what a peer of a swarm holds there.

    `not_computing`: bytes in RAM that are free while a round runs, because nothing is computed then.

    The offloaded optimizer works on float32 parameters and gradients of its own; in a swarm these are the very tensors
    that are averaged.
    """
    if not settings.keeps_optimizer_in_ram:
        return MemorySplit()
    vector = 4 * number
    if settings.collaborative and settings.local_steps:
        state_bytes = vector if settings.outer_momentum else 0
    return MemorySplit(
        weights=vector,
        gradients=vector,
        optimizer=state_bytes,
        buffers=_peer_buffers(vector, state_bytes, not_computing, settings) if settings.collaborative else 0,
    )


def _peer_buffers(vector: int, state_bytes: int, not_computing: int, settings: MemorySettings) -> int:
    """Return the bytes of a round, of the state served to newcomers, and of what local steps keep in RAM.

    While a round runs, averages of other peers' parts wait until all before them have arrived: up to the whole vector.
    A sparse round has no such parts; there the progress that is about to be sent is a vector of its own.
    """
    in_round, served = max(0, vector - not_computing), vector + state_bytes
    start = vector if settings.local_steps else 0
    not_sent = vector if settings.local_steps and settings.sparse else 0
    return in_round + served + start + not_sent
