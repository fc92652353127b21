"""Entering a run's swarm to use the layers that others serve."""

import contextlib
from collections.abc import Iterator

from pipelines.serving.avoided import AvoidedServers
from pipelines.serving.blocks.client.stream_swarm import StreamSwarm
from pipelines.serving.blocks.discovery import served_spans
from pipelines.serving.entering import place_to_ask
from pipelines.swarm.network_options import NetworkOptions
from pipelines.training.repository.snapshot import RunSnapshot


@contextlib.contextmanager
def join_as_client(
    repository: str, network: NetworkOptions = NetworkOptions(client_mode=True)
) -> Iterator[StreamSwarm]:
    """Be a client of the run's servers for the duration of the block; the first thing in a process: hivemind forks.

    Raises:
        ValueError: there is no such run, or it has no entry address.
        AdmissionRefusedError: the run's authority does not admit this user.
        ConnectionError: the Hub, the authority or the swarm cannot be reached.
    """
    run = RunSnapshot.read(repository).run_to_enter
    with place_to_ask(run, repository, network) as place:
        swarm = StreamSwarm(
            place.loop,
            place.namespace,
            place.introductions,
            lambda: served_spans(place.servers(), names_users=place.names_users),
            avoided=AvoidedServers.of_run(repository),
        )
        try:
            yield swarm
        finally:
            swarm.close()
