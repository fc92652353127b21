"""Builds the parts of a run's optimizer and connects them. hivemind forks here: the order matters."""

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import hivemind
import torch

from pipelines.child_watch import ChildWatch, wait_until_started
from pipelines.swarm.records import SwarmRecords
from pipelines.training.averaging.group.time_limits import RoundTimes
from pipelines.training.averaging.wire.codec import averaging_compression, check_codec
from pipelines.training.gradients.epoch_listener import EpochListener
from pipelines.training.optimizers.choice import OptimizerParts, gradient_momentum, optimizer_parts
from pipelines.training.run.training_run import TrainingRun
from pipelines.training.state.anchors import AnchorKeys, AnchorWatch
from pipelines.training.state.exchange import StateExchange
from pipelines.training.state.training_state import TrainingState
from pipelines.training.state.transfer import StateTransfer
from pipelines.training.swarm_optimizer.acquaintances import Acquaintances
from pipelines.training.swarm_optimizer.epoch_end import EpochParts
from pipelines.training.swarm_optimizer.gathering import Gathering, LocalSteps, SparseLocalSteps, SummedGradients
from pipelines.training.swarm_optimizer.gradient_averager import SwarmGradientAverager
from pipelines.training.swarm_optimizer.hivemind_options import (
    averager_options,
    chunk_timeout,
    tracker_options,
    transfer_limits,
    upload_options,
)
from pipelines.training.swarm_optimizer.optimizer import SECONDS_TO_SHUT_DOWN, SwarmOptimizer
from pipelines.training.swarm_optimizer.progress_tracking import SwarmProgressTracker
from pipelines.training.swarm_optimizer.round_policy import RoundPolicy
from pipelines.training.swarm_optimizer.sparse_averager import SparseGradientAverager

LISTENER: Mapping[str, Any] = dict(auxiliary=True, bandwidth=0.0, reuse_grad_buffers=True)
"""Options of a gradient averager that sends nothing, and reduces nothing unless it `may_help`; see
`TrustedAllReduceRunner`."""

GRADIENTS_PROCESS = "The process of hivemind that averages gradients"


def make_optimizer(
    *,
    run: TrainingRun,
    dht: hivemind.DHT,
    model: torch.nn.Module,
    records: SwarmRecords,
    bandwidth_limit_mbit: float | None = None,
    gradient_averager_type: Callable[..., SwarmGradientAverager] | None = None,
    anchor_keys: AnchorKeys = tuple,
    own_anchor_key: str | None = None,
    listeners: Sequence[EpochListener] = (),
    listens: bool = False,
    may_help: bool = False,
    children: ChildWatch | None = None,
    stepping: OptimizerParts | None = None,
    verbose: bool = False,
) -> SwarmOptimizer:
    """Start what the run's settings ask for: a tracker, the averager of gradients, the exchange of states.

    `anchor_keys` returns the public keys of the run's anchors, in order; `own_anchor_key` is this peer's, if it is one.
    `listens`: it takes part in rounds without a gradient, sends nothing, and reduces nothing, except where it
    `may_help` and its link makes the rounds shorter. `children` watches the process that is started.
    `stepping` has the parts of what steps the shared state; by default the run's settings say which.
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
    gradients = (gradient_averager_type or averager_of(run))(
        parameters=state.main_parameters,
        dht=dht,
        admission=records.admissions.admission,
        prefix=f"{run.swarm_id}_grad_averager",
        min_matchmaking_time=run.matchmaking_seconds,
        keeps_own_gradient=True,
        gradient_momentum=gradient_momentum(run),
        other_tensors=state.own_tensors,
        start=False,
        **(options | (dict(LISTENER, may_help=may_help) if listens else {})),
    )
    gradients.run_in_background(await_ready=False)
    wait_until_started(gradients, GRADIENTS_PROCESS)
    children.add(gradients.pid, GRADIENTS_PROCESS)
    exchange = StateExchange(
        state,
        dht,
        run.swarm_id,
        admission=records.admissions.admission,
        upload_limit=options.get("upload_limit"),
    )
    step_along_averaged_gradients(state, gradients)
    gathering = SummedGradients(gradients) if listens else gathering_of(run, model, gradients, state)
    tracker = new_tracker()  # when nothing can fail any more: its thread would go on
    parts = EpochParts(
        run=run,
        policy=RoundPolicy.of(run),
        tracker=tracker,
        state=state,
        gradients=gradients,
        gathering=gathering,
        records=records,
        transfer=StateTransfer(exchange, records, transfer_limits(run), acquaintances, anchors),
        round_times=_round_times(run),
        acquaintances=acquaintances,
        anchors=anchors,
        listeners=listeners,
        listens=listens,
    )
    return SwarmOptimizer(parts, new_tracker, children)


def averager_of(run: TrainingRun) -> Callable[..., SwarmGradientAverager]:
    """Return what makes the averager of gradients, or of progress, that a run's peers use."""
    if run.synchronisation == "sparse":
        return partial(SparseGradientAverager, values_per_chunk=run.sparse_values_per_chunk)
    return SwarmGradientAverager


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


def step_along_averaged_gradients(state: TrainingState, gradients: SwarmGradientAverager) -> None:
    """Make the optimizer's gradients the averaged tensors: nothing is copied between the two."""
    with gradients.get_tensors() as averaged:
        for parameter, gradient in zip(state.optimized_parameters, averaged, strict=True):
            parameter.grad = gradient


def gathering_of(
    run: TrainingRun, model: torch.nn.Module, gradients: SwarmGradientAverager, state: TrainingState
) -> Gathering:
    """Return what the run's peers do with their gradients between two rounds."""
    if run.local_steps == 1:
        return SummedGradients(gradients)
    if isinstance(gradients, SparseGradientAverager):
        return SparseLocalSteps(run, model, gradients, state)
    return LocalSteps(run, model, gradients, state)


def _round_times(run: TrainingRun) -> RoundTimes:
    # An attempt at a sparse round lasts as long as a silent sender is waited for, and there may be two.
    num_chunks = 4 if run.synchronisation == "sparse" else 2
    return RoundTimes(
        overhead=2 * run.matchmaking_seconds,
        lowest=run.matchmaking_seconds + num_chunks * chunk_timeout(run),
        highest=run.averaging_timeout_seconds,
    )
