"""The learning rate schedule of a run, as plain arithmetic."""

from pipelines.core.run.training_run import TrainingRun


def linear_factor(epoch: int, *, num_warmup: int, num_total: int) -> float:
    """Return the share of the peak learning rate in an epoch, in [0, 1]; see `choice.linear_schedule`."""
    if epoch < num_warmup:
        return (epoch + 1) / (num_warmup + 1)
    return max(0.0, (num_total - epoch) / max(1, num_total - num_warmup))


def learning_rate(run: TrainingRun, epoch: int) -> float:
    """Return the learning rate of an epoch."""
    factor = linear_factor(epoch, num_warmup=run.num_warmup_epochs, num_total=run.num_epochs)
    return run.peak_learning_rate * factor
