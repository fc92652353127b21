"""`dalle-collab run rollback`: make an older epoch the newest again."""

from pathlib import Path
from typing import Annotated

import typer

from hub_tools.counted import counted
from hub_tools.printing.consoles import open_console
from pipelines.command_line.terminal.setting_options import Run


def rollback(
    repository: Run,
    epoch: Annotated[int, typer.Argument(min=1, help="Published epoch to go back to.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check the checkpoint, show what would change.")] = False,
    organiser_key: Annotated[
        Path | None, typer.Option(help="File of the organiser's key, if it is here; default: where run create puts it.")
    ] = None,
) -> None:
    """Go back to a published epoch: its checkpoint becomes the newest again, bit for bit, in one commit.

    The checkpoint is downloaded and checked against its signed manifest first. The run then starts a new generation,
    that is, a separate swarm: running peers notice within minutes, drop their newer epochs and continue from the
    restored one. The discarded epochs stay in the repository's history.

    If the key that signed the epoch has been revoked since, roll back on the machine that has the organiser's key.

    Examples:

      dalle-collab run rollback my-org/birds 12300 --dry-run

      dalle-collab run rollback my-org/birds 12300
    """

    from pipelines.features.publishing.repository.rollback import carry_out, plan_rollback

    console = open_console(stderr=True)
    with console.status(f"Downloading and checking the checkpoint of epoch {epoch}"):
        plan = plan_rollback(repository, epoch, organiser_key)
    newest = f"from epoch {plan.newest_epoch} " if plan.newest_epoch else ""
    typer.echo(
        f"The checkpoint of epoch {epoch} is intact (commit {plan.source[:12]}). {repository} goes back {newest}to it "
        f"and becomes generation {plan.generation}: {counted(len(plan.restored), 'file')} restored, "
        f"{len(plan.deleted)} deleted."
    )
    if dry_run:
        typer.echo("Nothing was changed (--dry-run).")
        return
    if not yes and not typer.confirm("Roll back?"):
        typer.echo("Nothing was changed.")
        raise typer.Exit(1)
    commit = carry_out(plan)
    typer.echo(f"Rolled back to epoch {epoch} in commit {commit[:12]}. Running peers switch to it by themselves.")
