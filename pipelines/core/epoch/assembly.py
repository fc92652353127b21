"""Builds the parts of a run's optimizer and connects them. hivemind forks here: the order matters."""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import hivemind
import torch

from hub_tools.processes.child_watch import ChildWatch, wait_until_started
from pipelines.core.averaging.averager import SwarmAverager
from pipelines.core.averaging.group.time_limits import RoundTimes
from pipelines.core.averaging.wire.codec import averaging_compression, check_codec
from pipelines.core.epoch.acquaintances import Acquaintances
from pipelines.core.epoch.epoch_end import EpochContext
from pipelines.core.epoch.gathering import GradientSum, SummedGradients
from pipelines.core.epoch.hivemind_options import (
    averager_options,
    chunk_timeout,
    tracker_options,
    transfer_limits,
    upload_options,
)
from pipelines.core.epoch.optimizer import SECONDS_TO_SHUT_DOWN, SwarmOptimizer
from pipelines.core.epoch.progress_tracking import SwarmProgressTracker
from pipelines.core.epoch.reduction import Reduction, reduction_of
from pipelines.core.epoch.round_policy import RoundPolicy
from pipelines.core.gradients.epoch_listener import EpochListener
from pipelines.core.optimizers.choice import OptimizerContext, gradient_momentum, optimizer_parts
from pipelines.core.run.training_run import TrainingRun
from pipelines.core.state.anchors import AnchorKeys, AnchorWatch
from pipelines.core.state.exchange import StateExchange
from pipelines.core.state.training_state import TrainingState
from pipelines.core.state.transfer import StateTransfer
from pipelines.core.swarm.records import SwarmRecords

LISTENER: dict[str, object] = dict(auxiliary=True, bandwidth=0.0)
"""Options of an averager that sends nothing, and reduces nothing unless its division lets it help; see
`TrustedAllReduceRunner`."""

GRADIENTS_PROCESS = "The process of hivemind that averages gradients"


def make_optimizer(
    *,
    run: TrainingRun,
    dht: hivemind.DHT,
    model: torch.nn.Module,
    records: SwarmRecords,
    bandwidth_limit_mbit: float | None = None,
    averager_type: Callable[..., SwarmAverager] | None = None,
    anchor_keys: AnchorKeys = tuple,
    own_anchor_key: str | None = None,
    listeners: Sequence[EpochListener] = (),
    listens: bool = False,
    may_help: bool = False,
    children: ChildWatch | None = None,
    stepping: OptimizerContext | None = None,
    verbose: bool = False,
) -> SwarmOptimizer:
    """Start what the run's settings ask for: a tracker, the averager of gradients, the exchange of states.

    `anchor_keys` returns the public keys of the run's anchors, in order; `own_anchor_key` is this peer's, if it is one.
    `listens`: it takes part in rounds without a gradient, sends nothing, and reduces nothing, except where it
    `may_help` and its link makes the rounds shorter. `children` watches the process that is started.
    `stepping` has the parts of what steps the shared state; by default the run's settings say which.
    `averager_type` averages densely in place of what the settings ask for.
    """
    check_codec(averaging_compression(run))
    level, children = logging.INFO if verbose else logging.DEBUG, children or ChildWatch()
    acquaintances = Acquaintances(dht.peer_id.to_base58())
    anchors = AnchorWatch(records, run.swarm_id, anchor_keys, own_anchor_key)
    if anchor_keys():
        acquaintances.vouch(frozenset())  # until the anchors have been heard
    new_tracker = partial(_start_tracker, run, dht, records, acquaintances, level, listens)
    options = _averager_options(run, dht, bandwidth_limit_mbit)
    state = TrainingState(run.swarm_id, **(stepping or optimizer_parts(run, model)))
    reduction = reduction_of(run, averager_type)
    averager = reduction.averager(
        averaged_tensors=[torch.zeros_like(parameter) for parameter in state.optimized_parameters],
        dht=dht,
        admission=records.admissions.admission,
        prefix=f"{run.swarm_id}_grad_averager",
        min_matchmaking_time=run.matchmaking_seconds,
        weight_momentum=gradient_momentum(run),
        own_tensors=state.own_tensors,
        start=False,
        may_help=may_help,
        **(options | (LISTENER if listens else {})),
    )
    averager.run_in_background(await_ready=False)
    wait_until_started(averager, GRADIENTS_PROCESS)
    children.add(averager.pid, GRADIENTS_PROCESS)
    exchange = StateExchange(
        state,
        dht,
        run.swarm_id,
        admission=records.admissions.admission,
        upload_limit=options.get("upload_limit"),
    )
    step_along_averaged_gradients(state, averager)
    gathering = SummedGradients(GradientSum(())) if listens else reduction.gathering(model, averager, state)
    tracker = new_tracker()  # when nothing can fail any more: its thread would go on
    parts = EpochContext(
        run=run,
        policy=RoundPolicy.of(run, searches_early=reduction.searches_early),
        tracker=tracker,
        state=state,
        averager=averager,
        gathering=gathering,
        records=records,
        transfer=StateTransfer(exchange, records, transfer_limits(run), acquaintances, anchors),
        round_times=_round_times(run, reduction),
        acquaintances=acquaintances,
        anchors=anchors,
        listeners=listeners,
        listens=listens,
    )
    return SwarmOptimizer(parts, new_tracker, children)


def _start_tracker(
    run: TrainingRun,
    dht: hivemind.DHT,
    records: SwarmRecords,
    acquaintances: Acquaintances,
    level: int,
    listens: bool,
) -> SwarmProgressTracker:
    tracker = SwarmProgressTracker(
        dht=dht,
        prefix=run.swarm_id,
        target_batch_size=run.samples_per_epoch,
        admissions=records.admissions,
        acquaintances=acquaintances,
        client_mode=dht.client_mode,
        status_loglevel=level,
        start=True,
        **tracker_options(run),
    )
    tracker.seconds_to_come, tracker.listens = run.matchmaking_seconds, listens
    return tracker


def _averager_options(run: TrainingRun, dht: hivemind.DHT, bandwidth_limit_mbit: float | None) -> dict[str, Any]:
    """Return the options of a training peer's averager."""
    return dict(
        averager_options(run),
        **upload_options(bandwidth_limit_mbit),
        compression=averaging_compression(run),
        allreduce_timeout=run.averaging_timeout_seconds / 2,
        next_chunk_timeout=chunk_timeout(run),
        shutdown_timeout=SECONDS_TO_SHUT_DOWN,
        client_mode=dht.client_mode,
        allow_state_sharing=False,  # of gradients
    )


def step_along_averaged_gradients(state: TrainingState, averager: SwarmAverager) -> None:
    """Make the optimizer's gradients the averaged tensors: nothing is copied between the two."""
    with averager.get_tensors() as averaged:
        for parameter, gradient in zip(state.optimized_parameters, averaged, strict=True):
            parameter.grad = gradient


def _round_times(run: TrainingRun, reduction: Reduction) -> RoundTimes:
    return RoundTimes(
        overhead=2 * run.matchmaking_seconds,
        lowest=run.matchmaking_seconds + reduction.silences_of_a_round * chunk_timeout(run),
        highest=run.averaging_timeout_seconds,
    )
