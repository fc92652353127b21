"""The contrastive loss of a CLIP, the batches it sees, the steps, and how well captions find their pictures.

Axis names: `batch` pairs of a picture and its caption, `embedding`, `text` tokens of a caption.
"""

import math
from collections.abc import Iterator

import torch
from torch.nn import functional
from transformers import PreTrainedTokenizerBase

from hub_tools.printing.stage_progress import OnProgress
from pipelines.tasks.text_to_image.clip.clip_pictures import CaptionedPictures
from pipelines.tasks.text_to_image.clip.clip_reranking import prepare_pictures

LUCK = 0.025  # of an interval of 95 % this is what lies above it
MAX_LOGIT_SCALE = math.log(100)  # Radford et al. 2021, section 2.5: larger scales make training unstable


def contrastive_loss(
    image_embeddings: torch.Tensor, text_embeddings: torch.Tensor, logit_scale: torch.Tensor, input_ids: torch.Tensor
) -> torch.Tensor:
    """Return the mean cross-entropy, in nats, of finding the caption of each picture and the picture of each caption.

    `image_embeddings, text_embeddings: (batch, embedding)` of unit length, `input_ids: (batch, text)` the tokens of the
    captions. A pair with the same caption as another is not a negative for it: both answers are right.
    """
    logits = logit_scale * image_embeddings @ text_embeddings.T  # (batch of pictures, batch of captions)
    is_same = (input_ids[:, None] == input_ids[None]).all(dim=-1)
    is_same.fill_diagonal_(False)
    logits = logits.masked_fill(is_same, float("-inf"))
    own = torch.arange(len(logits), device=logits.device)
    return (functional.cross_entropy(logits, own) + functional.cross_entropy(logits.T, own)) / 2


def clip_batches(
    data: CaptionedPictures,
    input_ids: torch.Tensor,
    *,
    batch_size: int,
    group_size: int,
    redrawn: torch.Tensor | None,
    redrawn_share: float,
    generator: torch.Generator,
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield endless shuffled batches: pictures `(batch, 3, size, size)` float in [0, 1] and tokens `(batch, text)`.

    A batch consists of groups of `group_size` pairs with similar captions, see `similar_rows`; every pair starts a
    group once per pass. With `redrawn` (same shape as the pictures), a random `redrawn_share` of a batch is taken from
    it. A set smaller than a batch gives smaller batches.
    """
    group_size = min(group_size, len(data), batch_size)
    num_groups = max(1, min(batch_size, len(data)) // group_size)
    words = word_vectors(input_ids)
    while True:
        order = torch.randperm(len(data), generator=generator)
        for first_rows in order[: len(order) // num_groups * num_groups].split(num_groups):
            rows = similar_rows(words, first_rows, group_size, generator)
            pictures = data.pictures[rows]
            if redrawn is not None:
                is_redrawn = torch.rand(len(rows), 1, 1, 1, generator=generator) < redrawn_share
                pictures = torch.where(is_redrawn, redrawn[rows], pictures)
            yield pictures.float() / 255, input_ids[rows]


def word_vectors(input_ids: torch.Tensor) -> torch.Tensor:
    """Return which tokens each caption has, `(n, text)` int64 -> `(n, vocabulary)` float32 of unit length."""
    present = torch.zeros(len(input_ids), int(input_ids.max()) + 1).scatter_(1, input_ids, 1.0)
    return functional.normalize(present, dim=1)


def similar_rows(
    words: torch.Tensor, first_rows: torch.Tensor, group_size: int, generator: torch.Generator
) -> torch.Tensor:
    """Return each first row followed by the rows whose captions share the most tokens with it; ties at random.

    `words: (n, vocabulary)`, `first_rows: (groups,)` -> `(groups * group_size,)`. To rank the candidates of one prompt,
    a CLIP must distinguish captions that differ in one word, which are rare among random captions: trained on random
    batches of scenes with five attributes, a CLIP learnt the colours and needed little of the rest.
    """
    if group_size == 1:
        return first_rows
    similarity = words[first_rows] @ words.T  # (groups, n)
    similarity += 0.05 * torch.rand(similarity.shape, generator=generator)
    similarity[torch.arange(len(first_rows)), first_rows] = torch.inf
    return similarity.topk(group_size, dim=1).indices.flatten()


def clip_steps(
    model: torch.nn.Module,
    batches: Iterator[tuple[torch.Tensor, torch.Tensor]],
    *,
    num_steps: int,
    peak_learning_rate: float,
    weight_decay: float,
    on_progress: OnProgress | None = None,
) -> tuple[list[float], bool]:
    """Do the optimizer steps; return the loss of each, in nats, and whether Ctrl-C ended them early.

    The learning rate rises during the first 10 % of the steps and falls as a cosine to zero. ValueError for a loss that
    is not finite.
    """
    optimizer = _optimizer(model, peak_learning_rate, weight_decay)
    losses: list[float] = []
    model.train()
    try:
        for step in range(num_steps):
            for group in optimizer.param_groups:
                group["lr"] = peak_learning_rate * learning_rate_factor(step, num_steps)
            losses.append(_step(model, optimizer, *next(batches)))
            if not math.isfinite(losses[-1]):
                raise ValueError(f"The loss is {losses[-1]} at step {step + 1}. Use a smaller --learning-rate.")
            if on_progress is not None:
                on_progress("training", step + 1, num_steps, f"loss {losses[-1]:.3f}")
    except KeyboardInterrupt:
        if not losses:
            raise
        return losses, True
    return losses, False


def learning_rate_factor(step: int, num_steps: int) -> float:
    """Return the share of the peak learning rate at a step: linear over the first 10 %, then a cosine to zero."""
    warm_up = max(1, num_steps // 10)
    if step < warm_up:
        return (step + 1) / warm_up
    return 0.5 * (1 + math.cos(math.pi * (step - warm_up) / max(1, num_steps - warm_up)))


@torch.inference_mode()
def retrieval_accuracy(model: torch.nn.Module, data: CaptionedPictures, input_ids: torch.Tensor) -> float:
    """Return the share of captions whose best picture among all of `data` is their own or one of the same caption."""
    model.eval()
    pictures = [
        model.encode_image(_prepared(model, batch.float() / 255), normalize=True) for batch in data.pictures.split(64)
    ]
    captions = [model.encode_text(batch, normalize=True) for batch in input_ids.split(64)]
    best = (torch.cat(captions) @ torch.cat(pictures).T).argmax(dim=1)
    return (input_ids == input_ids[best]).all(dim=1).float().mean().item()


def retrieval_by_chance(input_ids: torch.Tensor) -> float:
    """Return what `retrieval_accuracy` is on average if each caption, `(n, text)` int64, finds any picture."""
    return (input_ids[:, None] == input_ids[None]).all(dim=-1).float().mean().item()


def has_learnt(num_found: int, num_captions: int, chance: float) -> bool | None:
    """Tell whether so many captions that find their picture are more than luck; None if they are too few to tell.

    Captions that are all alike have nothing to teach: False.
    """

    def luck(least: int) -> float:
        """Return how probable at least as many are by chance."""
        shares = (chance**found * (1 - chance) ** (num_captions - found) for found in range(least, num_captions + 1))
        return sum(math.comb(num_captions, found) * share for found, share in enumerate(shares, least))

    if chance < 1 and luck(num_captions) > LUCK:
        return None
    return luck(num_found) <= LUCK


def token_ids(tokenizer: PreTrainedTokenizerBase, captions: list[str], context_length: int) -> torch.Tensor:
    """Return the captions as `(n, context_length)` int64, cut or padded, exactly as open_clip tokenizes them."""
    encoded = tokenizer(captions, max_length=context_length, padding="max_length", truncation=True, return_tensors="pt")
    return encoded.input_ids


def _step(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, pictures: torch.Tensor, input_ids: torch.Tensor
) -> float:
    image_embeddings = model.encode_image(_prepared(model, pictures), normalize=True)
    text_embeddings = model.encode_text(input_ids, normalize=True)
    loss = contrastive_loss(image_embeddings, text_embeddings, model.logit_scale.exp(), input_ids)
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    model.logit_scale.data.clamp_(0, MAX_LOGIT_SCALE)
    return loss.item()


def _prepared(model: torch.nn.Module, pictures: torch.Tensor) -> torch.Tensor:
    return prepare_pictures(pictures, model.visual.preprocess_cfg).contiguous(memory_format=torch.channels_last)


def _optimizer(model: torch.nn.Module, learning_rate: float, weight_decay: float) -> torch.optim.Optimizer:
    matrices = [parameter for parameter in model.parameters() if parameter.ndim >= 2]
    others = [parameter for parameter in model.parameters() if parameter.ndim < 2]
    groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=learning_rate, betas=(0.9, 0.98), eps=1e-6)
