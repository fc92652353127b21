"""What the tensors of a checkpoint do not show: given by people, or written beside the tensors by train_dalle.py."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from modeling_dalle_collab import DalleCollabConfig

KINDS = {"axial_row": "row", "axial_col": "column", "conv_like": "convolutional"}
"""dalle-pytorch's names of the kinds of attention that ours has, too."""


@dataclass(frozen=True, kw_only=True)
class UnseenSettings:
    """What tensors do not show; the defaults are the original run's. A wrong value gives noise, not an error."""

    codebook_size: int = DalleCollabConfig.codebook_size
    """Number of image codes."""
    attention_pattern: tuple[str, ...] = tuple(DalleCollabConfig.attention_pattern)
    """Kinds of attention that all layers but the last cycle through."""
    final_attention: str = DalleCollabConfig.final_attention
    """Kind of attention of the last layer."""
    conv_kernel_size: int = DalleCollabConfig.conv_kernel_size
    """Side of the window of convolutional attention."""
    conv_window: str = DalleCollabConfig.conv_window
    """`centred` up to dalle-pytorch 1.4.2 and in the original run, `corner` from 1.5.0 on."""
    head_dim: int | None = None
    """Channels of one attention head; needed only if several sizes fit the tensors."""
    pad_token_id: int = DalleCollabConfig.pad_token_id
    """Token id that captions were padded with."""


def with_notes(
    unseen: UnseenSettings, notes: Mapping[str, object], num_layers: int, num_pieces_and_codes: int
) -> UnseenSettings:
    """The settings with what `hparams` and `version` beside the weights say, which holds where nothing else was given.

    `num_pieces_and_codes`: rows of the table without those of padding. ValueError for kinds of attention that ours has
    not, and for a setting that was given and contradicts the file.
    """
    written = _written(notes, num_layers, num_pieces_and_codes)
    for field in fields(unseen):
        given, said = getattr(unseen, field.name), written.get(field.name)
        if field.name == "attention_pattern" and said and given:
            given = _cycled(given, len(said))
            if given == _cycled(field.default, len(said)):
                continue
        if said is not None and given not in (said, field.default):
            raise ValueError(
                f"The checkpoint was trained with {field.name} {_shown(said)} by its notes, and {_shown(given)} was "
                f"given. Leave out --{field.name.replace('_', '-')}."
            )
    settled = replace(unseen, **written)
    if "final_attention" in written and "convolutional" not in (*settled.attention_pattern, settled.final_attention):
        for name in ("conv_kernel_size", "conv_window"):
            if getattr(unseen, name) != getattr(UnseenSettings, name):
                option = f"--{name.replace('_', '-')}"
                raise ValueError(f"By the checkpoint's notes no layer has convolutional attention. Leave out {option}.")
    return settled


def _written(notes: Mapping[str, Any], num_layers: int, num_pieces_and_codes: int) -> dict[str, Any]:
    """Our names of what the notes say. They are a stranger's: what is not of the expected type says nothing."""
    said = notes.get("hparams")
    if not isinstance(said, dict):
        return {}
    written: dict[str, Any] = {"pad_token_id": 0}  # dalle-pytorch's own tokenizers pad with it
    if "attn_types" in said:
        kinds = _kinds(said["attn_types"], num_layers)
        written |= {"attention_pattern": kinds[:-1] or kinds, "final_attention": kinds[-1]}
    if isinstance(notes.get("version"), str) and (version := re.match(r"(\d{1,9})\.(\d{1,9})", notes["version"])):
        is_corner = (int(version[1]), int(version[2])) >= (1, 5)
        written["conv_window"] = "corner" if is_corner else "centred"
    if type(said.get("dim_head")) is int:
        written["head_dim"] = said["dim_head"]
    if type(said.get("num_text_tokens")) is int:
        written["codebook_size"] = num_pieces_and_codes - said["num_text_tokens"]
    return written


def _kinds(attn_types: Any, num_layers: int) -> tuple[str, ...]:
    """The kind of each layer; None is dalle-pytorch's default."""
    names = ["full"] if attn_types is None else attn_types
    names = names.split(",") if isinstance(names, str) else names
    is_known = isinstance(names, list | tuple) and all(isinstance(name, str) and name in KINDS for name in names)
    if not is_known or not names:
        raise ValueError(
            f"The checkpoint was trained with attn_types={str(attn_types)[:200]} by its own notes, expected only "
            f"{', '.join(KINDS)}: our layers have no other attention. This model cannot be converted."
        )
    return _cycled([KINDS[name] for name in names], num_layers)


def _cycled(kinds: Sequence[str], number: int) -> tuple[str, ...]:
    return tuple(kinds[layer % len(kinds)] for layer in range(number))


def _shown(value: object) -> str:
    return ",".join(value) if isinstance(value, tuple) else str(value)
