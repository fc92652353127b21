"""`dalle-collab run ledger`: what was trained on, and whether every record counted once."""

import typer

from pipelines.command_line.terminal.setting_options import Run


def ledger(
    repository: Run,
) -> None:
    """Check a run's published ledger: how many records of each pass were trained on, and that none counted twice.

    The dataset's own footers say how many records a pass has. Exit code 1 if a record counted twice.

    Examples:

      dalle-collab run ledger my-org/birds
    """
    from rich.progress import track
    from rich.table import Table

    from hub_tools.printing.consoles import open_console
    from hub_tools.run_files import METRICS_FOLDER
    from pipelines.features.ledger.coverage import coverage
    from pipelines.features.ledger.ledger_files import read_bookings
    from pipelines.features.publishing.repository.snapshot import RunSnapshot
    from pipelines.tasks.choice import open_task

    snapshot = RunSnapshot.read(repository)
    snapshot.run.check_has_swarm(repository, f"Check its rounds with: dalle-collab run audit {repository} --rounds")
    bookings = read_bookings(snapshot.download_matching(f"{METRICS_FOLDER}/ledger*") / METRICS_FOLDER)
    order = open_task(snapshot.run, str(snapshot.download_signed())).block_order()
    if not bookings or order is None:
        raise ValueError(
            f"{repository} has no ledger yet: an auxiliary peer publishes it with the metrics, for datasets of Parquet "
            f"files. Start one: dalle-collab run assist {repository}"
        )
    shards = track(range(order.num_shards), "reading footers", console=open_console(stderr=True), transient=True)
    size = sum(sum(order.sizes(shard)) for shard in shards)
    table = Table("pass", "records", "of", "share", "counted twice", "peers", "epochs", title=repository)
    passes = coverage(bookings)
    for one in passes:
        share = f"{100 * one.num_records / size:.2f} %"
        epochs = f"{one.first_epoch} to {one.last_epoch}"
        counts = (one.pass_number + 1, one.num_records, size, share, one.num_twice, one.num_peers, epochs)
        table.add_row(*map(str, counts))
    open_console().print(table)
    if any(one.num_twice for one in passes):
        typer.echo("Some records counted twice: the ledger is damaged, or two anchors led at the same time.", err=True)
        raise typer.Exit(1)
    typer.echo("Every record that was trained on counted once.")
