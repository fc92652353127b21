"""A tiny model that has learnt a few of the demo's scenes by their captions, and what it is measured with."""

import copy

import numpy as np
import pytest
import torch

from modeling_dalle_collab import DalleCollabConfig, DalleCollabForConditionalGeneration, DalleCollabProcessor
from pipelines.features.evaluation.checkpoint_evaluation import EvaluationReferences, Records
from pipelines.features.evaluation.features import ClipFeatures
from pipelines.tasks.text_to_image.clip.clip_folder import train_clip_tokenizer
from pipelines.tasks.text_to_image.clip.clip_reranking import ClipReranker
from pipelines.tasks.text_to_image.generation.image_generation import DrawingContext
from pipelines.tasks.text_to_image.image_codes.vqgan_codec import VQGANCodec
from pipelines.tools.demo.scenes.scene_captions import caption_of
from pipelines.tools.demo.scenes.scenes import held_out_scenes, render_scene, scene_random
from pipelines.tools.demo.shipped_models import PRETRAINED_CLIP, PRETRAINED_CODEC

NUM_SCENES, PICTURES_OF_A_SCENE, SIDE = 8, 6, 128


def drawn_scenes(seed):
    """Captions and pictures, `(picture, 3, side, side)` uint8, of a few scenes, each drawn several times."""
    captions, pictures = [], []
    for number, scene in enumerate([*held_out_scenes(NUM_SCENES)] * PICTURES_OF_A_SCENE):
        picture = render_scene(scene, scene_random(seed, number))
        captions.append(caption_of(scene, 0))
        pictures.append(torch.from_numpy(np.asarray(picture).copy()).permute(2, 0, 1))
    return captions, torch.stack(pictures)


def made_records(codec, seed):
    captions, pictures = drawn_scenes(seed)
    return Records(captions=captions, image_codes=codec.encode(pictures.float() / 255))


@pytest.fixture(scope="session")
def codec():
    return VQGANCodec.from_pretrained(PRETRAINED_CODEC)


@pytest.fixture(scope="session")
def trained(codec):
    """A tiny model that has learnt the scenes by their captions."""
    records = made_records(codec, 1)
    tokenizer = train_clip_tokenizer(records.captions, 300)
    processor = DalleCollabProcessor(tokenizer, text_sequence_length=16)
    torch.manual_seed(2)
    model = DalleCollabForConditionalGeneration(
        DalleCollabConfig(
            text_vocab_size=len(tokenizer), codebook_size=1024, text_sequence_length=16, image_grid_size=8,
            hidden_size=64, num_hidden_layers=3, attention_pattern=("row", "column"), num_attention_heads=2,
            head_dim=32, conv_kernel_size=3,
        )
    )  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    input_ids = torch.as_tensor(processor(text=list(records.captions))["input_ids"])
    for _ in range(100):
        model(input_ids=input_ids, image_codes=records.image_codes, return_logits=False).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return DrawingContext(name="org/trained", model=model.eval(), processor=processor, codec=codec)


@pytest.fixture(scope="session")
def parts(trained):
    return trained


@pytest.fixture(scope="session")
def references(codec):
    clip = ClipReranker.from_pretrained(PRETRAINED_CLIP)
    return EvaluationReferences(
        lpips=None,
        judge=None,
        held_out=made_records(codec, 2),
        training=made_records(codec, 1),
        clip=clip,
        extractors=(ClipFeatures(clip),),
        originals=drawn_scenes(2)[1],
    )


@pytest.fixture(scope="session")
def with_noise(parts):
    """Return the same model with noise in its weights: this share of each tensor's own spread."""

    def noisy(share):
        model = copy.deepcopy(parts.model)
        generator = torch.Generator().manual_seed(3)
        with torch.no_grad():
            for tensor in model.parameters():
                if tensor.numel() > 1:
                    tensor.add_(torch.randn(tensor.shape, generator=generator) * tensor.std() * share)
        return DrawingContext(name=f"noise {share}", model=model, processor=parts.processor, codec=parts.codec)

    return noisy
