"""Write a small CLIP and its tokenizer as an open_clip folder that open_clip, the Hub and `ClipReranker` read."""

import json
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from pipelines.tasks.text_to_image.clip.clip_reranking import CLIP_CONFIG_FILE, CLIP_WEIGHTS_FILE

PAD_TOKEN, EOS_TOKEN = "<pad>", "</s>"
PAD_ID, EOS_ID = 0, 1
MIN_VOCABULARY = 258
"""256 bytes, padding and end: with fewer entries some prompts could not be encoded."""


def train_clip_tokenizer(captions: Iterable[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """Return a lower-casing byte-level BPE tokenizer that ends every caption with `</s>`, where the CLIP is read."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[PAD_TOKEN, EOS_TOKEN],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(captions, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {EOS_TOKEN}", special_tokens=[(EOS_TOKEN, EOS_ID)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=PAD_TOKEN, eos_token=EOS_TOKEN)


def save_clip_folder(
    output: Path,
    model: torch.nn.Module,
    tokenizer: PreTrainedTokenizerFast,
    *,
    model_config: dict,
    preprocess: dict,
    weights_dtype: torch.dtype = torch.float16,
) -> int:
    """Write the folder atomically and return the bytes of its weights; an older CLIP there is replaced."""
    require_replaceable(output)
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output.parent, prefix=f".{output.name}-") as temporary:
        folder = Path(temporary) / "clip"
        tokenizer.save_pretrained(folder)
        config = {"model_cfg": model_config, "preprocess_cfg": preprocess}
        (folder / CLIP_CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        save_file(_stored(model.state_dict(), weights_dtype), folder / CLIP_WEIGHTS_FILE)
        num_bytes = (folder / CLIP_WEIGHTS_FILE).stat().st_size
        _swap(folder, output, Path(temporary) / "old")
    return num_bytes


def require_replaceable(output: Path) -> None:
    """Raise FileExistsError if writing the folder would destroy something that is not a CLIP."""
    if not output.exists() or (output / CLIP_CONFIG_FILE).is_file():
        return
    if not output.is_dir() or any(output.iterdir()):
        raise FileExistsError(f"{output} exists and is not a CLIP folder. Choose another --output or remove it.")


def _stored(state: dict[str, torch.Tensor], dtype: torch.dtype) -> dict[str, torch.Tensor]:
    return {
        name: (tensor.to(dtype) if tensor.is_floating_point() else tensor).contiguous().cpu()
        for name, tensor in state.items()
    }


def _swap(new: Path, output: Path, old: Path) -> None:
    if output.exists():
        output.rename(old)
    try:
        new.rename(output)
    except OSError:
        if old.exists():
            old.rename(output)
        raise
    shutil.rmtree(old, ignore_errors=True)
