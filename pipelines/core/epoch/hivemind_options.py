"""Translates a run's settings for hivemind: the averagers' options, limits of transfers, polling intervals.

Training peers and the auxiliary peer build their averagers with these same functions, so that they are compatible.
"""

from pipelines.core.averaging.reduce.robust_aggregation import AggregationRule
from pipelines.core.run.training_run import TrainingRun
from pipelines.core.state.download import DownloadLimits
from pipelines.core.state.transfer import TransferLimits
from pipelines.core.swarm.upload_limit import UploadLimit

REQUEST_SHARE = 0.4
"""Share of the matchmaking time in which a request must be answered: there is time for two."""


def averager_options(run: TrainingRun) -> dict[str, object]:
    """Return the options of averagers; a request must fit twice into the matchmaking time."""
    return dict(
        request_timeout=min(5.0, REQUEST_SHARE * run.matchmaking_seconds),
        min_group_size=2,
        rule=aggregation_rule(run),
        min_share_averaged=run.min_share_averaged,
        rounds_begin_together=not run.delay_gradient_averaging,
    )


def reply_seconds(run: TrainingRun) -> float:
    """Return the seconds that a DHT node has to reply; two DHT queries must fit into the matchmaking time."""
    return min(3.0, max(0.5, REQUEST_SHARE * run.matchmaking_seconds))


def aggregation_rule(run: TrainingRun) -> AggregationRule:
    """Return how the run's peers aggregate their vectors."""
    return AggregationRule(
        name=run.aggregation_rule,
        tau_ratio=run.tau_ratio,
        num_iterations=run.num_clipping_iterations,
        max_norm_ratio=run.max_norm_ratio,
        max_weight_ratio=run.max_weight_ratio,
    )


def upload_options(bandwidth_limit_mbit: float | None) -> dict[str, object]:
    """Return the averagers' options for an upload limit in Mbit/s: the bandwidth to advertise and the limit to keep."""
    if bandwidth_limit_mbit is None:
        return {}
    return dict(bandwidth=bandwidth_limit_mbit, upload_limit=UploadLimit(bandwidth_limit_mbit))


def chunk_timeout(run: TrainingRun) -> float:
    """Return the seconds after which a silent sender is dropped; below 6 s busy but healthy peers ban each other.

    How much longer senders on slow links may be silent follows from what they were seen to deliver; see `Patience`.
    """
    return min(15.0, max(6.0, run.averaging_timeout_seconds / 8))


def transfer_limits(run: TrainingRun) -> TransferLimits:
    """Return the newcomers' time limits, in proportion to the links that the organiser expects."""
    chunk_seconds = chunk_timeout(run)
    return TransferLimits(
        download=DownloadLimits(chunk_seconds=chunk_seconds, job_seconds=max(60.0, 4 * chunk_seconds)),
        total_seconds=run.averaging_timeout_seconds * 4,
        settling_seconds=min(15.0, run.averaging_timeout_seconds / 5),
        record_seconds=max(60.0, 2 * run.progress_expiration_seconds),
    )


def tracker_options(run: TrainingRun) -> dict[str, object]:
    """Return how often peers check each other's progress: in proportion to the silence time-out."""
    expiration = run.progress_expiration_seconds
    return dict(
        min_refresh_period=min(0.5, expiration / 80),
        max_refresh_period=min(10.0, expiration / 8),
        default_refresh_period=min(3.0, expiration / 25),
        metadata_expiration=expiration,
    )
