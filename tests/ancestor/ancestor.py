"""The real dalle-pytorch from the package index, which our model descends from: tests and benchmarks compare with it.

It is imported without what it needs for its own codecs only. Sizes are named as in `DalleCollabConfig`.
"""

import importlib
import sys
import types
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle, islice

from torch import nn

KINDS = {"row": "axial_row", "column": "axial_col", "convolutional": "conv_like"}
PATTERN = ("row", "column", "row", "row")

# Imported by dalle-pytorch at module level for its codecs, never called here, and heavy, deprecated or not installed.
UNUSED = {
    "omegaconf": ("OmegaConf",),
    "pkg_resources": ("get_distribution",),
    "requests": (),
    "taming": (),
    "taming.models": (),
    "taming.models.vqgan": ("VQModel", "GumbelVQ"),
}


def build_ancestor(
    *,
    text_vocab_size: int,
    codebook_size: int,
    text_sequence_length: int,
    image_grid_size: int,
    hidden_size: int,
    num_hidden_layers: int,
    num_attention_heads: int,
    head_dim: int,
    attention_pattern: Sequence[str] = PATTERN,
    final_attention: str = "convolutional",
    reversible: bool = True,
    shared: bool = True,
    optimize_for_inference: bool = False,
    **options,
) -> nn.Module:
    """Return a DALLE with random weights; `shared=False` gives every layer weights of its own.

    Its vae has no weights, and its `decode` returns the image codes. `options` are more arguments of DALLE.
    Raises ImportError, saying what to do, where dalle-pytorch is not installed.
    """
    library = import_dalle_pytorch()
    cycled = num_hidden_layers - 1
    if shared:
        ids = [*islice(cycle(range(len(attention_pattern))), cycled), "last"]
        options = {"shared_attn_ids": ids, "shared_ff_ids": ids} | options
    return library.DALLE(
        vae=_codec_without_weights(library, codebook_size, image_grid_size),
        num_text_tokens=text_vocab_size,
        text_seq_len=text_sequence_length,
        dim=hidden_size,
        depth=num_hidden_layers,
        heads=num_attention_heads,
        dim_head=head_dim,
        attn_types=[KINDS[kind] for kind in [*islice(cycle(attention_pattern), cycled), final_attention]],
        reversible=reversible,
        optimize_for_inference=optimize_for_inference,
        **({"rotary_emb": True, "share_input_output_emb": True} | options),
    )


def import_dalle_pytorch() -> types.ModuleType:
    """Return the library. Raises ImportError, saying what to do, where it is not installed."""
    with _placeholders(), warnings.catch_warnings():
        # Escapes in its strings that newer Pythons dislike.
        warnings.simplefilter("ignore")
        try:
            return importlib.import_module("dalle_pytorch")
        except ModuleNotFoundError as error:
            raise ImportError(
                f"dalle-pytorch cannot be imported ({error}); expected the packages of "
                "tests/ancestor/requirements.txt. Run: make install"
            ) from error


@contextmanager
def _placeholders() -> Iterator[None]:
    """Put empty modules in the place of the unused ones, and take them away again."""
    before = {name: sys.modules.get(name) for name in UNUSED}
    for name, contents in UNUSED.items():
        sys.modules[name] = types.ModuleType(name)
        vars(sys.modules[name]).update({content: type(content, (), {}) for content in contents})
    try:
        yield
    finally:
        for name, module in before.items():
            sys.modules.pop(name)
            if module is not None:
                sys.modules[name] = module


def _codec_without_weights(library: types.ModuleType, codebook_size: int, image_grid_size: int) -> nn.Module:
    class CodesAsPictures(library.VQGanVAE):
        def __init__(self):
            nn.Module.__init__(self)
            self.num_layers, self.channels = 3, 3
            self.image_size = image_grid_size * 2**self.num_layers
            self.num_tokens = codebook_size

        def decode(self, image_codes):
            return image_codes

    return CodesAsPictures()
