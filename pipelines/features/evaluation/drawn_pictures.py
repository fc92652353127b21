"""Pictures drawn for an evaluation: the same prompts several times, kept on disk so that an interruption costs little.

Axis names: `prompt`, `drawing` (repetition of all prompts with other random numbers), `image` (the codes of a picture).
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from hub_tools.atomic_files import written_whole
from hub_tools.printing.stage_progress import OnProgress
from pipelines.tasks.text_to_image.generation.generation_options import GenerationOptions
from pipelines.tasks.text_to_image.generation.image_generation import DrawingContext
from pipelines.tasks.text_to_image.generation.text_to_image import sample_candidates

PROMPTS_PER_CHUNK = 16
"""Part of what is drawn: a change draws other pictures for the same seed."""


def draw(
    parts: DrawingContext,
    weights: str,
    prompts: Sequence[str],
    *,
    options: GenerationOptions,
    folder: Path,
    on_progress: OnProgress,
) -> torch.Tensor:
    """Return the codes of `num_candidates` pictures for each prompt, `(prompt, drawing, image)` int64 on the CPU.

    `weights` is the `weights_digest` of the model. What `folder` already has of them, from the same weights, prompts
    and options, is not drawn again. The pictures of a prompt depend on the seed and its place, and on `batch_size`
    only where rounding decides between two codes.
    """
    facts = dict(options.facts(), weights=weights, batch_size=None)
    drawn, sampling = [], replace(options.sampling, window=1)
    for start in range(0, len(prompts), PROMPTS_PER_CHUNK):
        chunk = list(prompts[start : start + PROMPTS_PER_CHUNK])
        name = hashlib.sha256(json.dumps([facts, start, chunk], sort_keys=True).encode()).hexdigest()[:32]
        path = folder / f"{name}.safetensors"
        codes = _read(path)
        if codes is None:
            codes = sample_candidates(
                parts, chunk, replace(options, seed=options.seed + start, sampling=sampling)
            ).cpu()
            folder.mkdir(parents=True, exist_ok=True)
            with written_whole(path) as temporary:
                save_file({"image_codes": codes.to(torch.int32).contiguous()}, temporary)
        drawn.append(codes)
        on_progress("drawing", min(start + PROMPTS_PER_CHUNK, len(prompts)), len(prompts), "prompts")
    return torch.cat(drawn)


def _read(path: Path) -> torch.Tensor | None:
    try:
        return load_file(path)["image_codes"].long()
    except (OSError, SafetensorError, KeyError):
        return None
