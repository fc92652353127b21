"""What a run's settings mean to hivemind: optimizer and schedule, the averagers' options, how often peers look around.

Training peers and the auxiliary peer build their averagers from these very functions, so that they fit together.
"""

from functools import partial
from typing import Any

import hivemind
import torch

from pipelines.training.optimizers import Lamb, Nesterov, linear_schedule, weight_decay_groups
from pipelines.training.robust_aggregation import AggregationRule
from pipelines.training.state_averager import SwarmStateAverager
from pipelines.training.state_download import DownloadLimits
from pipelines.training.state_hand_off import HandOffLimits
from pipelines.training.training_run import TrainingRun
from pipelines.training.upload_limit import UploadLimit

REQUEST_SHARE = 0.4
"""Share of the matchmaking time in which a request must be answered: it fits twice."""


def make_state_averager(
    kind: type[SwarmStateAverager],
    *,
    dht: hivemind.DHT,
    run_id: str,
    matchmaking_seconds: float,
    **kwargs: Any,
) -> SwarmStateAverager:
    """Start the averager that holds the training state; trainers and the auxiliary peer must build it alike."""
    return kind(
        dht=dht,
        prefix=f"{run_id}_state_averager",
        min_matchmaking_time=matchmaking_seconds,
        offload_optimizer=True,
        custom_gradients=True,
        start=True,
        **kwargs,
    )


def optimizer_parts(run: TrainingRun, model: torch.nn.Module) -> dict[str, Any]:
    """Return the parameters, optimizer factory and schedule factory of the state that all peers share, in one order.

    With local steps this is the outer optimizer: Nesterov steps along the averaged progress, at a constant rate.
    """
    groups = weight_decay_groups(model.named_parameters(), run.weight_decay)
    if run.local_steps == 1:
        schedule = partial(linear_schedule, num_warmup=run.num_warmup_epochs, num_total=run.num_epochs)
        return dict(params=groups, optimizer=lamb_factory(run), scheduler=schedule)
    outer = partial(Nesterov, lr=run.outer_learning_rate, momentum=run.outer_momentum)
    # Weight decay is the inner optimizer's; decayed twice, parameters would shrink with every synchronisation.
    return dict(params=[dict(params=group["params"]) for group in groups], optimizer=outer, scheduler=None)


def lamb_factory(run: TrainingRun) -> partial[Lamb]:
    """Return what makes the run's LAMB of groups of parameters; momentum that gradients bring along is not added."""
    return partial(
        Lamb,
        lr=run.peak_learning_rate,
        betas=(0.0 if gradient_momentum(run) else run.betas[0], run.betas[1]),
        eps=run.epsilon,
        max_gradient_norm=run.max_gradient_norm,
        bits=run.optimizer_bits,
    )


def gradient_momentum(run: TrainingRun) -> float:
    """Return the momentum that peers add to their own gradients, of which LAMB then adds none."""
    return run.betas[0] if run.momentum_before_averaging else 0.0


def averager_options(run: TrainingRun) -> dict[str, Any]:
    """Return the options of both averagers; a request must fit twice into the matchmaking time."""
    return dict(
        request_timeout=min(5.0, REQUEST_SHARE * run.matchmaking_seconds),
        min_group_size=2,
        rule=aggregation_rule(run),
        min_share_averaged=run.min_share_averaged,
        rounds_begin_together=not run.delay_gradient_averaging,
    )


def reply_seconds(run: TrainingRun) -> float:
    """Return the seconds that a DHT node has to reply; a look into the DHT must fit twice into the matchmaking time."""
    return min(3.0, max(0.5, REQUEST_SHARE * run.matchmaking_seconds))


def aggregation_rule(run: TrainingRun) -> AggregationRule:
    """Return how the run's peers make one vector of many."""
    return AggregationRule(
        name=run.aggregation_rule,
        tau_ratio=run.tau_ratio,
        num_iterations=run.num_clipping_iterations,
        max_norm_ratio=run.max_norm_ratio,
        max_weight_ratio=run.max_weight_ratio,
    )


def upload_options(bandwidth_limit_mbit: float | None) -> dict[str, Any]:
    """Return the averagers' options for an upload limit in Mbit/s: what others are told, and what is kept to."""
    if bandwidth_limit_mbit is None:
        return {}
    return dict(bandwidth=bandwidth_limit_mbit, upload_limit=UploadLimit(bandwidth_limit_mbit))


def chunk_timeout(run: TrainingRun) -> float:
    """Return the seconds after which a silent sender is given up; below 6 s busy but healthy peers ban each other."""
    return max(6.0, run.averaging_timeout_seconds / 8)


def hand_off_limits(run: TrainingRun) -> HandOffLimits:
    """Return how patient newcomers are, in proportion to what the run's organiser expects of links."""
    chunk_seconds = chunk_timeout(run)
    return HandOffLimits(
        download=DownloadLimits(chunk_seconds=chunk_seconds, job_seconds=max(60.0, 4 * chunk_seconds)),
        total_seconds=run.averaging_timeout_seconds * 4,
        settling_seconds=min(15.0, run.averaging_timeout_seconds / 5),
        record_seconds=max(60.0, 2 * run.progress_expiration_seconds),
    )


def tracker_options(run: TrainingRun) -> dict[str, Any]:
    """Return how often peers look at each other's progress: in proportion to the time that silence may last."""
    expiration = run.progress_expiration_seconds
    return dict(
        min_refresh_period=min(0.5, expiration / 80),
        max_refresh_period=min(10.0, expiration / 8),
        default_refresh_period=min(3.0, expiration / 25),
        metadata_expiration=expiration,
    )
