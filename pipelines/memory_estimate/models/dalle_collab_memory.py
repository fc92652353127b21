"""Activations of our model in a training step, from those of its layers and its head."""

from pipelines.memory_estimate.models.dalle_collab_layers import DalleCollabLayers
from pipelines.memory_estimate.models.dalle_collab_sizes import DalleCollabSizes
from pipelines.memory_estimate.models.precision import ElementBytes
from pipelines.memory_estimate.models.step_peak import StepPieces, WeightCopies, step_peak


def dalle_collab_activations(
    sizes: DalleCollabSizes, batch: int, element: ElementBytes, recompute: str, *, on_cpu: bool = False
) -> float:
    """Return the bytes of a step over `batch` samples besides parameters and their gradients."""
    adds_up = on_cpu and recompute != "checkpoint" and (element.weight, element.compute) == (4, 4)
    layers = DalleCollabLayers(sizes, batch, element, on_cpu=on_cpu, adds_gradients_up=adds_up)
    kinds = sizes.layer_kinds
    num_recomputed = {"reversible": len(kinds), "partial": len(kinds) // 2}.get(recompute, 0)
    stored = {kind: layers.stored_layer(kind) for kind in dict.fromkeys(kinds)}
    table = float(sizes.vocab_size * sizes.hidden_size)
    table_gradient = 0.0 if adds_up else table * element.weight
    table_copy = table * element.compute if element.is_autocast else 0.0
    group_copies = sum(layers.branch_copies)
    all_copies = group_copies * sizes.num_shared_groups
    held_copies = {"none": all_copies, "partial": all_copies, "checkpoint": group_copies}.get(recompute, 0.0)
    pieces = StepPieces(
        always=_tables(sizes, element, on_cpu=on_cpu),
        layers=tuple(stored[kind] for kind in kinds[num_recomputed:]),
        boundary=2 * layers.stream if recompute == "checkpoint" else None,
        boundary_inside=layers.stream,
        reversible_end=2 * layers.stream if num_recomputed else 0.0,
        undoing=_undoing(layers, kinds[:num_recomputed], is_whole=num_recomputed == len(kinds)),
        head=layers.head(),
        copies=WeightCopies(forward=all_copies + table_copy, head=table_copy, layers=held_copies),
        waiting_gradient=table_gradient,
        embedding=table_gradient + layers.stream,
    )
    return step_peak(pieces)


def _undoing(layers: DalleCollabLayers, kinds: tuple[str, ...], *, is_whole: bool) -> float:
    """Return the most bytes while reversible layers are undone; 0 if there are none."""
    if not kinds:
        return 0.0
    most = max(layers.recomputed_layer(kind) for kind in dict.fromkeys(kinds))
    if is_whole:
        return most
    # Gradients that stored layers gave for shared weights wait until those of the reversible layers are complete; the
    # parameter's own is the sum of both, a third tensor.
    sizes = layers.sizes
    group = 4 * sizes.hidden_size * sizes.inner_size + 3 * sizes.hidden_size * sizes.wide_size
    num_groups = min(len(sizes.attention_pattern), len(kinds))
    return most + 2 * num_groups * group * layers.element.weight


def _tables(sizes: DalleCollabSizes, element: ElementBytes, *, on_cpu: bool) -> float:
    """Rotations, masks and ids."""
    rotations = sizes.num_positions * sizes.head_dim * 4.0
    masks, dense_kinds = 0.0, sizes.dense_kinds(on_cpu=on_cpu)
    for kind in dict.fromkeys(sizes.layer_kinds):
        keys = sizes.num_band_lines(kind) * sizes.image_grid_size
        elements = sizes.num_positions**2 if kind in dense_kinds else sizes.num_image_codes * keys
        masks += elements * element.stream
    return rotations + masks
