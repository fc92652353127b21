"""`dalle-collab run`: for organisers: create a training run, assist it, inspect it."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hub_tools.counted import counted, nats
from hub_tools.printing.marked_up import in_words
from pipelines.command_line.run import assist as run_assist
from pipelines.command_line.run import audit as run_audit
from pipelines.command_line.run import authorize as run_authorize
from pipelines.command_line.run import check as run_check
from pipelines.command_line.run import index as run_index
from pipelines.command_line.run import keys as run_keys
from pipelines.command_line.run import ledger as run_ledger
from pipelines.command_line.run import recompute as run_recompute
from pipelines.command_line.run import report as run_report
from pipelines.command_line.run import rollback as run_rollback
from pipelines.command_line.run import settings as run_settings
from pipelines.command_line.terminal.setting_options import Run, parse_settings, refuse_given

if TYPE_CHECKING:
    from pipelines.core.run.training_run import TrainingRun
    from pipelines.features.publishing.publishable_task import Processor

app = typer.Typer(no_args_is_help=True)


def create(
    context: typer.Context,
    repository: Run,
    dataset: Annotated[str, typer.Option(help="Dataset Hub repository, ORG/NAME: image codes, or text.")],
    task: Annotated[str, typer.Option(help="text-to-image, fill-mask or text-generation.")] = "text-to-image",
    preset: Annotated[
        str | None, typer.Option(help="Recipe that sets the settings: small (see --hours), demo, paper, sahajbert.")
    ] = None,
    hours: Annotated[
        float, typer.Option(help="With --preset small: how long the run may take; its model and schedule follow.")
    ] = 8.0,
    hardware: Annotated[
        str | None, typer.Option(help="With --preset small: what trains, such as '4 cores' or '2 t4'; default: this.")
    ] = None,
    codec: Annotated[str | None, typer.Option(help="Codec that made the image codes, a Model Hub repository.")] = None,
    tokenizer: Annotated[str, typer.Option(help="Folder or Model Hub repository of a fast tokenizer.")] = "t5-small",
    clip: Annotated[str | None, typer.Option(help="CLIP that ranks pictures; default: ViT-B-32/openai.")] = None,
    license: Annotated[str | None, typer.Option(help="Licence of the weights for the card, such as cc-by-4.0.")] = None,
    settings: Annotated[Path | None, typer.Option(help="JSON file of settings; --set overrides it.")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="One setting.")] = None,
    links: Annotated[
        float | None,
        typer.Option(metavar="MBIT", help="Mbit/s of the volunteers' links: sets local steps, if rounds are long."),
    ] = None,
    organiser_key: Annotated[
        Path | None,
        typer.Option(help="File of the organiser's key; made if missing. Default: in ~/.config/dalle-collab."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what the settings mean for the dataset, and create nothing.")
    ] = False,
) -> None:
    """Create a training run: publish its settings and its tokenizer or processor to the Model Hub.

    `--preset small` is for some thousand pictures: it fits model and schedule to the dataset, `--hours` and
    `--hardware`, and says what to expect. `--set` overrides each of its settings.

    It also makes the organiser's key, which stays on this machine: with it alone the run's publishers are named and
    revoked (run keys). It says how often the schedule passes over the dataset, how long that takes, and what the
    length of the texts costs; so does `--dry-run`, which creates nothing.

    `dalle-collab run settings` lists all settings; the defaults of a
    text-to-image run are those of the paper. A language model is built from a transformers model_type and its sizes,
    or starts from a checkpoint: start_from=ORG/NAME.

    Examples:

      dalle-collab run create my-org/birds --dataset my-org/birds-codes --codec my-org/vqgan-f8

      dalle-collab run create my-org/birds --dataset my-org/birds-codes --codec my-org/codec --tokenizer ./tokenizer
      --preset small --hours 8 --dry-run

      dalle-collab run create my-org/birds --dataset my-org/birds-codes --codec my-org/vqgan-f8 --links 15 --dry-run

      dalle-collab run create my-org/bert --task fill-mask --preset sahajbert --dataset my-org/text
      --tokenizer my-org/tokenizer

      dalle-collab run create my-org/gpt --task text-generation --dataset my-org/text --tokenizer gpt2
      --set model_type=gpt2 --set sequence_length=1024
    """
    if preset != "small":
        refuse_given(context, "it is for --preset small", "hours", "hardware")
    from pipelines.command_line.explaining.composed_run import compose_explained
    from pipelines.features.publishing.publishable_task import RunRequest
    from pipelines.features.publishing.repository.creation import check_name_is_free
    from pipelines.tasks.presets import preset_settings

    chosen = _read_settings(settings) | parse_settings(set_)
    preset_settings(preset, task)  # refuses an unknown one
    if not dry_run:
        check_name_is_free(repository)  # before what takes long
    request = RunRequest(
        run_id=chosen.get("run_id", repository.replace("/", "-").replace(".", "-")),
        task=task,
        dataset=dataset,
        tokenizer=tokenizer,
        settings=chosen,
        codec=codec,
        clip=clip,
    )
    run, processor, told = compose_explained(request, preset, repository, hours=hours, hardware=hardware, links=links)
    for sentence in told:
        typer.echo(sentence)
    if dry_run:
        typer.echo("Nothing was created.")
        return
    _publish(repository, run, processor, license, organiser_key, makes_key="organiser_key" not in chosen)


def _publish(
    repository: str,
    run: "TrainingRun",
    processor: "Processor",
    license: str | None,
    key_file: Path | None,
    *,
    makes_key: bool,
) -> None:
    import tempfile

    from pipelines.command_line.terminal.entry_words import who_may_join
    from pipelines.features.publishing.repository.creation import create_run_repository
    from pipelines.features.publishing.repository.organiser import found_organiser

    organiser = found_organiser(repository, key_file) if makes_key else None
    if organiser is not None:
        run = run.replace(organiser_key=organiser.key.public)
    with tempfile.TemporaryDirectory() as folder:
        address = create_run_repository(repository, run, processor, Path(folder), license=license)
    typer.echo(f"Created {repository}: {address}")
    if run.wire == "hub":
        typer.echo("Next, start its auxiliary peer, which closes its rounds, on any machine; it needs no open port:")
        typer.echo(f"  dalle-collab run assist {repository}")
    else:
        typer.echo("Next, start its auxiliary peer on a machine that the others can reach:")
        typer.echo(f"  dalle-collab run assist {repository} --host /ip4/0.0.0.0/tcp/31337 --identity-file assist.key")
    typer.echo(who_may_join(run, repository))
    if organiser is not None:
        organiser.copy.unlink(missing_ok=True)  # of an earlier run of this name
        where = f" --organiser-key {organiser.key_file}" if key_file else ""
        typer.echo(
            f"The organiser's key, which alone names and revokes the run's publishers, is in {organiser.key_file} and "
            f"nowhere else. Back it up: dalle-collab run keys {repository}{where} --backup-key FILE"
        )


def show(repository: Run) -> None:
    """Print what a run is doing and what to do next; then who may join it, and all its settings.

    Example:

      dalle-collab run show my-org/birds
    """
    import dataclasses
    import time

    from rich.table import Table

    from hub_tools.printing.consoles import open_console
    from pipelines.features.publishing.metrics.history import read_history
    from pipelines.features.publishing.metrics.run_state import condition_by
    from pipelines.features.publishing.repository.snapshot import RunSnapshot

    snapshot = RunSnapshot.read(repository)
    run, epoch, history, console = snapshot.run, snapshot.epoch, read_history(snapshot), open_console()
    condition = condition_by(snapshot, history, now=time.time())
    said = [f"{repository}: {condition.sentence}", f"{condition.advice}: {condition.command}"]
    if history:
        newest = history[-1]
        who = f"{counted(newest['num_peers'], 'peer')} at epoch {newest['epoch']:,}"
        said.insert(1, f"Training loss {nats(newest['loss'])} nats; {who}.")
    for line in said:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    table = Table("setting", "value")
    who = "everybody: the run is OPEN" if run.is_open else f"users admitted by {run.authorization_service}"
    if run.wire == "hub":
        who = f"who may create buckets in {repository.partition('/')[0]}"
    table.add_row("who may join", who, style="bold")
    if not run.is_open:
        table.add_row("who may draw with what volunteers serve", run.who_may_draw)
    table.add_row("newest checkpoint", "none yet" if epoch is None else f"epoch {epoch:,}", style="bold")
    for name, value in dataclasses.asdict(run).items():
        table.add_row(name, in_words(value))
    console.print(table)


def _read_settings(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON ({error}); expected an object of settings.") from error
    if not isinstance(values, dict):
        raise ValueError(f"{path} contains a {type(values).__name__}; expected a JSON object of settings.")
    return values


# The help lists them in this order, in which an organiser needs them.
for command in (
    create,
    run_settings.settings,
    run_authorize.authorize,
    run_assist.assist,
    run_keys.keys,
    run_check.check,
    show,
    run_report.report,
    run_ledger.ledger,
    run_recompute.recompute,
    run_audit.audit,
    run_index.index,
    run_rollback.rollback,
):
    app.command()(command)
