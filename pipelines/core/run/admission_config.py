"""Translates a run's settings for `admission`, which knows nothing about training."""

from pipelines.core.admission.settings import AdmissionConfig
from pipelines.core.run.training_run import TrainingRun


def admission_config_of(run: TrainingRun, repository: str) -> AdmissionConfig:
    """Return where peers of the run in this repository ask for admission."""
    return AdmissionConfig(
        repository=repository,
        run_id=run.run_id,
        service_address=run.authorization_service,
        authority_key=run.authorization_key,
    )
