"""Bytes of a training step on the GPU and in RAM, in closed form: nothing is loaded, allocated or run."""

from pipelines.memory_estimate.model_presets import ModelSizes
from pipelines.memory_estimate.models.dalle_collab_memory import dalle_collab_activations
from pipelines.memory_estimate.models.dalle_collab_sizes import DalleCollabSizes
from pipelines.memory_estimate.models.precision import ElementBytes, element_bytes
from pipelines.memory_estimate.models.transformer_memory import transformer_activations
from pipelines.memory_estimate.models.transformer_sizes import TransformerSizes
from pipelines.memory_estimate.optimizer_states import count_elements, optimizer_state_bytes
from pipelines.memory_estimate.settings import MemoryEstimate, MemorySettings, MemorySplit


def estimate_training_memory(model: ModelSizes, settings: MemorySettings) -> MemoryEstimate:
    """Return what one training step needs. Raises ValueError if model and settings do not fit together."""
    element = element_bytes(settings.precision)
    shapes = _parameter_shapes(model, settings)
    number = count_elements(shapes)
    share = settings.num_gpus if settings.shard_over_gpus else 1
    gradients = -(-number * element.weight // share)
    state_bytes = optimizer_state_bytes(shapes, settings, model.vocab_size)
    # With local steps the optimizer of these statistics makes the inner steps, on the device.
    is_offloaded = settings.keeps_optimizer_in_ram and not (settings.collaborative and settings.local_steps)
    on_device = MemorySplit(
        weights=-(-number * element.weight // share),
        gradients=gradients,
        activations=round(_activations(model, settings, element)),
        optimizer=0 if is_offloaded else -(-state_bytes // share),
        buffers=_device_buffers(model, settings, number * element.weight),
    )
    computing = on_device.gradients + on_device.activations if settings.device == "cpu" else 0
    in_ram = _offloaded(number, state_bytes, 0 if settings.delays_averaging else computing, settings)
    if settings.device == "cpu":
        return MemoryEstimate(gpu=MemorySplit(), ram=on_device + in_ram, num_parameters=number)
    return MemoryEstimate(gpu=on_device, ram=in_ram, num_parameters=number)


def _parameter_shapes(model: ModelSizes, settings: MemorySettings) -> dict[tuple[int, ...], int]:
    if isinstance(model, TransformerSizes):
        return model.parameter_shapes(settings.num_shared_groups)
    if settings.num_shared_groups not in (None, model.num_shared_groups):
        raise ValueError(
            f"num_shared_groups is {settings.num_shared_groups}; our model has {model.num_shared_groups} sets of "
            "weights, one for each place in its attention pattern and one for the last layer. Leave it out."
        )
    if settings.sequence_length not in (None, model.num_positions - 1):
        raise ValueError(
            f"sequence_length is {settings.sequence_length}; our model's sequence has {model.num_positions - 1} "
            "places, text and image codes. Leave it out."
        )
    return model.parameter_shapes


def _activations(model: ModelSizes, settings: MemorySettings, element: ElementBytes) -> float:
    if isinstance(model, DalleCollabSizes):
        return dalle_collab_activations(
            model, settings.micro_batch_size, element, settings.recompute, on_cpu=settings.device == "cpu"
        )
    sequence = settings.sequence_length or model.max_sequence_length
    if model.family != "t5" and sequence > model.max_sequence_length:
        raise ValueError(
            f"sequence_length is {sequence}; this model has positions for {model.max_sequence_length} tokens."
        )
    return transformer_activations(
        model, settings.micro_batch_size, sequence, element, settings.recompute, settings.num_shared_groups
    )


def _device_buffers(model: ModelSizes, settings: MemorySettings, weight_bytes: int) -> int:
    """Return the bytes of accumulated gradients, of data-parallel buckets, or of the two layers that are gathered."""
    accumulated = weight_bytes if settings.collaborative else 0
    if settings.num_gpus == 1:
        return accumulated
    if not settings.shard_over_gpus:
        return accumulated + weight_bytes
    layers = model.num_hidden_layers if isinstance(model, DalleCollabSizes) else model.num_layers
    return accumulated + 2 * weight_bytes // max(2, layers)


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
