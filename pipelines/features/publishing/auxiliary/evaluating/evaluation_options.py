"""How an auxiliary peer evaluates the checkpoints that it publishes."""

from dataclasses import dataclass

from hub_tools.checks import check_positive
from pipelines.core.run.training_run import TASKS_THAT_COUNT_TOKENS
from pipelines.features.publishing.auxiliary.evaluating.bounded_command import LONGEST_LIMIT_SECONDS

DEVICES = ("cpu", "cuda")


@dataclass(frozen=True, kw_only=True)
class EvaluationOptions:
    """How often, how much, and on what. One evaluation runs at a time; see `bounded_command`."""

    interval_epochs: int
    """Epochs between evaluations: the first checkpoint after each of so many, and the last one, are evaluated."""

    num_records: int = 100
    """Held-out records; their captions are the prompts. Figures compare only between equal numbers."""

    num_drawings: int = 2
    """Pictures drawn for each prompt. One alone gives no interval to FID, KID and CMMD."""

    num_threads: int = 1
    """Threads of the CPU. Increase on a machine with cores to spare."""

    device: str = "cpu"
    """`cpu` or `cuda`."""

    limit_seconds: float = 6 * 3600.0
    """An evaluation is given up after so long. Increase if the log says that the time was up."""

    def __post_init__(self) -> None:
        check_positive(self, "interval_epochs", "num_drawings", "num_threads", "limit_seconds")
        if self.num_records < 2:
            raise ValueError(f"num_records is {self.num_records}; an evaluation needs at least 2 records.")
        if self.device not in DEVICES:
            raise ValueError(f"device is {self.device!r}; expected {' or '.join(DEVICES)}.")
        if self.limit_seconds > LONGEST_LIMIT_SECONDS:
            raise ValueError(
                f"limit_seconds is {self.limit_seconds:g}; at most {LONGEST_LIMIT_SECONDS:g} are possible."
            )

    def arguments(self, task: str) -> list[str]:
        """Return the options of `dalle-collab evaluate` for a run of this task."""
        about_pictures = (("--drawings", self.num_drawings), ("--training-records", 0))
        options = (("--records", self.num_records), *(() if task in TASKS_THAT_COUNT_TOKENS else about_pictures))
        return [str(word) for option in options for word in option]
