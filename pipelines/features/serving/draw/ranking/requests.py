"""What is asked of a server that ranks, and the checks before it takes memory for it."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from pipelines.core.swarm.streams.refusals import Refusal
from pipelines.tasks.text_to_image.image_codes.vqgan_codec import VQGANConfig

SERVICE = "rank"

MOST_CANDIDATES = 64
"""Of one request; who wants more asks again."""

MOST_CHARACTERS = 2_000
"""Of a caption; a CLIP reads its first 77 tokens or so."""

MOST_TENSOR_BYTES = 2**22
"""Of one request: 64 candidates of 128 x 128 codes."""

AT_ONCE = 2
"""Pictures that a server decodes together: one turn of an address."""


@dataclass(frozen=True, kw_only=True)
class RankRequest:
    """Candidates of one caption that are to be scored."""

    caption: str
    codes: Tensor
    """(candidate, place) int64: whole pictures."""

    def message(self) -> tuple[dict[str, object], dict[str, Tensor]]:
        """Return what is sent: body and tensors."""
        return dict(do="rank", caption=self.caption), dict(codes=self.codes.int())

    @classmethod
    def from_message(
        cls, body: Mapping[str, object], tensors: Mapping[str, Tensor], config: VQGANConfig
    ) -> "RankRequest":
        """Check a stranger's message for a codec; raises `Refusal` for what it cannot decode."""
        caption, codes = body.get("caption"), tensors.get("codes")
        if body.get("do") != "rank" or set(tensors) != {"codes"} or codes is None:
            raise Refusal("invalid", "Expected a request to rank, with codes and nothing besides.")
        if not isinstance(caption, str) or not caption.strip() or len(caption) > MOST_CHARACTERS:
            raise Refusal("invalid", f"Expected a caption of 1 to {MOST_CHARACTERS:,} characters.")
        if codes.dtype != torch.int32 or codes.ndim != 2 or not 1 <= len(codes) <= MOST_CANDIDATES:
            raise Refusal("invalid", f"Expected codes (candidate, place) int32 of 1 to {MOST_CANDIDATES} candidates.")
        if codes.shape[1] != config.num_codes:
            raise Refusal("invalid", f"A picture has {codes.shape[1]} codes, expected {config.num_codes}.")
        if codes.min() < 0 or codes.max() >= config.codebook_size:
            raise Refusal("invalid", f"Expected codes from 0 to {config.codebook_size - 1}.")
        return cls(caption=caption, codes=codes.long())
