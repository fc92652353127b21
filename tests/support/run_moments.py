"""Moments of a run's life, each with its state: for what decides it in Python and in a browser."""

from pipelines.features.publishing.metrics.run_state import RunFacts, RunPhase

NOW = 1_800_000_000.0


def moment(state, **known):
    return RunFacts(**dict(num_epochs=300, epoch=33, ended_at=NOW - 60, usual_seconds=20.0) | known), state


MOMENTS = (
    moment(RunPhase.UNREACHABLE, num_epochs=None, epoch=0, ended_at=None),
    moment(RunPhase.OVER, epoch=300, num_peers=0),
    moment(RunPhase.OVER, epoch=300, num_peers=3, ended_at=None),
    moment(RunPhase.NOT_BEGUN, epoch=0, num_peers=0, ended_at=None, usual_seconds=0.0),
    moment(RunPhase.NOT_BEGUN, epoch=0, ended_at=None, usual_seconds=0.0),
    moment(RunPhase.ALIVE, epoch=0, num_peers=2, ended_at=None, usual_seconds=0.0),
    moment(RunPhase.NOBODY, num_peers=0),
    moment(RunPhase.NOBODY, num_peers=0, ended_at=None),
    moment(RunPhase.ALIVE, num_peers=1),
    moment(RunPhase.ALIVE, num_peers=3, ended_at=NOW - 115),
    moment(RunPhase.STALLED, num_peers=3, ended_at=NOW - 121),
    moment(RunPhase.STALLED, num_peers=1, ended_at=NOW - 200_000, usual_seconds=9000.0),
    moment(RunPhase.ALIVE, num_peers=3, ended_at=NOW - 9000, usual_seconds=0.0),
    moment(RunPhase.ALIVE, ended_at=NOW - 1799),
    moment(RunPhase.STALLED, ended_at=NOW - 1801),
    moment(RunPhase.ALIVE, ended_at=NOW - 1801, usual_seconds=400.0, num_epochs=30_000),
)
