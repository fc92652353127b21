"""Tasks of tiny runs whose batches a seed decides, without a dataset."""

import torch
from model_task import ModelTask
from torch.nn.functional import pad

from pipelines.core.run.task import Batch, TrainingTask
from pipelines.core.run.training_run import TrainingRun
from pipelines.tasks.language_modeling.samples import IGNORED
from pipelines.tasks.text_to_image.image_code_stream import image_code_batch

PADDING = {"input_ids": 0, "attention_mask": 0, "labels": IGNORED}
SHORTEST_TEXT = 8
MASKED_EVERY = 4
MASK = 4


def made_up_task(run: TrainingRun) -> TrainingTask:
    """Return the run's task; peers are given their batches by the test, which knows the seeds."""
    if run.task == "text-to-image":
        return ModelTask(run)
    from pipelines.tasks.choice import open_task

    task = open_task(run, "test/run")
    task.blocks = None  # whether a text has any is up to the files of its dataset, of which there is none
    return task


def made_up_batch(run: TrainingRun, seed: int, batch_size: int) -> Batch:
    """Return a batch that the seed decides, in which there is something to learn."""
    generator = torch.Generator().manual_seed(seed)
    return MADE_UP[run.task](run, batch_size, generator)


def joined(batches: list[Batch]) -> Batch:
    """Return batches as one, padded to the longest."""
    width = {name: max(batch[name].shape[1] for batch in batches) for name in batches[0]}
    return {
        name: torch.cat(
            [pad(b[name], (0, width[name] - b[name].shape[1]), value=PADDING.get(name, 0)) for b in batches]
        )
        for name in batches[0]
    }


def _pictures(run: TrainingRun, batch_size: int, generator: torch.Generator) -> Batch:
    """Image codes that follow the text."""
    config = run.model_config
    shape = (batch_size, config["text_sequence_length"])
    input_ids = torch.randint(2, config["text_vocab_size"], shape, generator=generator)
    image_codes = (input_ids[:, :1] + torch.arange(config["image_grid_size"] ** 2)) % config["codebook_size"]
    return image_code_batch(input_ids, image_codes)


def _texts(run: TrainingRun, batch_size: int, generator: torch.Generator) -> Batch:
    """Texts of unlike lengths in which each token follows from the one before it, raggedly padded."""
    length, size = run.task_settings["sequence_length"], run.model_config["vocab_size"]
    rows = []
    for _ in range(batch_size):
        own, first = (
            torch.randint(low, high, (1,), generator=generator) for low, high in ((SHORTEST_TEXT, length), (5, size))
        )
        input_ids = 5 + (first + torch.arange(own.item())) % (size - 5)
        rows.append({"input_ids": input_ids, "attention_mask": torch.ones_like(input_ids), "labels": input_ids.clone()})
        if run.task == "fill-mask":
            hidden = torch.arange(own.item()) % MASKED_EVERY == first.item() % MASKED_EVERY
            rows[-1]["input_ids"] = input_ids.masked_fill(hidden, MASK)
            rows[-1]["labels"] = input_ids.masked_fill(~hidden, IGNORED)
    return joined([{name: tensor[None] for name, tensor in row.items()} for row in rows])


MADE_UP = {"text-to-image": _pictures, "fill-mask": _texts, "text-generation": _texts}
"""What makes a batch of each task."""
