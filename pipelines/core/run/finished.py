"""A run that is over."""

from pipelines.core.run.training_run import TrainingRun


class RunFinishedError(ValueError):
    """The run has reached its last epoch; there is nothing left to train."""


def finished_message(run: TrainingRun, place: str) -> str:
    """Return the error that a run, which is in this repository, is over, with what to do next."""
    place = place or "ORG/RUN"
    draws = f"Draw pictures with: dalle-collab generate {place} 'a caption'"
    return (
        f"Training run {run.run_id} is finished: it has reached its last epoch, {run.num_epochs}. "
        f"{draws if run.task == 'text-to-image' else f'Measure it with: dalle-collab evaluate {place}'}; or create a "
        "new run with: dalle-collab run create"
    )
