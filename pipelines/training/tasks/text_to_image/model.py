"""The model of a text-to-image run, and its processor."""

import torch

from modeling_dalle_collab import DalleCollabConfig, DalleCollabForConditionalGeneration, DalleCollabProcessor
from pipelines.training.run.training_run import TrainingRun, stable_seed


def initial_model(run: TrainingRun) -> DalleCollabForConditionalGeneration:
    """Return the model with the initial parameters that the run's seed decides, equal on all peers."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stable_seed(run.run_id, run.seed) % 2**63)
        return DalleCollabForConditionalGeneration(model_configuration(run))


def read_processor(repository: str, revision: str) -> DalleCollabProcessor:
    """Download the run's tokenizer and processor as of one commit."""
    return DalleCollabProcessor.from_pretrained(repository, revision=revision)


def model_configuration(run: TrainingRun) -> DalleCollabConfig:
    """Return the model's sizes; raises ValueError if they cannot work."""
    return DalleCollabConfig(**run.model_config)
