"""What dalle-pytorch calls the tensors of a model that ours can express, in the two existing layouts.

The layouts differ in how many wrappers surround the attention and the feed-forward layer of a branch. Every layer lists
shared weights as its own.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from modeling_dalle_collab import DalleCollabConfig

BLOCKS = "transformer.layers.blocks"
ROTARY_TABLE = "transformer.pos_emb"
HEAD = "to_logits.1"
BRANCHES = {"attention": "f", "feed_forward": "g"}
PARTS = ("weight", "bias")
TIED_VIEWS = {f"{view}.linear.{part}": f"{HEAD}.{part}" for view in ("text_emb", "image_emb") for part in PARTS}
"""Other names under which a tied model lists its head."""


@dataclass(frozen=True, kw_only=True)
class KeyLayout:
    """Where the weights of a layer are found below `transformer.layers.blocks.N`."""

    title: str
    """Description of this layout."""
    attention: str
    """Path of the attention layer."""
    feed_forward: str
    """Path of the feed-forward layer."""

    def shared_names(self, kind: str, layer: int) -> dict[str, str]:
        """Return our name in a group to the checkpoint's name of a layer, for `attention` or `feed_forward` weights."""
        block = f"{BLOCKS}.{layer}"
        if kind == "attention":
            names = {"qkv.weight": f"{block}.{self.attention}.to_qkv.weight"}
            return names | {f"output.{part}": f"{block}.{self.attention}.to_out.0.{part}" for part in PARTS}
        names = {f"input.{part}": f"{block}.{self.feed_forward}.net.0.{part}" for part in PARTS}
        return names | {f"output.{part}": f"{block}.{self.feed_forward}.net.3.{part}" for part in PARTS}


FORK_LAYOUT = KeyLayout(
    title="the original run's fork of dalle-pytorch", attention="f.net.fn.fn.fn", feed_forward="g.net.fn.fn.fn"
)
RELEASE_LAYOUT = KeyLayout(
    title="dalle-pytorch 1.4.0 to 1.6.6", attention="f.net.fn.fn.fn.fn.fn", feed_forward="g.net.fn.fn.fn.fn"
)


def own_names(layer: int) -> dict[str, str]:
    """Return our name in a layer to the checkpoint's name, for weights that are never shared."""
    names = {}
    for ours, theirs in BRANCHES.items():
        names[f"{ours}.scale"] = f"{BLOCKS}.{layer}.{theirs}.net.scale"
        names |= {f"{ours}.norm.{part}": f"{BLOCKS}.{layer}.{theirs}.net.fn.norm.{part}" for part in PARTS}
    return names


def ancestor_names(config: DalleCollabConfig, layout: KeyLayout) -> dict[str, str]:
    """Return for each of our parameters the name that it has in the checkpoint, in the first layer that uses it."""
    names = {"model.token_embedding.weight": f"{HEAD}.weight", "output_bias": f"{HEAD}.bias"}
    names |= {f"model.norm.{part}": f"to_logits.0.{part}" for part in PARTS}
    for layer in range(config.num_hidden_layers):
        names |= {f"model.stack.layers.{layer}.{ours}": theirs for ours, theirs in own_names(layer).items()}
    for group in range(config.num_shared_groups):
        first = config.layer_groups.index(group)
        for kind in BRANCHES:
            prefix = f"model.stack.groups.{group}.{kind}"
            names |= {f"{prefix}.{ours}": theirs for ours, theirs in layout.shared_names(kind, first).items()}
    return names


def expected_names(num_layers: int, layout: KeyLayout) -> Iterator[str]:
    """Yield every name that a checkpoint of this many layers must have."""
    yield ROTARY_TABLE
    yield from (f"to_logits.{index}.{part}" for index in (0, 1) for part in PARTS)
    for layer in range(num_layers):
        yield from own_names(layer).values()
        for kind in BRANCHES:
            yield from layout.shared_names(kind, layer).values()


def count_layers(names: Iterable[str]) -> int:
    """Return the number of layers in the names. Raises ValueError if one in between is missing."""
    found = {int(match[1]) for name in names if (match := re.match(rf"{re.escape(BLOCKS)}\.(\d+)\.", name))}
    missing = [layer for layer in range(len(found)) if layer not in found]
    if missing:
        raise ValueError(
            f"The checkpoint has the layers {_few(map(str, sorted(found)))}, but not layer {missing[0]}; expected all "
            "from 0 on. Save the complete state dict again."
        )
    return len(found)


def find_layout(names: Iterable[str]) -> KeyLayout:
    """Return the layout of the names. Raises ValueError for models that ours cannot express, and says why."""
    names = list(names)
    _refuse_other_models(names)
    for layout in (FORK_LAYOUT, RELEASE_LAYOUT):
        # An attention layer without token shift is as deep as one with it in the other layout; both must fit.
        if all(any(f".{path}." in name for name in names) for path in _marks(layout)):
            return layout
    raise ValueError(
        f"The checkpoint's attention is under {_depth(names, 'f', 'to_qkv')} and its feed-forward layers under "
        f"{_depth(names, 'g', 'net.0')}, as where shift_tokens=False; our layers always shift tokens. Only models "
        f"trained with shift_tokens=True can be converted, from {FORK_LAYOUT.title} or {RELEASE_LAYOUT.title}."
    )


def _marks(layout: KeyLayout) -> tuple[str, str]:
    return f"{layout.attention}.to_qkv", f"{layout.feed_forward}.net.0"


def _depth(names: list[str], branch: str, what: str) -> str:
    pattern = re.compile(rf"{re.escape(BLOCKS)}\.\d+\.({branch}\.net\.(?:fn\.)*){re.escape(what)}\.weight")
    return next((match[1].rstrip(".") for name in names if (match := pattern.match(name))), "no known name")


# What a name without a counterpart says about the model, and why it cannot be converted.
INEXPRESSIBLE = (
    (
        r"transformer\.layers\.layers\.",
        "which a model with reversible=False has; ours sums two residual streams, which is a different function. "
        "Only models trained with reversible=True can be converted.",
    ),
    (
        r".*\.norm_out\.",
        "which a model with sandwich_norm=True has; our layers have no normalisation after a branch. "
        "Only models trained with sandwich_norm=False can be converted.",
    ),
    (
        r"(text_emb|image_emb)\.weight$",
        "which a model with untied embeddings has; ours has one table for input and output. "
        "Only models trained with share_input_output_emb=True can be converted.",
    ),
    (
        r"(text_pos_emb|image_pos_emb)\.",
        "which a model with rotary_emb=False has; ours has rotary positions and no learned ones. "
        "Only models trained with rotary_emb=True can be converted.",
    ),
)


def _refuse_other_models(names: list[str]) -> None:
    for pattern, meaning in INEXPRESSIBLE:
        if found := next((name for name in names if re.match(pattern, name)), None):
            raise ValueError(f"The checkpoint has {found}, {meaning}")
    if not any(name.startswith(f"{BLOCKS}.") for name in names):
        raise ValueError(
            f"The checkpoint has {_few(names) or 'nothing'}, but no {BLOCKS}.*; expected the state dict of a DALLE "
            f"of dalle-pytorch. Save it: torch.save(dalle.state_dict(), 'dalle.pt')"
        )


def check_names(found: Iterable[str], num_layers: int, layout: KeyLayout) -> None:
    """Raise ValueError with the names if some are missing or superfluous."""
    found, expected = set(found), set(expected_names(num_layers, layout))
    if missing := sorted(expected - found):
        raise ValueError(
            f"The checkpoint lacks {_few(missing)}; expected every tensor of {num_layers} layers in the layout of "
            f"{layout.title}. Save the complete state dict again."
        )
    if unknown := sorted(found - expected - set(TIED_VIEWS)):
        raise ValueError(
            f"The checkpoint has {_few(unknown)}, which our model does not have; expected only the tensors of "
            f"{num_layers} layers in the layout of {layout.title}."
        )


def _few(names: Iterable[str], most: int = 3) -> str:
    names = list(names)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
