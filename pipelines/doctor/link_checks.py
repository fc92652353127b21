"""How long a round of averaging will take on this machine's link."""

from pipelines.doctor.check_result import CheckResult, ok, unknown
from pipelines.training.averaging.bandwidth.estimate import round_line
from pipelines.training.averaging.bandwidth.shares import Link
from pipelines.training.run.training_run import TrainingRun

NAME = "averaging round"


def check_round(
    run: TrainingRun, num_parameters: int | None, measured: Link | None, limit_mbit: float | None
) -> CheckResult:
    """Say what a round will take, by what the link was measured to carry and by the upload limit."""
    if num_parameters is None:
        return unknown(NAME, "the model's size is not known")
    if measured is not None and not (limit_mbit and limit_mbit < measured.up):
        return ok(NAME, round_line(run, num_parameters, measured, "measured"))
    if limit_mbit:
        down = limit_mbit if measured is None else measured.down
        return ok(NAME, round_line(run, num_parameters, Link(up=limit_mbit, down=down), "--bandwidth-limit"))
    return ok(
        NAME, "not measured yet: training does so in its first rounds, or name the rate with --bandwidth-limit MBIT"
    )
