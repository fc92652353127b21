"""Tasks of tiny runs whose batches a seed decides, without a dataset."""

import torch

from pipelines.training.run.task import Batch, TrainingTask
from pipelines.training.run.training_run import TrainingRun
from pipelines.training.tasks.choice import open_task
from pipelines.training.tasks.text_to_image.image_code_stream import image_code_batch


def made_up_task(run: TrainingRun) -> TrainingTask:
    """Return the run's task; peers are given their batches by the test, which knows the seeds."""
    return open_task(run, "test/run")


def made_up_batch(run: TrainingRun, seed: int, batch_size: int) -> Batch:
    """Return a batch that the seed decides; the image codes follow the text, so that there is something to learn."""
    generator = torch.Generator().manual_seed(seed)
    config = run.model_config
    shape = (batch_size, config["text_sequence_length"])
    input_ids = torch.randint(2, config["text_vocab_size"], shape, generator=generator)
    image_codes = (input_ids[:, :1] + torch.arange(config["image_grid_size"] ** 2)) % config["codebook_size"]
    return image_code_batch(input_ids, image_codes)


def joined(batches: list[Batch]) -> Batch:
    """Return batches as one."""
    return {name: torch.cat([batch[name] for batch in batches]) for name in batches[0]}
