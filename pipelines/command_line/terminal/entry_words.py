"""What people read about who may join a run."""

from pipelines.training.run.training_run import TrainingRun


def what_entering_asks(run: TrainingRun) -> str:
    """Say what is done on the way into a run's swarm, without the run's name at the end."""
    if run.is_open:
        return "Entering"
    return f"Asking {run.authorization_service}, which sees your Hub token, to admit us to"


def who_may_join(run: TrainingRun, repository: str) -> str:
    """Say whether everybody may join a run."""
    if run.is_open:
        return f"{repository} is an OPEN run: anyone may join, nobody is checked."
    return (
        f"Peers of {repository} are admitted by {run.authorization_service}, which needs a Hub token with read access."
    )
