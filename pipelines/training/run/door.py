"""The door of a run: what its settings mean to `admission`, which knows nothing of training."""

from pipelines.admission.settings import Door
from pipelines.training.run.training_run import TrainingRun


def door_of(run: TrainingRun, repository: str) -> Door:
    """Return where peers of a run, which lies in this repository, ask for admission."""
    return Door(
        repository=repository,
        run_id=run.run_id,
        service_address=run.authorization_service,
        authority_key=run.authorization_key,
    )
