"""`dalle-collab run audit`: do the servers of a run draw what they are asked for?"""

from pathlib import Path
from typing import Annotated

import typer

from hub_tools.counted import counted
from pipelines.command_line.terminal.setting_options import Run


def audit(
    repository: Run,
    prompts: Annotated[Path, typer.Option(help="Text file with one prompt per line; one is chosen at random.")],
    candidates: Annotated[int, typer.Option(min=1, max=4096, help="Pictures to have drawn and checked.")] = 32,
    precision: Annotated[str, typer.Option(help="Audit servers of this precision.")] = "float32",
    patience: Annotated[float, typer.Option(help="Seconds to wait while nobody draws.")] = 60.0,
    output: Annotated[Path | None, typer.Option(help="Also write the findings as JSON to this file.")] = None,
) -> None:
    """Have a run's servers draw pictures, as any client does, and check every one of them with the weights.

    The prompt is taken at random from a file, the seed is random: servers cannot know that they are audited as long as
    the file is not published. A server that draws something else is named, complained about, and avoided by this
    machine. An entry (`run assist --stay --audit-prompts FILE`) does so every hour; it credits servers that draw right.

    Examples:

      dalle-collab run audit my-org/birds --prompts prompts.txt --candidates 64
    """
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
