"""The VQGAN codec: pictures to codes and back.

This file, `vqgan_layers.py` and `vqgan_config.py` travel with models to the Model Hub, where torch and transformers are
enough: no other file of the project is imported here.

Axis names: batch, height, width, num_codes (= grid_size * grid_size), embedding.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Self

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from .vqgan_config import CodecLoadError, VQGANConfig
from .vqgan_layers import Decoder, Encoder

__all__ = ["CONFIG_NAME", "WEIGHTS_NAME", "CodecLoadError", "VQGANCodec", "VQGANConfig"]

CONFIG_NAME = "vqgan_config.json"
WEIGHTS_NAME = "vqgan.safetensors"


class VQGANCodec(nn.Module):
    """Turns pictures into codes of a learned codebook and codes into pictures.

    The parameters have taming's names (`encoder.*`, `quantize.*`, ...), so published state dicts fit as they are.
    """

    def __init__(self, config: VQGANConfig):
        super().__init__()
        self.config = config
        if not config.linear_encoder:
            self.encoder: nn.Module = Encoder(config)
        self.decoder = Decoder(config)
        size, width = config.codebook_size, config.embedding_dim
        if config.quantizer == "gumbel":
            self.quantize = nn.ModuleDict(
                {"proj": nn.Conv2d(config.z_channels, size, 1), "embed": nn.Embedding(size, width)}
            )
        else:
            self.quantize = nn.ModuleDict({"embedding": nn.Embedding(size, width)})
            nn.init.uniform_(self.codebook, -1 / size, 1 / size)
        if config.linear_encoder:
            factor = config.downsampling_factor
            self.encoder = nn.Conv2d(3, config.embedding_dim, factor, stride=factor)
            self.quant_conv = nn.Identity()
        else:
            # taming's GumbelVQ keeps the first convolution at embedding_dim, which must then equal z_channels.
            self.quant_conv = nn.Conv2d(config.z_channels, config.embedding_dim, 1)
        self.post_quant_conv = nn.Conv2d(config.embedding_dim, config.z_channels, 1)
        self.to(memory_format=torch.channels_last)

    @property
    def codebook(self) -> torch.Tensor:
        """(codebook_size, embedding) float32."""
        return self.quantize["embed" if self.config.quantizer == "gumbel" else "embedding"].weight

    @property
    def fingerprint(self) -> str:
        """16 hex digits of a sha256 over configuration and weights; equal ones mean equal codes."""
        values = asdict(self.config)
        if not self.config.linear_encoder:  # a published codec keeps its name: this is what its settings were then
            del values["linear_encoder"]
            values["linear_shortcut"] = False
        if not self.config.linear_decoder:
            del values["linear_decoder"]
        digest = hashlib.sha256(json.dumps(values, sort_keys=True).encode())
        for name, tensor in sorted(self.state_dict().items()):
            digest.update(f"{name}{tuple(tensor.shape)}".encode())
            digest.update(tensor.detach().to("cpu", torch.float32).contiguous().numpy().tobytes())
        return digest.hexdigest()[:16]

    def encode(self, images: torch.Tensor) -> torch.Tensor:
        """Codes of pictures. images: (batch, 3, height, width) floats in [0, 1] -> (batch, num_codes) int64.

        The Gumbel quantizer takes the largest logit (taming adds noise to it even in evaluation), so equal pictures
        have equal codes. ValueError for another size or range.
        """
        self._check_images(images)
        with torch.no_grad():
            return self.nearest_codes(self.latents(images)).flatten(1)

    def decode(self, image_codes: torch.Tensor) -> torch.Tensor:
        """Pictures of codes. image_codes: (batch, num_codes) int64 -> (batch, 3, height, width) float32 in [0, 1].

        ValueError for another length or a code outside the codebook.
        """
        self._check_codes(image_codes)
        grid = image_codes.long().reshape(-1, self.config.grid_size, self.config.grid_size)
        with torch.no_grad():
            quantized = F.embedding(grid, self.codebook).permute(0, 3, 1, 2)  # (batch, embedding, grid, grid)
            return self.reconstruct(quantized).clamp(0, 1)

    def latents(self, images: torch.Tensor) -> torch.Tensor:
        """What the quantizer sees: (batch, 3, height, width) in [0, 1] -> (batch, embedding, grid, grid)."""
        pixels = 2 * images - 1
        if not self.config.linear_encoder:
            pixels = F.pixel_unshuffle(pixels, self.config.patch_size)
        return self.quant_conv(self.encoder(pixels.contiguous(memory_format=torch.channels_last)))

    def nearest_codes(self, latents: torch.Tensor) -> torch.Tensor:
        """(batch, embedding, grid, grid) -> (batch, grid, grid) int64."""
        if self.config.quantizer == "gumbel":
            return self.quantize["proj"](latents).argmax(dim=1)
        flat = latents.permute(0, 2, 3, 1)  # (batch, grid, grid, embedding)
        if self.config.quantizer == "cosine":  # the latent's own length changes no maximum
            return (flat @ self.codebook.T).argmax(dim=-1)
        distances = self.codebook.pow(2).sum(1) - 2 * flat @ self.codebook.T  # without |latent|^2, equal for all codes
        return distances.argmin(dim=-1)

    def reconstruct(self, quantized: torch.Tensor) -> torch.Tensor:
        """Codebook vectors (batch, embedding, grid, grid) -> pictures (batch, 3, height, width), not clamped."""
        quantized = quantized.contiguous(memory_format=torch.channels_last)
        pictures = F.pixel_shuffle(self.decoder(self.post_quant_conv(quantized)), self.config.patch_size)
        if self.config.linear_decoder:
            pictures = pictures + self._linear_pictures(quantized)
        return (pictures + 1) / 2

    def _linear_pictures(self, quantized: torch.Tensor) -> torch.Tensor:
        """(batch, embedding, grid, grid) -> (batch, 3, height, width) in [-1, 1] that the encoder turns into these.

        The encoder's rows are principal components: orthogonal to each other and of one length, or zero.
        """
        weight, bias = self.encoder.weight.detach(), self.encoder.bias.detach()
        inverse = weight / weight.pow(2).sum((1, 2, 3)).amax().clamp_min(1e-12)
        return F.conv_transpose2d(quantized - bias[:, None, None], inverse, stride=self.config.downsampling_factor)

    def save_pretrained(self, folder: str | os.PathLike, *, half_precision: bool = False) -> Path:
        """Write `vqgan_config.json` and `vqgan.safetensors` into folder, each whole or not at all; returns the folder.

        half_precision halves the file; round the weights first (`round_to_half`), or the fingerprint changes.
        CodecLoadError, and nothing is written, when a weight is not finite.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        dtype = torch.float16 if half_precision else torch.float32
        tensors = {name: tensor.detach().to("cpu", dtype).contiguous() for name, tensor in self.state_dict().items()}
        require_finite(tensors, f"The codec for {folder}")
        temporary = folder / f".{WEIGHTS_NAME}.{os.getpid()}.partial"
        save_file(tensors, temporary, metadata={"format": "pt"})
        temporary.chmod(0o644)  # safetensors writes files that only their owner can read
        temporary.replace(folder / WEIGHTS_NAME)
        temporary_config = folder / f".{CONFIG_NAME}.{os.getpid()}.partial"
        temporary_config.write_text(json.dumps(asdict(self.config), indent=2) + "\n")
        temporary_config.replace(folder / CONFIG_NAME)
        return folder

    def round_to_half(self) -> Self:
        """Round all weights to what float16 holds, keeping them float32, so that a half-precision file is exact."""
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(parameter.half())
        return self

    @classmethod
    def from_pretrained(
        cls, path_or_repo: str | os.PathLike, *, revision: str | None = None, device: str | torch.device = "cpu"
    ) -> Self:
        """The codec in a folder or a Hub model repository, in evaluation mode. CodecLoadError when it does not fit."""
        config_path, weights_path = _locate(path_or_repo, revision)
        codec = cls(_read_config(config_path))
        codec.load_tensors(_read_tensors(weights_path), str(weights_path))
        return codec.to(device)

    def load_tensors(self, tensors: dict[str, torch.Tensor], origin: str) -> None:
        """Take over the weights of these names and go into evaluation mode.

        `origin` says in messages where they come from. CodecLoadError when one is absent, of another shape, unknown or
        not finite.
        """
        own = self.state_dict()
        missing, unknown = sorted(own.keys() - tensors.keys()), sorted(tensors.keys() - own.keys())
        wrong = sorted(name for name in own.keys() & tensors.keys() if own[name].shape != tensors[name].shape)
        if missing or wrong or unknown:
            first = (missing or wrong or unknown)[0]
            seen = "absent" if missing else f"of shape {tuple(tensors[first].shape)}"
            expected = tuple(own[first].shape) if first in own else "none of this name"
            raise CodecLoadError(
                f"{origin} does not fit its configuration: {first} is {seen}, expected {expected} ({len(missing)} "
                f"absent, {len(wrong)} of another shape, {len(unknown)} unknown). Use the configuration that it was "
                "saved with."
            )
        require_finite(tensors, origin)
        self.load_state_dict({name: tensors[name].float() for name in own})
        self.eval().requires_grad_(False)

    def _check_images(self, images: torch.Tensor) -> None:
        size = self.config.image_size
        if images.ndim != 4 or images.shape[1:] != (3, size, size):
            raise ValueError(
                f"Pictures have shape {tuple(images.shape)}, this codec takes (batch, 3, {size}, {size}). "
                f"Crop and resize them to {size}x{size} first."
            )
        if not images.is_floating_point():
            raise ValueError(f"Pictures are {images.dtype}, this codec takes floats in [0, 1]. Divide bytes by 255.")
        if images.numel() and not (images.amin() >= 0 and images.amax() <= 1):
            raise ValueError(
                f"Pictures hold values from {images.amin():.3g} to {images.amax():.3g}, this codec takes [0, 1]."
            )

    def _check_codes(self, image_codes: torch.Tensor) -> None:
        if image_codes.ndim != 2 or image_codes.shape[1] != self.config.num_codes or image_codes.is_floating_point():
            raise ValueError(
                f"Codes have shape {tuple(image_codes.shape)} and dtype {image_codes.dtype}, this codec decodes "
                f"(batch, {self.config.num_codes}) integers."
            )
        image_codes = image_codes.long()  # torch has no extremes of unsigned numbers
        if image_codes.numel() and not 0 <= image_codes.min() <= image_codes.max() < self.config.codebook_size:
            raise ValueError(
                f"Codes go from {int(image_codes.min())} to {int(image_codes.max())}, this codec's codebook has "
                f"0 to {self.config.codebook_size - 1}. Decode them with the codec that made them."
            )


def require_finite(tensors: Mapping[str, torch.Tensor], origin: str) -> None:
    """Raise CodecLoadError if a tensor has a value that is not a finite number in float32."""
    if bad := next((name for name, tensor in tensors.items() if not tensor.float().isfinite().all()), None):
        raise CodecLoadError(
            f"{origin} has values that are not finite in {bad}, so that its codes would mean nothing. Take weights "
            "from before its training diverged, or train it again with a smaller learning rate."
        )


def _locate(path_or_repo: str | os.PathLike, revision: str | None) -> tuple[Path, Path]:
    folder = Path(path_or_repo)
    if folder.is_dir():
        for name in (CONFIG_NAME, WEIGHTS_NAME):
            if not (folder / name).is_file():
                raise CodecLoadError(
                    f"{folder} has no {name}; expected {CONFIG_NAME} and {WEIGHTS_NAME}. Make them with "
                    f"`dalle-collab codec train PICTURES --output {folder}` or `dalle-collab codec convert CKPT`."
                )
        return folder / CONFIG_NAME, folder / WEIGHTS_NAME
    if folder.is_absolute() or str(path_or_repo).count("/") != 1 or str(path_or_repo).startswith("."):
        raise CodecLoadError(
            f"There is no codec folder {path_or_repo}. Expected a folder or a Hub repository ORG/NAME."
        )
    from huggingface_hub import hf_hub_download

    paths = [hf_hub_download(str(path_or_repo), name, revision=revision) for name in (CONFIG_NAME, WEIGHTS_NAME)]
    return Path(paths[0]), Path(paths[1])


def _read_config(path: Path) -> VQGANConfig:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        if not values.get("linear_shortcut"):  # of older versions, and only then without a meaning
            values.pop("linear_shortcut", None)
        return VQGANConfig(**values)
    except (TypeError, AttributeError, ValueError, RecursionError) as error:
        raise CodecLoadError(f"{path} is not a codec configuration of this version: {error}") from error


def _read_tensors(path: Path) -> dict[str, torch.Tensor]:
    try:
        return load_file(path)
    except SafetensorError as error:
        start = path.read_bytes()[:2]
        kind = "a pickle" if start == b"PK" or start[:1] == b"\x80" else "damaged"
        raise CodecLoadError(
            f"{path} is {kind}, expected safetensors ({error}). Pickles are never loaded here; convert a published "
            "checkpoint with `dalle-collab codec convert CKPT [YAML] --output DIR`, else download it again."
        ) from error
