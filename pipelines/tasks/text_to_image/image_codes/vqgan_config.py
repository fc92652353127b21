"""The sizes of a VQGAN codec. Light: no torch."""

from dataclasses import dataclass

QUANTIZERS = ("gumbel", "nearest", "cosine")
NORMALISATIONS = ("group", "position")
TAMING_NORM_GROUPS = 32  # taming's GroupNorm always has 32 groups, so channel counts are multiples of 32


class CodecLoadError(ValueError):
    """A codec that cannot be loaded: the message says what was seen, what was expected and the cure."""


@dataclass(frozen=True, kw_only=True)
class VQGANConfig:
    """Sizes of a codec. The defaults are the published f=8 codec with 8,192 codes and a Gumbel quantizer."""

    image_size: int = 256
    """Pictures are image_size x image_size pixels."""
    codebook_size: int = 8192
    """Number of codes."""
    embedding_dim: int = 256
    """Length of a codebook vector."""
    z_channels: int = 256
    """Channels between encoder and quantizer."""
    channels: int = 128
    """Channels of the first level, a multiple of 32."""
    channel_multipliers: tuple[int, ...] = (1, 1, 2, 4)
    """Channels of each level as multiples of `channels`; every level after the first halves the resolution."""
    num_residual_blocks: int = 2
    """Residual blocks per level."""
    attention_resolutions: tuple[int, ...] = (32,)
    """Levels (by their resolution) with self-attention, beside the one in the middle."""
    quantizer: str = "gumbel"
    """`gumbel`: the largest logit names the code; `nearest`: the nearest codebook vector does; `cosine`: the codebook
    vector in the most similar direction does, and all of them have length one."""
    patch_size: int = 1
    """Pixels of patch_size x patch_size become channels before the encoder; 1 as in taming, more is faster."""
    normalisation: str = "group"
    """`group`: taming's, over the whole picture; `position`: over the channels of each position, so that a code depends
    on its neighbourhood alone and a flat area has the same code in every picture."""
    middle_attention: bool = True
    """Whether the middle of encoder and decoder attends to the whole picture, as in taming."""
    linear_encoder: bool = False
    """Whether the encoder is one linear map of a code's own pixels. Training places it and a codebook at once, by
    principal components and k-means, and leaves all learning to the decoder, which sees the whole picture."""
    linear_decoder: bool = False
    """Whether the decoder adds to the inverse of the linear encoder: training then begins with what each code means."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "channel_multipliers", tuple(self.channel_multipliers))
        object.__setattr__(self, "attention_resolutions", tuple(self.attention_resolutions))
        if self.quantizer not in QUANTIZERS:
            raise ValueError(f"Unknown quantizer {self.quantizer!r}; this codec knows {', '.join(QUANTIZERS)}.")
        if self.normalisation not in NORMALISATIONS:
            raise ValueError(f"Unknown normalisation {self.normalisation!r}; expected {' or '.join(NORMALISATIONS)}.")
        if not 2 <= self.codebook_size <= 2**15:
            raise ValueError(f"codebook_size is {self.codebook_size}; int16 codes allow 2 to {2**15}.")
        if self.linear_decoder and not self.linear_encoder:
            raise ValueError("linear_decoder is the inverse of a linear encoder; set linear_encoder, too.")
        if not self.channel_multipliers or self.channels % TAMING_NORM_GROUPS:
            raise ValueError(f"channels is {self.channels}; taming's normalisation needs a multiple of 32.")
        if self.quantizer == "gumbel" and self.z_channels != self.embedding_dim:
            raise ValueError(
                f"z_channels {self.z_channels} and embedding_dim {self.embedding_dim} differ; a gumbel quantizer needs "
                "them equal. Use quantizer='nearest', 'cosine' or equal sizes."
            )
        if self.image_size % self.downsampling_factor:
            raise ValueError(
                f"image_size {self.image_size} is not a multiple of the downsampling factor {self.downsampling_factor}."
            )

    @property
    def downsampling_factor(self) -> int:
        """Pixels of one code's side."""
        return self.patch_size * 2 ** (len(self.channel_multipliers) - 1)

    @property
    def grid_size(self) -> int:
        """An image is grid_size x grid_size codes."""
        return self.image_size // self.downsampling_factor

    @property
    def num_codes(self) -> int:
        """Codes of one image."""
        return self.grid_size**2
