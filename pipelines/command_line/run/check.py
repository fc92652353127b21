"""`dalle-collab run check`: is a run set up so that it lasts?"""

from typing import Annotated

import typer


def check(
    repository: Annotated[str, typer.Argument(metavar="ORG/RUN", help="Model Hub repository of the run.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Leave with 4 if there are warnings.")] = False,
) -> None:
    """Go through the organiser's checklist: each finding names cause and cure.

    Looks at entry peers (in two places, all answering, one swarm), the evaluation set, the schedule and the time-outs
    against what was measured, the dataset's revision, the codec, the card, the commit budget, and restores the newest
    checkpoint. It changes nothing. Exit codes are those of `dalle-collab doctor`.

    Examples:

      dalle-collab run check my-org/birds

      dalle-collab run check my-org/birds --json --strict
    """
    from pipelines.command_line.terminal.examinations import examine_run
    from pipelines.swarm.network_options import NetworkOptions

    # Nobody needs to reach the checklist: it listens where no other program can be in its way.
    network = NetworkOptions(host_addresses=("/ip4/127.0.0.1/tcp/0",), client_mode=True)
    examine_run(repository, network, as_json=as_json, strict=strict)
