"""A run that is over."""

from pipelines.core.run.training_run import TrainingRun


class RunFinishedError(ValueError):
    """The run has reached its last epoch; there is nothing left to train."""


def use_of_model(task: str, repository: str) -> tuple[str, str]:
    """Return what a person does with the model of a run that is over: in words, and as a command."""
    if task == "text-to-image":
        return "Draw with it", f"dalle-collab generate {repository} 'a caption'"
    return "Measure it", f"dalle-collab evaluate {repository}"


def finished_message(run: TrainingRun, place: str) -> str:
    """Return the error that a run, which is in this repository, is over, with what to do next."""
    words, command = use_of_model(run.task, place or "ORG/RUN")
    return (
        f"Training run {run.run_id} is over: it has reached its last epoch, {run.num_epochs}. {words}: {command}; or "
        "create a new run with: dalle-collab run create"
    )
