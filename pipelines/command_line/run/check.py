"""`dalle-collab run check`: is a run set up to last?"""

from typing import Annotated

import typer

from pipelines.command_line.terminal.setting_options import Run


def check(
    repository: Run,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with code 4 on warnings.")] = False,
) -> None:
    """Go through the organiser's checklist; each finding names its cause and its cure.

    Checks the entry peers (in two places, all answering, one swarm), the evaluation set, the schedule and time-outs
    against measurements, the dataset's revision, the codec, the card and the commit budget, and restores the newest
    checkpoint. It changes nothing. Exit codes are those of `dalle-collab doctor`.

    Examples:

      dalle-collab run check my-org/birds

      dalle-collab run check my-org/birds --json --strict
    """
    from pipelines.command_line.terminal.examinations import examine_run
    from pipelines.core.swarm.network_options import NetworkOptions

    # Nobody connects to the checklist: a free local port cannot clash with another program's.
    network = NetworkOptions(host_addresses=("/ip4/127.0.0.1/tcp/0",), client_mode=True)
    examine_run(repository, network, as_json=as_json, strict=strict)
