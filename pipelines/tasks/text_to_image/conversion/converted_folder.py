"""Turns a dalle-pytorch checkpoint into a folder for the Hub: weights, configuration, code, tokenizer and a card."""

import hashlib
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hub_tools.printing.marked_up import code, plain

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase, ProcessorMixin

    from modeling_dalle_collab import DalleCollabConfig, DalleCollabProcessor
    from pipelines.tasks.text_to_image.conversion.checkpoint_sizes import UnseenSettings
    from pipelines.tasks.text_to_image.conversion.dalle_pytorch_checkpoint import DallePytorchCheckpoint


@dataclass(frozen=True, kw_only=True)
class Conversion:
    """What was converted, for the card and for messages."""

    source_name: str
    """Name of the checkpoint's file."""
    source_sha256: str
    """Digest of the checkpoint's file."""
    layout: str
    """Description of the layout of the tensors' names."""
    num_codec_tensors: int
    """Tensors of the codec that were left out."""
    num_parameters: int
    """Parameters of the model, shared ones counted once."""
    config: "DalleCollabConfig"
    """Sizes of the model."""
    has_processor: bool
    """Whether tokenizer and processor are in the folder."""


def require_paths(checkpoint: Path, output: Path) -> None:
    """Raise ValueError unless the checkpoint is a file and the output folder is new or empty."""
    if not checkpoint.is_file():
        raise ValueError(f"There is no file {checkpoint}, expected a checkpoint: .pt, .ckpt, .safetensors or the like.")
    if output.exists() and not (output.is_dir() and not any(output.iterdir())):
        raise ValueError(f"{output} already exists, expected a new or an empty folder. Give another --output.")


def convert_checkpoint(
    path: Path,
    output: Path,
    unseen: "UnseenSettings",
    *,
    tokenizer: "PreTrainedTokenizerBase | None" = None,
    on_stage: Callable[[str], None] = lambda stage: None,
) -> Conversion:
    """Write the model in `path` to the new folder `output`, atomically, and return a description.

    Raises ValueError for a file that is not a dalle-pytorch checkpoint, for a model that ours cannot express, for a
    tokenizer of another size, and if `output` is not empty.
    """
    from pipelines.tasks.text_to_image.conversion.checkpoint_sizes import infer_config
    from pipelines.tasks.text_to_image.conversion.dalle_pytorch_checkpoint import DallePytorchCheckpoint, build_model

    require_paths(path, output)
    output = output.resolve()
    on_stage(f"reading {path.name}")
    checkpoint = DallePytorchCheckpoint.read(path)
    on_stage(f"comparing {checkpoint.num_layers} layers")
    config = infer_config(checkpoint, unseen)
    processor = None if tokenizer is None else _processor(tokenizer, config)
    on_stage("converting")
    model = build_model(checkpoint, config)
    conversion = _describe(path, checkpoint, config, model.num_parameters(), has_processor=processor is not None)
    on_stage(f"writing {output}")
    _write(output, [model, *([processor] if processor else [])], model_card(output.name, conversion))
    return conversion


def _write(output: Path, parts: "list[PreTrainedModel | ProcessorMixin]", card: str) -> None:
    from safetensors import SafetensorError

    from pipelines.tasks.text_to_image.image_codes.codec_code import copy_codec_code

    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output.parent, prefix=f".{output.name}.") as temporary:
        folder = Path(temporary) / output.name
        try:
            for part in parts:
                part.save_pretrained(folder)
            copy_codec_code(folder)
        except SafetensorError as error:
            raise OSError(
                f"{output} cannot be written ({error}). Is there room for the model? Choose --output."
            ) from error
        (folder / "README.md").write_text(card, encoding="utf-8")
        folder.rename(output)


def _processor(tokenizer: "PreTrainedTokenizerBase", config: "DalleCollabConfig") -> "DalleCollabProcessor":
    from modeling_dalle_collab import DalleCollabProcessor

    if len(tokenizer) != config.text_vocab_size:
        raise ValueError(
            f"The tokenizer has {len(tokenizer)} pieces, expected {config.text_vocab_size}: the checkpoint's "
            f"{config.vocab_size} ids without {config.text_sequence_length} padding ids and {config.codebook_size} "
            "image codes. Give the tokenizer the model was trained with, or another --codebook-size."
        )
    return DalleCollabProcessor(
        tokenizer, text_sequence_length=config.text_sequence_length, pad_token_id=config.pad_token_id
    )


def _describe(
    path: Path,
    checkpoint: "DallePytorchCheckpoint",
    config: "DalleCollabConfig",
    num_parameters: int,
    *,
    has_processor: bool,
) -> Conversion:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return Conversion(
        source_name=path.name,
        source_sha256=digest,
        layout=checkpoint.layout.title,
        num_codec_tensors=checkpoint.num_codec_tensors,
        num_parameters=num_parameters,
        config=config,
        has_processor=has_processor,
    )


WINDOWS = {
    "centred": "centred on the query, as in the original run and dalle-pytorch up to 1.4.2",
    "corner": "ending at the query, as in dalle-pytorch from 1.5.0 on",
}


def model_card(name: str, conversion: Conversion) -> str:
    """Return the text of the folder's README.md."""
    config = conversion.config
    text, image = config.text_sequence_length, f"{config.image_grid_size} x {config.image_grid_size}"
    kinds = f"{', '.join(config.attention_pattern)}; the last layer {config.final_attention}"
    return f"""---
library_name: transformers
pipeline_tag: text-to-image
tags: [dalle-collab, dalle]
---

# {plain(name)}

A text-to-image transformer, converted from a checkpoint of {conversion.layout} by `dalle-collab model convert`.

| | |
|---|---|
| source | {code(conversion.source_name)} |
| SHA-256 of the source | `{conversion.source_sha256}` |
| parameters | {conversion.num_parameters:,}, in float32 |
| layers | {config.num_hidden_layers}, with {config.num_shared_groups} sets of attention and feed-forward weights |
| width | {config.hidden_size}, {config.num_attention_heads} heads of {config.head_dim} |
| vocabulary | {config.text_vocab_size:,} text pieces, {config.codebook_size:,} image codes |
| sequence | {text} text tokens, {image} image codes |
| attention | {kinds} |
| convolutional window | side {config.conv_kernel_size}, {WINDOWS[config.conv_window]} |
| padding of captions | text id {config.pad_token_id} |

## Draw

`trust_remote_code=True` runs the code in this repository: read it first. With the repository's name, or this folder:

{_example(conversion.has_processor)}
Image codes become pictures with the codec that the model was trained with, which is not in this repository.

## Limits

- The tensors do not show the number of image codes, the kinds of attention, the window and the padding id. They were
  in the checkpoint's `hparams`, given to the converter, or are those of the original run. If one is wrong, the model
  draws noise.
- The model knows what its training data shows and no more; it repeats the data's biases.
{_left_out(conversion.num_codec_tensors)}"""


def _example(has_processor: bool) -> str:
    if has_processor:
        return """```python
from transformers import AutoModel, AutoProcessor

model = AutoModel.from_pretrained("ORG/NAME", trust_remote_code=True)
processor = AutoProcessor.from_pretrained("ORG/NAME", trust_remote_code=True)
image_codes = model.generate_image_codes(**processor(text=["a caption"]), num_candidates=4)
```

```bash
dalle-collab generate ORG/NAME "a caption" --codec CODEC --candidates 128 --keep 4
```
"""
    return """```python
from transformers import AutoModel

model = AutoModel.from_pretrained("ORG/NAME", trust_remote_code=True)
image_codes = model.generate_image_codes(input_ids, num_candidates=4)
```

`input_ids` are captions in the ids of the tokenizer that the model was trained with, padded with the padding id.
"""


def _left_out(num_codec_tensors: int) -> str:
    return f"- {num_codec_tensors} tensors of a codec (`vae.*`) were left out.\n" if num_codec_tensors else ""
