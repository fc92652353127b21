"""Which task a run trains: one row for each. The names are the Hub's pipeline tags."""

from collections.abc import Callable
from dataclasses import dataclass

from pipelines.core.run.training_run import TrainingRun
from pipelines.features.publishing.publishable_task import Processor, PublishableTask, RunRequest
from pipelines.tasks.setting_list import Setting, settings_of_runs


@dataclass(frozen=True, kw_only=True)
class TaskKind:
    """How a task is created; its own libraries are imported on demand."""

    open: Callable[[TrainingRun, str, str | None], PublishableTask]
    """Returns the task of a run, from its repository or folder and a commit."""

    compose: Callable[[RunRequest], tuple[TrainingRun, Processor]]
    """Returns a new run whose parts match, with its processor; raises ValueError if they do not."""

    settings: Callable[[str | None], list[Setting]]
    """Returns the task's own settings, and those of a `model_type` where the task has several."""


def _text_to_image() -> TaskKind:
    from pipelines.tasks.text_to_image.model import listed_settings
    from pipelines.tasks.text_to_image.run_creation import compose
    from pipelines.tasks.text_to_image.task import TextToImageTask

    return TaskKind(open=TextToImageTask, compose=compose, settings=listed_settings)


def _language_modeling() -> TaskKind:
    from pipelines.tasks.language_modeling.model import listed_settings
    from pipelines.tasks.language_modeling.run_creation import compose
    from pipelines.tasks.language_modeling.task import LanguageModelingTask

    return TaskKind(open=LanguageModelingTask, compose=compose, settings=listed_settings)


TASKS: dict[str, Callable[[], TaskKind]] = {
    "text-to-image": _text_to_image,
    "fill-mask": _language_modeling,
    "text-generation": _language_modeling,
}


def open_task(run: TrainingRun, place: str, revision: str | None = None) -> PublishableTask:
    """Return the run's task; `place` is the run's repository, or a folder with its files. Nothing is read yet.

    `revision` is the repository's commit from which the run was read; None: the newest one, and for a folder.

    Raises:
        ValueError: this package does not know the task.
    """
    return _kind(run.task, f"{place} trains").open(run, place, revision)


def compose_run(request: RunRequest) -> tuple[TrainingRun, Processor]:
    """Return a new run whose dataset, processor and model match, and its processor.

    Raises:
        ValueError: the task or a setting is unknown, or parts do not match.
    """
    return _kind(request.task, "The new run has").compose(request)


def settings_of(task: str, model_type: str | None = None) -> list[Setting]:
    """Return what an organiser can choose for a run of this task, and for a model of one of transformers' types.

    Raises:
        ValueError: there is no such task or type.
    """
    return settings_of_runs() + _kind(task, "You ask about").settings(model_type)


def _kind(task: str, who: str) -> TaskKind:
    if task not in TASKS:
        raise ValueError(
            f"{who} the task {task!r}; this package knows {', '.join(TASKS)}. "
            "A newer one may know it: pip install -U dalle-collab"
        )
    return TASKS[task]()
