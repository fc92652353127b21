"""What people read about who may join a run, and who may publish it."""

from pathlib import Path

from pipelines.core.run.training_run import TrainingRun
from pipelines.features.publishing.repository.key_list import ListedKey, utc


def what_entering_asks(run: TrainingRun) -> str:
    """Say what is done on the way into a run's swarm, without the run's name at the end."""
    if run.is_open:
        return "Entering"
    return f"Asking {run.authorization_service}, which does not see your Hub token, to admit us to"


def who_may_join(run: TrainingRun, repository: str) -> str:
    """Say whether everybody may join a run."""
    if run.wire == "hub":
        return f"Who may create a bucket beside {repository} may join: the Hub's organisation says who."
    if run.is_open:
        return f"{repository} is an OPEN run: anyone may join, nobody is checked."
    return (
        f"Peers of {repository} are admitted by {run.authorization_service}, which looks on the Hub for a file of "
        "theirs; Hub tokens are not shown to it."
    )


def why_it_does_not_publish(repository: str, key_file: Path, key: str, entry: ListedKey | None) -> str:
    """Say what is to be done so that an auxiliary peer publishes."""
    if entry is not None and entry.revoked_at is not None:
        return (
            f"It does not publish: its key {key} was revoked at {utc(entry.revoked_at)}. For a new key delete "
            f"{key_file} and start again."
        )
    return (
        "It serves the swarm, and publishes as soon as the organiser has listed its key, which takes this command: "
        f"dalle-collab run keys {repository} --add {key}"
    )
