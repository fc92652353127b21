"""The codec in repositories: its code, where `transformers.pipeline` finds it, its files and its card. No torch."""

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from hub_tools.foreign.downloads import fetch_file
from hub_tools.places import is_repository_name
from hub_tools.printing.marked_up import plain
from hub_tools.run_files import CARD_FILE

if TYPE_CHECKING:
    import torch

    from pipelines.tasks.text_to_image.image_codes.vqgan_codec import VQGANCodec

CODEC_CODE_FILES = ("vqgan_codec.py", "vqgan_config.py", "vqgan_layers.py")

MOST_CODEC_BYTES = 2**32
"""Of a codec's weights: the largest published ones have a tenth of it."""


CARD = """---
tags: [dalle-collab, vqgan, image-codes]
---

# THIS_REPOSITORY

A VQGAN codec: it turns a picture of {size} x {size} pixels into {grid} x {grid} codes out of {codebook:,}, and codes
into a picture. Text-to-image transformers are trained on such codes. {origin}

| | |
| --- | --- |
| fingerprint | `{fingerprint}` |
| pixels of a code's side | {factor} |
| parameters | {parameters:,} |

Only this codec turns its codes into pictures: datasets and models name its fingerprint.

## Use

With this project installed (any picture does; this one is drawn):

```python
import numpy as np
import torch
from PIL import Image

import dalle_collab

codec = dalle_collab.open_codec("THIS_REPOSITORY")
picture = Image.radial_gradient("L").convert("RGB").resize(({size}, {size}))
codes = codec.encode(torch.tensor(np.array(picture)).permute(2, 0, 1)[None] / 255)
pixels = codec.decode(codes)[0].permute(1, 2, 0)
Image.fromarray((255 * pixels).byte().numpy()).save("picture.png")
```

```bash
dalle-collab codec show THIS_REPOSITORY pictures/ --output codec.png
```

## Licence

What the header says; its owner adds it there, such as `license: apache-2.0`.
"""
"""Of a codec; `hub-tools publish folder` writes the repository's name into it."""


def write_codec_card(codec: "VQGANCodec", folder: str | os.PathLike, origin: str) -> None:
    """Write README.md into a codec's folder, unless there is one; `origin` says where the weights are from."""
    card = Path(folder) / CARD_FILE
    sizes = codec.config
    if not card.exists():
        text = CARD.format(
            size=sizes.image_size,
            grid=sizes.grid_size,
            codebook=sizes.codebook_size,
            factor=sizes.downsampling_factor,
            fingerprint=codec.fingerprint,
            parameters=sum(parameter.numel() for parameter in codec.parameters()),
            origin=plain(origin),
        )
        card.write_text(text, encoding="utf-8")


def copy_codec_code(folder: str | os.PathLike) -> None:
    """Copy the files with `VQGANCodec` into a model's folder, flat, as a class is loaded from the Hub."""
    for name in CODEC_CODE_FILES:
        shutil.copyfile(Path(__file__).with_name(name), Path(folder) / name)


def open_codec(
    place: str | os.PathLike, *, revision: str | None = None, device: "str | torch.device" = "cpu"
) -> "VQGANCodec":
    """Do what `VQGANCodec.from_pretrained` does, unless the repository's files are too large: TooLargeError."""
    from pipelines.tasks.text_to_image.image_codes.vqgan_codec import CONFIG_NAME, WEIGHTS_NAME, VQGANCodec

    if not Path(place).is_dir() and is_repository_name(str(place)):
        config = fetch_file(str(place), CONFIG_NAME, revision=revision)
        fetch_file(str(place), WEIGHTS_NAME, revision=config.parent.name, most_weights_bytes=MOST_CODEC_BYTES)
        place = config.parent
    return VQGANCodec.from_pretrained(place, device=device)
