"""Peers and looks at a swarm, made up, for tests of the dashboard's decisions."""

from pipelines.features.publishing.metrics.run_state import RunFacts, condition_of
from pipelines.tools.pages.dashboard.swarm.swarm_snapshot import SwarmSnapshot

NOW = 1_800_000_000.0
BEGUN = condition_of(RunFacts(num_epochs=6, epoch=1), "org/run", now=NOW)
"""Of a run that goes on at an unknown pace."""

LIFETIME = 30.0


def peer_values(name, *, epoch=10, speed=4.0, renewed=NOW, metrics=None, introduction=None, client_mode=False):
    """Return what the looking process writes of a peer whose record was renewed at a time."""
    return dict(
        key=name,
        peer_id=f"Qm{name}",
        progress=dict(epoch=epoch, samples_per_second=speed, client_mode=client_mode),
        valid_until=renewed + LIFETIME,
        metrics=metrics,
        introduction=introduction or dict(username=name, device="CPU", client_mode=client_mode, package_version="1"),
    )


def metrics(name, **changes):
    """Return the figures that a peer publishes after an epoch."""
    values = dict(
        username=name,
        epoch=10,
        loss=2.0,
        num_samples=100,
        samples_per_second=4.0,
        share_averaged=1.0,
        bytes_sent=1000,
        num_rounds=9,
        round_seconds=2.0,
        num_refused_gradients=0,
        client_mode=False,
        package_version="1",
        suspects=[],
    )
    return values | changes


def look(*peers, time=NOW, verdict=None):
    """Return a look at a swarm of these peers."""
    return SwarmSnapshot.from_values(dict(time=time, peers=list(peers), num_auxiliaries=1, verdict=verdict))
