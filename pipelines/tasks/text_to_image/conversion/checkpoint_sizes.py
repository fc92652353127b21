"""The configuration of a dalle-pytorch checkpoint: from its tensors, its hyperparameters, or otherwise given.

The rotary table shows most: its first channel counts the text tokens and is 8192 for every image code, its rows after
the text are the grid, and its width leaves few possible head sizes.
"""

import math

import torch
from torch import Tensor

from modeling_dalle_collab import DalleCollabConfig
from modeling_dalle_collab.attention_dalle_collab import rotary_angles
from pipelines.tasks.text_to_image.conversion.dalle_pytorch_checkpoint import DallePytorchCheckpoint, is_same
from pipelines.tasks.text_to_image.conversion.dalle_pytorch_names import BRANCHES, HEAD, ROTARY_TABLE
from pipelines.tasks.text_to_image.conversion.unseen_settings import UnseenSettings, with_notes

TEXT_PLACE_OF_IMAGE_CODES = 8192


def infer_config(checkpoint: DallePytorchCheckpoint, unseen: UnseenSettings) -> DalleCollabConfig:
    """Return the configuration that fits the checkpoint. Raises ValueError if ours cannot express the model."""
    table = _rotary_rows(checkpoint.tensors[ROTARY_TABLE])
    text_sequence_length, image_grid_size = _lengths(table)
    vocab_size, hidden_size = _matrix_shape(checkpoint, f"{HEAD}.weight")
    unseen = with_notes(unseen, checkpoint.notes, checkpoint.num_layers, vocab_size - text_sequence_length)
    num_text_ids = vocab_size - unseen.codebook_size
    if num_text_ids <= text_sequence_length:
        raise ValueError(
            f"The checkpoint's vocabulary has {vocab_size} ids, expected more than {unseen.codebook_size} image codes "
            f"and {text_sequence_length} padding ids. Give the codec's number of codes with --codebook-size."
        )
    inner_size, multiplier = _inner_size(checkpoint, hidden_size), _feed_forward_multiplier(checkpoint, hidden_size)
    head_dim = _head_dim(table, text_sequence_length, image_grid_size, inner_size, unseen.head_dim)
    return DalleCollabConfig(
        text_vocab_size=num_text_ids - text_sequence_length,
        codebook_size=unseen.codebook_size,
        text_sequence_length=text_sequence_length,
        image_grid_size=image_grid_size,
        hidden_size=hidden_size,
        num_hidden_layers=checkpoint.num_layers,
        num_attention_heads=inner_size // head_dim,
        head_dim=head_dim,
        attention_pattern=_attention_pattern(sharing_period(checkpoint), checkpoint.num_layers, unseen),
        final_attention=unseen.final_attention,
        conv_kernel_size=unseen.conv_kernel_size,
        conv_window=unseen.conv_window,
        feed_forward_multiplier=multiplier,
        pad_token_id=unseen.pad_token_id,
    )


def _rotary_rows(table: Tensor) -> Tensor:
    """Return the table as (position, channel)."""
    fits = table.dim() == 3 and table.shape[0] == 1 and table.shape[2] > 0 and table.shape[2] % 6 == 0
    if not fits or not table.is_floating_point():
        raise ValueError(
            f"The checkpoint's {ROTARY_TABLE} has shape {tuple(table.shape)} and dtype {table.dtype}, expected "
            "(1, positions, channels) floats with a multiple of 6 channels. The file is damaged or of another model."
        )
    return table[0]


def _lengths(table: Tensor) -> tuple[int, int]:
    """Return the number of text tokens, without `<bos>`, and the side of the grid."""
    is_image = table[:, 0] == TEXT_PLACE_OF_IMAGE_CODES
    num_image_codes = int(is_image.sum())
    text_block_length, grid_size = len(table) - num_image_codes, math.isqrt(num_image_codes)
    if text_block_length < 2 or not num_image_codes or grid_size**2 != num_image_codes:
        raise ValueError(
            f"The checkpoint's {ROTARY_TABLE} has {text_block_length} text positions and {num_image_codes} image "
            f"positions (those at {TEXT_PLACE_OF_IMAGE_CODES} in channel 0), expected at least 2 and a square. Our "
            "positions are those of dalle-pytorch 1.1.2 to 1.6.6; other models cannot be converted."
        )
    return text_block_length - 1, grid_size


def _matrix_shape(checkpoint: DallePytorchCheckpoint, name: str) -> tuple[int, int]:
    shape = checkpoint.tensors[name].shape
    if len(shape) != 2 or not all(shape):
        raise ValueError(
            f"The checkpoint's {name} has shape {tuple(shape)}, expected a matrix. The file is damaged or of another "
            "model."
        )
    return shape[0], shape[1]


def _inner_size(checkpoint: DallePytorchCheckpoint, hidden_size: int) -> int:
    name = checkpoint.layout.shared_names("attention", 0)["qkv.weight"]
    shape = _matrix_shape(checkpoint, name)
    if shape[1] != hidden_size or shape[0] % 3:
        raise ValueError(
            f"The checkpoint's {name} has shape {shape}, expected (3 x heads x head_dim, {hidden_size}), the "
            f"width of {HEAD}.weight. The file is damaged or of another model."
        )
    return shape[0] // 3


def _feed_forward_multiplier(checkpoint: DallePytorchCheckpoint, hidden_size: int) -> int:
    name = checkpoint.layout.shared_names("feed_forward", 0)["input.weight"]
    shape = _matrix_shape(checkpoint, name)
    if shape[0] % (2 * hidden_size):
        raise ValueError(
            f"The checkpoint's {name} has shape {shape}, expected a multiple of 2 x {hidden_size} rows: two "
            "halves, one of which gates the other. Other feed-forward layers cannot be converted."
        )
    return shape[0] // (2 * hidden_size)


def _head_dim(
    table: Tensor, text_sequence_length: int, image_grid_size: int, inner_size: int, wanted: int | None
) -> int:
    """Return the only head size that fits the rotary table and divides the attention's channels."""
    width = table.shape[1]

    def turns_alike(head_dim: int) -> bool:
        config = DalleCollabConfig(
            text_sequence_length=text_sequence_length, image_grid_size=image_grid_size, head_dim=head_dim
        )
        return _is_table_of(table, config)

    # Positions depend on a third of head_dim, rounded down, so each table stands for three sizes, or six.
    tables = {width: range(width, width + 3), width + 4: range(width + 3, width + 6)}
    fitting = [size for even, sizes in tables.items() if turns_alike(even) for size in sizes]
    if not fitting:
        raise ValueError(
            f"The checkpoint's {ROTARY_TABLE} has other angles than our rotary positions for {text_sequence_length} "
            f"text tokens and a grid of {image_grid_size} x {image_grid_size}. Our positions are those of "
            "dalle-pytorch 1.1.2 to 1.6.6 with rotary-embedding-torch 0.1.1 or newer."
        )
    return _choose_head_dim([size for size in fitting if inner_size % size == 0], inner_size, wanted)


def _is_table_of(table: Tensor, config: DalleCollabConfig) -> bool:
    ours = rotary_angles(config, table.device).repeat_interleave(2, dim=-1)[:, : table.shape[1]]
    # A few units in the last place: the angles were computed on another machine, perhaps stored in half precision.
    last_place = torch.finfo(table.dtype).eps
    return ours.shape == table.shape and torch.allclose(table.float(), ours, rtol=4 * last_place, atol=last_place)


def _choose_head_dim(candidates: list[int], inner_size: int, wanted: int | None) -> int:
    default = candidates[0] if len(candidates) == 1 else DalleCollabConfig.head_dim
    chosen = default if wanted is None else wanted
    if chosen not in candidates:
        raise ValueError(
            f"The rotary table and {inner_size} channels of attention allow the head_dim "
            f"{' or '.join(map(str, candidates)) or 'of no model'}, expected "
            f"{'only one' if wanted is None else wanted}. Say which with --head-dim."
        )
    if chosen % 2:
        raise ValueError(
            f"The checkpoint's head_dim is {chosen}, expected an even number, because our rotary positions turn pairs "
            "of channels. This model cannot be converted."
        )
    return chosen


def _attention_pattern(period: int, num_layers: int, unseen: UnseenSettings) -> tuple[str, ...]:
    """Return the kinds of the layers up to where sharing starts again."""
    given = unseen.attention_pattern
    if not given:
        raise ValueError("The attention pattern is empty, expected one kind or more. Give --attention-pattern.")
    kinds = [given[layer % len(given)] for layer in range(max(1, num_layers - 1))]
    for layer, kind in enumerate(kinds):
        if kind != kinds[layer % period]:
            raise ValueError(
                f"Layers {layer % period} and {layer} of the checkpoint hold the same weights, but the attention "
                f"pattern {','.join(given)} makes one {kinds[layer % period]} and the other {kind}. Give the "
                "pattern of the model's training with --attention-pattern."
            )
    return tuple(kinds[:period])


def sharing_period(checkpoint: DallePytorchCheckpoint) -> int:
    """Return after how many layers the weights come again; the number of layers but one where they never do.

    Raises ValueError, naming a layer, when attention or feed-forward weights are shared in another order than ours.
    """
    num_cycled = checkpoint.num_layers - 1
    equals = {kind: _first_equal_layers(checkpoint, kind) for kind in BRANCHES}
    for kind, firsts in equals.items():
        if firsts[-1] != num_cycled:
            raise ValueError(
                f"Layer {num_cycled}, the last, holds the {_words(kind)} weights of layer {firsts[-1]}, expected "
                "weights of its own, as in our model. This way of sharing cannot be converted."
            )
    repeats = [layer - first for firsts in equals.values() for layer, first in enumerate(firsts) if first != layer]
    period = min(repeats, default=max(1, num_cycled))
    _check_period(equals, period, num_cycled)
    return period


def _check_period(equals: dict[str, list[int]], period: int, num_cycled: int) -> None:
    for layer in range(num_cycled):
        for kind, firsts in equals.items():
            if firsts[layer] != layer % period:
                raise ValueError(
                    f"Layer {layer} holds other {_words(kind)} weights than layer {layer % period}, expected the same, "
                    f"because the layers share weights with those {period} before them. The file is damaged, or "
                    "shares in a way that cannot be converted."
                )


def _words(kind: str) -> str:
    return kind.replace("_", "-")


def _first_equal_layers(checkpoint: DallePytorchCheckpoint, kind: str) -> list[int]:
    """Return for every layer the first one that holds the same attention or feed-forward weights."""
    weights = [
        [checkpoint.tensors[name] for name in checkpoint.layout.shared_names(kind, layer).values()]
        for layer in range(checkpoint.num_layers)
    ]
    firsts: list[int] = []
    for layer, own in enumerate(weights):
        seen = [first for first in range(layer) if firsts[first] == first]
        alike = (first for first in seen if all(map(is_same, own, weights[first])))
        firsts.append(next(alike, layer))
    return firsts
