"""Which task a run trains: one row for each. The names are the Hub's pipeline tags."""

from collections.abc import Callable

from pipelines.training.run.task import TrainingTask
from pipelines.training.run.training_run import TrainingRun


def _text_to_image(run: TrainingRun, place: str, revision: str | None) -> TrainingTask:
    from pipelines.training.tasks.text_to_image.task import TextToImageTask

    return TextToImageTask(run, place, revision)


def _language_modeling(run: TrainingRun, place: str, revision: str | None) -> TrainingTask:
    from pipelines.training.tasks.language_modeling.task import LanguageModelingTask

    return LanguageModelingTask(run, place, revision)


TASKS: dict[str, Callable[[TrainingRun, str, str | None], TrainingTask]] = {
    "text-to-image": _text_to_image,
    "fill-mask": _language_modeling,
    "text-generation": _language_modeling,
}
"""What makes each task; a task's own libraries are imported when a run asks for it."""


def open_task(run: TrainingRun, place: str, revision: str | None = None) -> TrainingTask:
    """Return the run's task; `place` is the run's repository, or a folder with its files. Nothing is read yet.

    `revision` is the repository's commit from which the run was read; None: the newest one, and for a folder.

    Raises:
        ValueError: this package does not know the task.
    """
    if run.task not in TASKS:
        raise ValueError(
            f"{place} trains the task {run.task!r}; this package knows {', '.join(TASKS)}. "
            "Update it: pip install -U dalle-collab"
        )
    return TASKS[run.task](run, place, revision)
