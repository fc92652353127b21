"""`dalle-collab chaos`: a small swarm on this machine, faults injected into it, and their effect."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hub_tools.counted import counted, memory_size
from hub_tools.printing.consoles import open_console
from pipelines.command_line.terminal.setting_options import parse_settings, refuse_given
from pipelines.tools.chaos.attacks.table import ATTACKS
from pipelines.tools.chaos.faults.fault_script import (
    Fault,
    ServingFault,
    attack_in_the_middle,
    draw_faults,
    read_script,
    script_text,
    serving_faults_in_turn,
)

if TYPE_CHECKING:
    from pipelines.tools.chaos.chaos_report import ChaosReport

NAMES, SERVING_NAMES = ", ".join(ATTACKS), ", ".join(ServingFault)
SECONDS_OF_EPOCHS = {"p2p": 4.0, "hub": 8.0}
SHARE_FOR_REFERENCE = 0.25
MIN_REFERENCE_SECONDS = 20.0
MAX_BUSY_SHARE = 0.95
"""Above it, the machine limits the trainers even without faults, and goodput measures the machine."""


def chaos(
    context: typer.Context,
    peers: Annotated[int, typer.Option(min=2, help="Training peers in the swarm.")] = 4,
    minutes: Annotated[float, typer.Option(min=0.1, help="How long faults are injected.")] = 3.0,
    faults: Annotated[int, typer.Option(min=0, help="How many to draw.")] = 12,
    seed: Annotated[int, typer.Option(help="Decides kinds, times and victims of the faults.")] = 1,
    script: Annotated[Path | None, typer.Option(help="JSON list of faults, instead of drawing them.")] = None,
    attack: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help=f"One process attacks, instead of faults: {NAMES}.")
    ] = None,
    serving: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help=f"Servers of the model fail, instead of faults: {SERVING_NAMES}."),
    ] = None,
    admission: Annotated[
        bool, typer.Option("--admission", help="Admit users only; the attacker is one of them.")
    ] = False,
    wire: Annotated[
        str, typer.Option(help="p2p, or hub: peers reach nothing but the Hub, which has faults of its own.")
    ] = "p2p",
    epoch_seconds: Annotated[
        float | None,
        typer.Option(min=1.0, help="Length of an epoch, without averaging: 4; with --wire hub, of a window: 8."),
    ] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Setting of the run.")] = None,
    output: Annotated[Path, typer.Option(help="Folder for logs, report.json, timeline.png.")] = Path("chaos-output"),
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the faults as a script and exit.")] = False,
) -> None:
    """Train a tiny model with local peers under injected faults, and report how the training coped.

    Peers are killed, frozen, cut off, slowed down, given a wrong clock; they send NaNs or lies; the Hub goes down and
    the auxiliary peer's disk fills up. Goodput (the samples per second that reach the shared model) is compared with a
    fault-free period just before. Exit code 0: goodput is at least 0.8, the evaluation loss falls, all peers end with
    equal parameters, and no process is left over; 3: one of these does not hold.

    Examples:

      dalle-collab chaos

      dalle-collab chaos --peers 3 --minutes 1 --faults 5 --seed 7 --json

      dalle-collab chaos --dry-run > faults.json

      dalle-collab chaos --script faults.json

      dalle-collab chaos --attack lying_epoch --attack stalling_leader

      dalle-collab chaos --peers 2 --minutes 3 --serving server --serving hole --serving false_server

      dalle-collab chaos --wire hub --minutes 6

      dalle-collab chaos --epoch-seconds 10 --set aggregation_rule=mean
    """
    kinds = {"script": script, "attack": attack, "serving": serving}
    if chosen := next((name for name, value in kinds.items() if value), None):
        others = [name for name in ("faults", *kinds) if name != chosen]
        refuse_given(context, f"--{chosen} says what happens", *others)
    for option, named, known in (("--attack", attack, ATTACKS), ("--serving", serving, ServingFault)):
        if unknown := sorted({*(named or ())}.difference(known)):
            raise ValueError(f"{option} got {', '.join(unknown)}; expected one of {', '.join(known)}.")
    if wire not in SECONDS_OF_EPOCHS:
        raise ValueError(f"--wire is {wire}; expected one of {', '.join(SECONDS_OF_EPOCHS)}.")
    if wire == "hub":
        refuse_given(context, "--wire hub has no swarm to attack, serve or admit to", "attack", "serving", "admission")
    seconds, settings = minutes * 60, parse_settings(set_)
    where = dict(seed=seed, duration_seconds=seconds, num_peers=peers, wire=wire)
    planned = _planned(script, attack, serving, faults, seconds, where)
    if dry_run:
        for line in script_text(planned).splitlines():
            typer.echo(line)
        return

    from pipelines.tools.chaos.chaos_run import ChaosPlan, run_chaos
    from pipelines.tools.chaos.chaos_swarm import SwarmPlan
    from pipelines.tools.chaos.ending import ends_on_signals

    console = open_console(stderr=True)
    plan = ChaosPlan(
        swarm=SwarmPlan(
            folder=output.resolve(),
            num_peers=peers,
            seed=seed,
            seconds_per_epoch=epoch_seconds or SECONDS_OF_EPOCHS[wire],
            wire=wire,
            has_authority=admission,
            settings=settings,
            serving_faults=frozenset(fault.kind for fault in planned) & frozenset(ServingFault),
        ),
        faults=planned,
        duration_seconds=seconds,
        reference_seconds=max(MIN_REFERENCE_SECONDS, seconds * SHARE_FOR_REFERENCE),
    )
    with ends_on_signals():
        report = run_chaos(plan, console)
    if as_json:
        typer.echo(json.dumps(report.to_json()))
    _show(report, output, console)
    if not all(report.criteria.values()):
        raise typer.Exit(3)


def _planned(
    script: Path | None,
    attack: list[str] | None,
    serving: list[str] | None,
    num_faults: int,
    seconds: float,
    where: dict[str, Any],
) -> tuple[Fault, ...]:
    """Return the faults of a script, attacks or faults of servers by name, or else such as are drawn."""
    if script is not None:
        return read_script(script, **where)
    if attack:
        return tuple(attack_in_the_middle(name, seconds) for name in dict.fromkeys(attack))
    if serving:
        return serving_faults_in_turn(serving, seconds)
    return draw_faults(num_faults=num_faults, **where)


def _show(report: "ChaosReport", output: Path, console: "rich.console.Console") -> None:  # noqa: F821 - see above
    from rich.table import Table
    from rich.text import Text

    losses = list(report.evaluation_losses.values())
    table = Table("figure", "value", title=counted(report.num_faults, "fault"))
    table.add_row("goodput relative to the fault-free period", f"{report.goodput:.3f}")
    table.add_row("upper bound, given the time lost to faults", f"{report.goodput_bound:.3f}")
    table.add_row("samples/s with and without faults", _pair(report))
    table.add_row("processors busy without faults", f"{report.reference_busy_share:.0%}")
    table.add_row("epochs", str(report.num_epochs))
    table.add_row("rounds lost, of all", f"{report.num_lost_rounds} of {report.num_rounds}")
    table.add_row("longest time without an epoch", f"{report.longest_epoch_seconds:.0f} s")
    table.add_row("evaluation loss", f"{losses[0]:.3f} to {losses[-1]:.3f}" if losses else "-")
    table.add_row("relative difference of parameters", f"{report.parameter_difference:.2g}")
    table.add_row("orphans, unexpected exits", f"{report.num_orphans}, {report.num_unexpected_exits}")
    table.add_row("checkpoints published", str(report.num_checkpoints))
    table.add_row("a trainer's memory has grown by", memory_size(report.memory_growth_bytes))
    for name, is_named in report.attacks.items():
        table.add_row(f"attacker named: {name}", "yes" if is_named else "no")
    for name, value in report.serving.items():
        table.add_row(name.removeprefix("num_").replace("_", " "), str(value))
    for name, is_met in report.criteria.items():
        table.add_row(name, Text("yes", "green") if is_met else Text("no", "red"))
    console.print(table)
    if report.reference_busy_share > MAX_BUSY_SHARE:
        console.print(
            "[yellow]The CPUs were saturated even without faults, so goodput says more about this machine than about "
            "the training.[/yellow] Stop other programs, or use fewer --peers.",
            markup=True,
        )
    console.print(f"See {output / 'timeline.png'} and {output / 'report.json'}.")


def _pair(report: "ChaosReport") -> str:
    return f"{report.samples_per_second:.0f} and {report.reference_samples_per_second:.0f}"
