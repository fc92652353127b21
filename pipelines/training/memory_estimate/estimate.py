"""Bytes of a training step on the GPU and in RAM, in closed form: nothing is loaded, allocated or run."""

from pipelines.training.memory_estimate.dalle_collab_memory import dalle_collab_activations
from pipelines.training.memory_estimate.dalle_collab_sizes import DalleCollabSizes
from pipelines.training.memory_estimate.optimizer_states import count_elements, optimizer_state_bytes
from pipelines.training.memory_estimate.precision import element_bytes
from pipelines.training.memory_estimate.settings import MemoryEstimate, MemorySettings, MemorySplit


def estimate_training_memory(model: DalleCollabSizes, settings: MemorySettings) -> MemoryEstimate:
    """Return what one training step needs. Raises ValueError where model and settings do not go together."""
    element = element_bytes(settings.precision)
    shapes = model.parameter_shapes
    number = count_elements(shapes)
    activations = dalle_collab_activations(
        model, settings.micro_batch_size, element, settings.recompute, on_cpu=settings.device == "cpu"
    )
    gradients = number * element.weight
    on_device = MemorySplit(
        weights=number * element.weight,
        gradients=gradients,
        activations=round(activations),
        optimizer=0 if settings.keeps_optimizer_in_ram else optimizer_state_bytes(shapes, settings),
        buffers=gradients if settings.collaborative else 0,
    )
    in_ram = _offloaded(number, optimizer_state_bytes(shapes, settings), settings)
    if settings.device == "cpu":
        return MemoryEstimate(gpu=MemorySplit(), ram=on_device + in_ram, num_parameters=number)
    return MemoryEstimate(gpu=on_device, ram=in_ram, num_parameters=number)


def _offloaded(number: int, state_bytes: int, settings: MemorySettings) -> MemorySplit:
    """Return what an optimizer in RAM needs, and what hivemind's averagers hold there.

    The offloaded optimizer works on float32 parameters and gradients of its own; in a swarm these are the very tensors
    that are averaged. While a round runs, averages of other peers' parts wait until all before them have arrived: up to
    the whole vector.
    """
    if not settings.keeps_optimizer_in_ram:
        return MemorySplit()
    return MemorySplit(
        weights=4 * number,
        gradients=4 * number,
        optimizer=state_bytes,
        buffers=4 * number if settings.collaborative else 0,
    )
