"""`dalle-collab run audit`: do the servers of a run draw what they are asked for, and are its rounds closed rightly?"""

from pathlib import Path
from typing import Annotated

import typer

from hub_tools.counted import counted
from pipelines.command_line.terminal.setting_options import Run


def audit(
    repository: Run,
    prompts: Annotated[
        Path | None, typer.Option(help="Audit servers: text file with one prompt per line; one is chosen at random.")
    ] = None,
    rounds: Annotated[bool, typer.Option("--rounds", help="Audit the closed rounds of a run over the Hub.")] = False,
    candidates: Annotated[int, typer.Option(min=1, max=4096, help="Pictures to have drawn and checked.")] = 32,
    precision: Annotated[str, typer.Option(help="Audit servers of this precision.")] = "float32",
    patience: Annotated[float, typer.Option(help="Seconds to wait while nobody draws.")] = 60.0,
    output: Annotated[Path | None, typer.Option(help="Also write the findings as JSON to this file.")] = None,
) -> None:
    """Repeat a run's closed rounds from public files, or have its servers draw pictures and check every one.

    With --rounds, of a run whose wire is the Hub: each round is computed again from the contributions that its list
    names, by anybody, at any time. A list that names another state is reported, with who has signed it.

    With --prompts, servers are asked as any client does, and what they draw is checked with the weights. The prompt is
    taken at random from a file, the seed is random: servers cannot know that they are audited as long as the file is
    not published. A server that draws something else is named, complained about, and avoided by this machine. An entry
    (`run assist --stay --audit-prompts FILE`) does so every hour; it credits servers that draw right.

    Examples:

      dalle-collab run audit my-org/birds --rounds

      dalle-collab run audit my-org/birds --prompts prompts.txt --candidates 64
    """
    if rounds == (prompts is not None):
        raise ValueError("Say what to audit: --rounds, or the servers with --prompts FILE.")
    if prompts is None:
        _audit_rounds(repository, output)
        return
    import json
    import secrets
    from collections import Counter

    from hub_tools.atomic_files import write_text_whole
    from pipelines.command_line.terminal.worker import become_worker
    from pipelines.features.publishing.auxiliary.serving_audits import read_prompts

    captions = read_prompts(prompts)
    console = become_worker()
    from pipelines.command_line.serving.swarm_drawing import shown_client

    how = dict(precision=precision, audits=True, share_audited=1.0, patience_seconds=patience)
    with shown_client(console, repository, **how) as (status, client):
        status.update(f"Auditing the servers of {repository}")
        sampling = client.request(secrets.choice(captions), seed=secrets.randbits(62))
        drawn = client.draw(sampling, range(candidates))
    right = Counter(one.server for one in drawn.candidates if one.is_audited).most_common()
    for server, number in right:
        console.print(f"{server.name}: {counted(number, 'candidate')}, all right", highlight=False, markup=False)
    for complaint in drawn.complaints:
        console.print(str(complaint), highlight=False, markup=False, soft_wrap=True)
    if output is not None:
        servers = [dict(peer=server.peer, username=server.name, num_right=number) for server, number in right]
        accused = [complaint.claim.server for complaint in drawn.complaints]
        write_text_whole(output, json.dumps(dict(servers=servers, accused=accused)) + "\n")


def _audit_rounds(repository: str, output: Path | None) -> None:
    import dataclasses
    import json

    from hub_tools.atomic_files import write_text_whole
    from pipelines.command_line.terminal.worker import become_worker

    console = become_worker()
    from pipelines.joining.over_the_hub import rounds_to_audit
    from pipelines.tasks.choice import open_task

    found = []
    with console.status(f"Reading {repository}") as status, rounds_to_audit(repository, open_task) as (run, audits):
        for audit in audits:
            found.append(audit)
            status.update(f"Round {audit.round} of {run.num_epochs}: {counted(len(audit.members), 'contribution')}")
            if audit.fault is not None:
                console.print(
                    f"Round {audit.round}, as the publisher {audit.publisher} has closed it, is false: {audit.fault}.",
                    highlight=False,
                    soft_wrap=True,
                )
    numbers = [audit.round for audit in found if audit.fault is None]
    where = f"rounds {min(numbers)} to {max(numbers)}" if numbers else "no round"
    console.print(
        f"{repository}: {where} repeated, {counted(len(numbers), 'list')} right and {len(found) - len(numbers)} false.",
        highlight=False,
    )
    if output is not None:
        write_text_whole(output, json.dumps([dataclasses.asdict(audit) for audit in found]) + "\n")
    if len(numbers) < len(found):
        raise typer.Exit(1)
