"""Moments of a run's life, each with its state: for what decides it in Python and in a browser."""

from pipelines.features.publishing.metrics.run_state import RunFacts, RunState

NOW = 1_800_000_000.0


def moment(state, **known):
    return RunFacts(**dict(num_epochs=300, epoch=33, ended_at=NOW - 60, usual_seconds=20.0) | known), state


MOMENTS = (
    moment(RunState.UNREACHABLE, num_epochs=None, epoch=0, ended_at=None),
    moment(RunState.OVER, epoch=300, num_peers=0),
    moment(RunState.OVER, epoch=300, num_peers=3, ended_at=None),
    moment(RunState.NOT_BEGUN, epoch=0, num_peers=0, ended_at=None, usual_seconds=0.0),
    moment(RunState.NOT_BEGUN, epoch=0, ended_at=None, usual_seconds=0.0),
    moment(RunState.ALIVE, epoch=0, num_peers=2, ended_at=None, usual_seconds=0.0),
    moment(RunState.NOBODY, num_peers=0),
    moment(RunState.NOBODY, num_peers=0, ended_at=None),
    moment(RunState.ALIVE, num_peers=1),
    moment(RunState.ALIVE, num_peers=3, ended_at=NOW - 115),
    moment(RunState.STALLED, num_peers=3, ended_at=NOW - 121),
    moment(RunState.STALLED, num_peers=1, ended_at=NOW - 200_000, usual_seconds=9000.0),
    moment(RunState.ALIVE, num_peers=3, ended_at=NOW - 9000, usual_seconds=0.0),
    moment(RunState.ALIVE, ended_at=NOW - 1799),
    moment(RunState.STALLED, ended_at=NOW - 1801),
    moment(RunState.ALIVE, ended_at=NOW - 1801, usual_seconds=400.0, num_epochs=30_000),
)
