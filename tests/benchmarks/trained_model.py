"""A small model of 32 x 32 codes, trained in minutes: what a guess is worth shows only on codes that mean something.

The pictures are the demo's scenes, at 512 pixels a side, in the codes of its codec, which reads pictures of any size.
"""

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from modeling_dalle_collab import DalleCollabConfig, DalleCollabForConditionalGeneration, DalleCollabProcessor
from pipelines.tasks.text_to_image.data_preparation.tokenizer_training import train_tokenizer
from pipelines.tasks.text_to_image.image_codes.vqgan_codec import VQGANCodec
from pipelines.tools.demo.scenes.scene_tars import SceneTarsConfig, scene_of
from pipelines.tools.demo.scenes.scenes import ScenesConfig
from pipelines.tools.demo.shipped_models import PRETRAINED_CODEC

IMAGE_SIZE, GRID_SIZE, TEXT_LENGTH = 512, 32, 16
NUM_PICTURES, NUM_HELD_OUT, BATCH_SIZE, NUM_STEPS = 1600, 64, 4, 400
MODEL = dict(
    text_vocab_size=256, text_sequence_length=TEXT_LENGTH, image_grid_size=GRID_SIZE, hidden_size=128,
    num_hidden_layers=6, num_attention_heads=4, head_dim=32, attention_pattern=["row", "column"],
    feed_forward_multiplier=2, recompute="none", caption_dropout=0.1,
)  # fmt: skip
"""The demo's model, on longer sequences, and taught to be guided."""


def records(num_pictures: int) -> tuple[Tensor, Tensor]:
    """Return captions (picture, text) and codes (picture, image), int64."""
    config = SceneTarsConfig(dirt_shares={}, scenes=ScenesConfig(image_size=IMAGE_SIZE))
    codec = VQGANCodec.from_pretrained(PRETRAINED_CODEC).eval()
    codec.config = dataclasses.replace(codec.config, image_size=IMAGE_SIZE)
    captions, codes = [], []
    for index in range(num_pictures):
        caption, picture = scene_of(index, config)
        captions.append(caption)
        pixels = torch.from_numpy(np.array(picture)).permute(2, 0, 1)[None]  # (1, 3, height, width)
        codes.append(codec.encode(pixels.float() / 255))
    processor = DalleCollabProcessor(train_tokenizer(iter(captions), 256), text_sequence_length=TEXT_LENGTH)
    return torch.as_tensor(processor(captions)["input_ids"]), torch.cat(codes)


def trained_model(
    folder: Path, log: Callable[[str], None]
) -> tuple[DalleCollabForConditionalGeneration, Tensor, Tensor]:
    """Return a model, held-out captions and their codes, trained once and kept in the folder."""
    kept = folder / "scenes.pt"
    if not kept.exists():
        text, codes = records(NUM_HELD_OUT + NUM_PICTURES)
        model = _train(text[NUM_HELD_OUT:], codes[NUM_HELD_OUT:], log)
        folder.mkdir(parents=True, exist_ok=True)
        torch.save(dict(weights=model.state_dict(), text=text[:NUM_HELD_OUT], codes=codes[:NUM_HELD_OUT]), kept)
    found = torch.load(kept, weights_only=True)
    model = _new_model()
    model.load_state_dict(found["weights"])
    return model.eval(), found["text"], found["codes"]


def _new_model() -> DalleCollabForConditionalGeneration:
    torch.manual_seed(0)
    return DalleCollabForConditionalGeneration(DalleCollabConfig(codebook_size=1024, **MODEL))


def _train(text: Tensor, codes: Tensor, log: Callable[[str], None]) -> DalleCollabForConditionalGeneration:
    model, batches = _new_model().train(), _batches(len(text))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=NUM_STEPS, pct_start=0.1)
    for step in range(NUM_STEPS):
        chosen = next(batches)
        output = model(text[chosen], codes[chosen], return_logits=False)
        output.loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % 50 == 49:
            log(f"training on scenes: step {step + 1} of {NUM_STEPS}, {output.image_loss.item():.3f} nats a code")
    return model


def _batches(num_records: int) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(0)
    while True:
        yield torch.randint(num_records, (BATCH_SIZE,), generator=generator)
