"""Complains about a server without having audited anything; usage: complainer.py ORG/RUN PEER REVISION."""

import sys

from hub_tools.endpoint import prepare_hub_client
from hub_tools.processes.process_group import guard_process_group
from pipelines.core.swarm.network_options import NetworkOptions
from pipelines.features.publishing.repository.snapshot import RunSnapshot
from pipelines.features.servers.complaints import MOST_COMPLAINTS, ServerComplaint
from pipelines.features.serving.entering import client_connection


def main(repository: str, peer: str, revision: str) -> None:
    guard_process_group()
    prepare_hub_client()
    network = NetworkOptions(client_mode=True, startup_timeout_seconds=240.0)
    lie = ServerComplaint(
        server=peer, revision=revision, precision="float32", num_audited=10**6, mean_excess=1.0, limit=1e-5, seed=0,
        prompt=0, candidate=0, excess=1.0,
    )  # fmt: skip
    with client_connection(RunSnapshot.read(repository).run_to_enter, repository, network) as place:
        place.complain([lie] * (2 * MOST_COMPLAINTS))


if __name__ == "__main__":
    main(*sys.argv[1:])
