"""Two small runs for a simulated swarm, with the demos' own data: pictures of scenes, and text of Python's manuals."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch

from modeling_dalle_collab import DalleCollabProcessor
from pipelines.core.run.task import Batch, TrainingTask, num_samples
from pipelines.core.run.training_run import TrainingRun, stable_seed
from pipelines.tasks.choice import open_task
from pipelines.tasks.language_modeling.samples import packed_samples, to_batch
from pipelines.tasks.language_modeling.settings import LanguageSettings
from pipelines.tasks.streaming import is_held_out
from pipelines.tasks.text_to_image.data_preparation.tokenizer_training import train_tokenizer
from pipelines.tasks.text_to_image.image_code_stream import image_code_batch
from pipelines.tasks.text_to_image.image_codes.vqgan_codec import VQGANCodec
from pipelines.tools.demo.language.text import HELD_OUT_SHARE, documents
from pipelines.tools.demo.language.tokenizer import train_text_tokenizer
from pipelines.tools.demo.scenes.scene_tars import SceneTarsConfig, scene_of
from pipelines.tools.demo.scenes_demo import RUN_SETTINGS as SCENES
from pipelines.tools.demo.shipped_models import PRETRAINED_CODEC

NUM_PICTURES, NUM_HELD_OUT = 12_000, 512
ENCODED_AT_ONCE, EVALUATED_AT_ONCE = 64, 64
SEQUENCE_LENGTH, VOCABULARY_SIZE = 64, 512

SMALL_PICTURES: Mapping[str, Any] = dict(
    hidden_size=48, num_hidden_layers=4, num_attention_heads=3, head_dim=16, attention_pattern=["row", "column"],
    feed_forward_multiplier=2, recompute="none",
)  # fmt: skip
SMALL_LANGUAGE: Mapping[str, Any] = dict(
    model_type="gpt2", n_embd=64, n_layer=2, n_head=4, n_positions=SEQUENCE_LENGTH, vocab_size=VOCABULARY_SIZE,
    resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=1, eos_token_id=1,
)  # fmt: skip
DEMO_PICTURES = {name: SCENES[name] for name in SMALL_PICTURES}
"""The demo's model."""


@dataclass(frozen=True, kw_only=True)
class Material:
    """The records of a run, and how it is set up."""

    name: str
    train: Batch
    held_out: Batch
    sample_weight: int
    """What a record weighs in the run's unit."""

    settings: Mapping[str, Any]

    def task(self, *, batch_size: int, **changes: Any) -> TrainingTask:
        """Return the task of a run whose optimizer steps have `batch_size` records."""
        settings = dict(self.settings, target_batch_size=batch_size * self.sample_weight)
        return open_task(TrainingRun(**(settings | changes)), "simulated")

    def batches(self, seed: int, num_records: int) -> Iterator[Batch]:
        """Yield batches of this many records, drawn by the seed, for ever."""
        generator = torch.Generator().manual_seed(stable_seed("batches", seed) % 2**63)
        while True:
            drawn = torch.randint(num_samples(self.train), (num_records,), generator=generator)
            yield {name: tensor[drawn] for name, tensor in self.train.items()}

    def held_out_batches(self) -> list[Batch]:
        """Return the records of the evaluation."""
        pieces = {name: tensor.split(EVALUATED_AT_ONCE) for name, tensor in self.held_out.items()}
        return [dict(zip(pieces, piece, strict=True)) for piece in zip(*pieces.values(), strict=True)]


@cache
def pictures(num_pictures: int = NUM_PICTURES) -> Material:
    """Return scenes of one shape or two and their captions, as the demo has them, in the codes of its codec."""
    config = SceneTarsConfig(dirt_shares={})
    codec, captions, codes = VQGANCodec.from_pretrained(PRETRAINED_CODEC).eval(), [], []
    total = num_pictures + NUM_HELD_OUT
    for start in range(0, total, ENCODED_AT_ONCE):
        scenes = [scene_of(index, config) for index in range(start, min(total, start + ENCODED_AT_ONCE))]
        captions += [caption for caption, _ in scenes]
        pixels = torch.from_numpy(np.stack([np.asarray(picture) for _, picture in scenes]))
        codes.append(codec.encode(pixels.permute(0, 3, 1, 2).float() / 255))
    processor = DalleCollabProcessor(
        train_tokenizer(iter(captions), 256), text_sequence_length=SCENES["text_sequence_length"]
    )
    batch = image_code_batch(torch.as_tensor(processor(captions)["input_ids"]), torch.cat(codes))
    model = dict(
        SMALL_PICTURES, text_vocab_size=256, codebook_size=codec.config.codebook_size,
        image_grid_size=codec.config.grid_size, text_sequence_length=SCENES["text_sequence_length"],
    )  # fmt: skip
    return Material(
        name="pictures",
        train={name: tensor[NUM_HELD_OUT:] for name, tensor in batch.items()},
        held_out={name: tensor[:NUM_HELD_OUT] for name, tensor in batch.items()},
        sample_weight=1,
        settings=dict(task="text-to-image", model_config=model, **_settings("pictures")),
    )


@cache
def language() -> Material:
    """Return the text of the language demo, cut into sequences for a small GPT-2."""
    train, held_out = [], []
    for text in documents():
        (held_out if is_held_out(text.encode(), HELD_OUT_SHARE) else train).append(text)
    tokenizer = train_text_tokenizer(train, VOCABULARY_SIZE, fills_masks=False, sequence_length=SEQUENCE_LENGTH)
    settings = LanguageSettings(sequence_length=SEQUENCE_LENGTH)

    def whole_sequences(texts: list[str]) -> Batch:
        samples = packed_samples(texts, tokenizer, settings)
        return to_batch([sample for sample in samples if len(sample["input_ids"]) == SEQUENCE_LENGTH], tokenizer)

    return Material(
        name="language",
        train=whole_sequences(train),
        held_out={name: tensor[:NUM_HELD_OUT] for name, tensor in whole_sequences(held_out).items()},
        sample_weight=SEQUENCE_LENGTH - 1,
        settings=dict(
            task="text-generation", model_config=dict(SMALL_LANGUAGE),
            task_settings=dict(sequence_length=SEQUENCE_LENGTH), **_settings("language"),
        ),
    )  # fmt: skip


def _settings(name: str) -> dict[str, Any]:
    """Return the settings of all simulated runs; tensors of the sizes that the demo sends in 8 bits are, here too."""
    return dict(
        run_id=f"simulated-{name}", dataset_repository="made/here", dataset_revision="none",
        peak_learning_rate=0.02, weight_decay=SCENES["weight_decay"],
        min_8bit_elements=SCENES["min_8bit_elements"],
    )  # fmt: skip


MATERIALS: Mapping[str, Callable[[], Material]] = dict(pictures=pictures, language=language)
