"""A tiny model that has learned something: what honest rounding is worth shows only where codes are not all alike."""

import torch

from modeling_dalle_collab import DalleCollabConfig, DalleCollabForConditionalGeneration

TEXT_IDS, NUM_CODES, GRID, TEXT_LENGTH = 32, 64, 8, 8
NUM_STEPS, BATCH_SIZE = 120, 16


def captions_and_codes(number: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Return captions, (picture, text), and codes that they decide up to noise, (picture, image); both int64."""
    text = torch.randint(2, TEXT_IDS, (number, TEXT_LENGTH), generator=generator)
    down, right = torch.arange(GRID)[:, None], torch.arange(GRID)
    slope = (text[:, 1, None, None] * down + text[:, 2, None, None] * right) // 4
    noise = torch.randint(0, 5, (number, GRID, GRID), generator=generator)
    return text, ((2 * text[:, 0, None, None] + slope + noise) % NUM_CODES).flatten(1)


def learned_model() -> DalleCollabForConditionalGeneration:
    """Return the model after some training, which takes seconds; always the same one on one machine."""
    torch.manual_seed(0)
    config = DalleCollabConfig(
        text_vocab_size=TEXT_IDS,
        codebook_size=NUM_CODES,
        text_sequence_length=TEXT_LENGTH,
        image_grid_size=GRID,
        hidden_size=64,
        num_hidden_layers=4,
        attention_pattern=("row", "column"),
        num_attention_heads=4,
        head_dim=16,
        conv_kernel_size=3,
    )
    model, generator = DalleCollabForConditionalGeneration(config).train(), torch.Generator().manual_seed(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(NUM_STEPS):
        text, codes = captions_and_codes(BATCH_SIZE, generator)
        model(text, codes, return_logits=False).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return model.eval()
