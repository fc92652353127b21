"""What a peer of a run trains: the model's sizes, and the settings that the run decides."""

from modeling_dalle_collab import DalleCollabConfig
from pipelines.core.run.training_run import TrainingRun
from pipelines.features.memory_estimate.model_presets import ModelSizes
from pipelines.features.memory_estimate.settings import MemorySettings


def run_sizes(run: TrainingRun) -> ModelSizes:
    """Return the sizes of a run's model."""
    values = {name: value for name, value in run.model_config.items() if name != "recompute"}
    return ModelSizes.of({"model_type": DalleCollabConfig.model_type} | values)


def run_settings(run: TrainingRun, **own: object) -> MemorySettings:
    """Return the settings of a step of a peer of the run; `own` is what the peer chooses, and goes before the run's.

    Raises ValueError for settings that there are not.
    """
    ours = {} if "model_type" in run.model_config else dict(recompute=DalleCollabConfig().recompute)
    if "recompute" in run.model_config:
        ours = dict(recompute=run.model_config["recompute"])
    decided: dict[str, object] = dict(
        **ours,
        sequence_length=run.task_settings.get("sequence_length"),
        optimizer=run.stepping_optimizer,
        optimizer_bits=run.optimizer_bits,
        collaborative=True,
        local_steps=run.local_steps > 1,
        outer_momentum=run.outer_momentum > 0,
        sparse=run.synchronisation == "sparse",
        delays_averaging=run.delay_gradient_averaging,
    )
    return MemorySettings(**decided | own)  # type: ignore[arg-type]
