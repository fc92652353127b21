"""Activations of well-known transformers in a training step, from those of their layers and their head."""

from pipelines.memory_estimate.models.autograd_tape import TapeBytes
from pipelines.memory_estimate.models.precision import ElementBytes
from pipelines.memory_estimate.models.step_peak import StepPieces, WeightCopies, step_peak
from pipelines.memory_estimate.models.t5_layers import T5Layers
from pipelines.memory_estimate.models.transformer_layers import STATISTICS, TransformerLayers
from pipelines.memory_estimate.models.transformer_sizes import TransformerSizes


def transformer_activations(
    sizes: TransformerSizes,
    batch: int,
    sequence: int,
    element: ElementBytes,
    recompute: str,
    num_shared_groups: int | None,
) -> float:
    """Return the bytes of a step over `batch` samples of `sequence` tokens besides parameters and their gradients."""
    num_shared_groups = num_shared_groups or sizes.num_shared_groups
    layers = (T5Layers if sizes.family == "t5" else TransformerLayers)(sizes, batch, sequence, element)
    every = _all_layers(layers)
    num_undone = {"reversible": len(every), "partial": len(every) // 2}.get(recompute, 0)
    table = float(sizes.table_size)
    waiting = table * element.weight if sizes.has_tied_table else 0.0
    pieces = StepPieces(
        always=_embedding_saved(sizes, layers),
        layers=every[num_undone:],
        boundary=layers.stream if recompute == "checkpoint" else None,
        boundary_inside=layers.stream,
        reversible_end=2 * layers.stream if num_undone else 0.0,
        undoing=layers.reversible_layer() if num_undone else 0.0,
        head=layers.head(),
        copies=_copies(sizes, element, recompute, num_shared_groups),
        waiting_gradient=waiting,
        embedding=(table * element.weight if sizes.has_tied_table else 0.0) + layers.stream,
    )
    return step_peak(pieces)


def _all_layers(layers: TransformerLayers) -> tuple[TapeBytes, ...]:
    sizes = layers.sizes
    if isinstance(layers, T5Layers):
        encoder = (layers.encoder_layer(),) * sizes.num_layers
        return (*encoder, layers.encoder_end(), *(layers.decoder_layer(),) * sizes.num_decoder_layers)
    return (layers.layer(),) * sizes.num_layers


def _embedding_saved(sizes: TransformerSizes, layers: TransformerLayers) -> float:
    if sizes.family in ("bert", "albert"):
        return layers.stream + layers.rows * STATISTICS  # the sum of the embeddings, which is normalised
    return 0.0


def _copies(
    sizes: TransformerSizes, element: ElementBytes, recompute: str, num_shared_groups: int | None
) -> WeightCopies:
    if not element.is_autocast:
        return WeightCopies()
    encoder, decoder = (
        float(
            sum(
                number * shape[0] * shape[1] * element.compute
                for shape, number in sizes.layer_shapes(is_t5_decoder=is_decoder)
                if len(shape) == 2
            )
        )
        for is_decoder in (False, True)
    )
    numbers = (min(num_shared_groups or count, count) for count in (sizes.num_layers, sizes.num_decoder_layers))
    every = sum(size * number for size, number in zip((encoder, decoder), numbers, strict=True))
    one = max(encoder, decoder) if sizes.num_decoder_layers else encoder
    head = float(sizes.table_size * element.compute)
    held = {"none": every, "partial": every, "checkpoint": one}.get(recompute, one)
    return WeightCopies(forward=every + head, head=head, layers=held)
