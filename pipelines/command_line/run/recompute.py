"""`dalle-collab run recompute`: gradients that peers signed, computed again from the records that they name."""

from typing import Annotated

import typer

from pipelines.command_line.terminal.setting_options import Run


def recompute(
    repository: Run,
    epoch: Annotated[
        int | None, typer.Option(help="Parameters of this epoch's checkpoint; default: all epochs that have one.")
    ] = None,
    peer: Annotated[str | None, typer.Option(help="Only of this user, or of the peer with this name.")] = None,
    most: Annotated[int, typer.Option("--most", min=1, help="Check at most this many, chosen at random.")] = 8,
    tolerance: Annotated[
        float, typer.Option(help="Largest relative difference. Peers with bf16, fp16 or a compiled model need 0.02.")
    ] = 1e-6,
    seed: Annotated[int, typer.Option(help="Seed of that choice.")] = 0,
) -> None:
    """Check what peers trained on: compute some of their signed gradients again, from the records that they name.

    A gradient belongs to the parameters of one epoch: those of epochs with a published checkpoint can be checked, and
    of epoch 0. Exit code 1 if one differs by more than the tolerance.

    Examples:

      dalle-collab run recompute my-org/birds --epoch 300 --most 20
    """
    import random

    from huggingface_hub import HfApi
    from rich.progress import track
    from rich.table import Table

    from hub_tools.printing.consoles import open_console
    from hub_tools.run_files import METRICS_FOLDER
    from pipelines.features.ledger.gradient_files import GRADIENTS_FILE, read_gradients
    from pipelines.features.ledger.ledger_files import read_bookings
    from pipelines.features.ledger.recomputation import recompute as compute_again
    from pipelines.features.ledger.recomputation import signed_share
    from pipelines.features.publishing.checkpoint_tensors import load_weights
    from pipelines.features.publishing.repository.epoch_tags import tagged_epochs
    from pipelines.features.publishing.repository.snapshot import RunSnapshot
    from pipelines.tasks.choice import open_task

    snapshot = RunSnapshot.read(repository)
    snapshot.run.check_has_swarm(repository, f"Check its rounds with: dalle-collab run audit {repository} --rounds")
    patterns = (f"{METRICS_FOLDER}/ledger*", f"{METRICS_FOLDER}/{GRADIENTS_FILE}")
    folder = snapshot.download_matching(*patterns) / METRICS_FOLDER
    gradients = read_gradients(folder)
    if not gradients:
        raise ValueError(
            f"No peer has signed a gradient in {repository}: those of text-to-image runs without local steps do, while "
            f"an auxiliary peer keeps the ledger. Start one: dalle-collab run assist {repository}"
        )
    commits = {0: snapshot.commit} | tagged_epochs(HfApi(), repository)
    chosen = [
        gradient
        for gradient in gradients
        if gradient.model_epoch in commits
        and epoch in (None, gradient.model_epoch)
        and peer in (None, gradient.user, gradient.name)
    ]
    if not chosen:
        known = ", ".join(map(str, sorted({gradient.model_epoch for gradient in gradients} & set(commits))))
        raise ValueError(f"No signed gradient fits; there are some with the parameters of epochs {known or '-'}.")
    drawn = sorted(random.Random(seed).sample(chosen, min(most, len(chosen))), key=lambda found: found.model_epoch)
    task = open_task(snapshot.run, str(snapshot.download_signed()))
    model, model_epoch = task.new_model(), 0
    table = Table("epoch", "parameters of", "peer", "records", "batches", "difference", title=repository)
    num_different = 0
    for gradient in track(drawn, "computing", console=open_console(stderr=True), transient=True):
        if gradient.model_epoch != model_epoch:
            load_weights(RunSnapshot.read(repository, commits[gradient.model_epoch]).download_weights(), model)
            model_epoch = gradient.model_epoch
        found = compute_again(task, model, gradient)
        num_different += found.difference > tolerance
        if found.problem:
            typer.echo(f"{gradient.name}, epoch {gradient.epoch}: {found.problem}", err=True)
        counts = (found.num_samples, gradient.num_batches, f"{found.difference:.1e}")
        table.add_row(*map(str, (gradient.epoch, model_epoch, gradient.name, *counts)))
    open_console().print(table)
    share = signed_share(read_bookings(folder), gradients)
    typer.echo(f"Peers signed the gradients of {100 * share:.1f} % of the records that were booked meanwhile.")
    if num_different:
        typer.echo(f"{num_different} of {len(drawn)} differ by more than {tolerance:g}.", err=True)
        raise typer.Exit(1)
    typer.echo(f"All {len(drawn)} are the gradients of the records that they name, to {tolerance:g}.")
