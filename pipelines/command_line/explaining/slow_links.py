"""Settings of a run whose volunteers have slow links; pure arithmetic."""

import math

from pipelines.core.run.training_run import TrainingRun

SECONDS_OF_A_BATCH = 10.0
"""What a round may take, divided among the batches that are computed between two rounds."""

LOCAL_STEPS = (1, 5, 15, 50)
"""Measured numbers of local steps (docs/measurements/training.md)."""

INNER_RATE = 4e-4
"""Peak learning rate of `muon` with inner batches of 256."""


def round_seconds(num_parameters: int, mbit: float) -> float:
    """Return how long a round of many peers takes at most, all with links of so many Mbit/s each way.

    Each peer sends its values to the others, and the averages of its share to them: nearly two values of 8 bits for
    each parameter, and receives as many.
    """
    return 2 * 8 * num_parameters / (mbit * 1e6)


def settings_for_links(run: TrainingRun, num_parameters: int, mbit: float) -> dict[str, object]:
    """Return the settings that keep a run's rounds short beside its computing; none if they are.

    The number of samples stays: an epoch has those of all local steps.

    Raises:
        ValueError: `mbit` is no positive number, the run has local steps, or even the most are too few.
    """
    if not (math.isfinite(mbit) and mbit > 0):
        raise ValueError(f"--links is {mbit}; expected the Mbit/s of the volunteers' links, such as 15.")
    if run.local_steps > 1:
        raise ValueError(
            f"--links chooses local_steps, and local_steps={run.local_steps} was set. Leave out one of them."
        )
    seconds = round_seconds(num_parameters, mbit)
    steps = next((number for number in LOCAL_STEPS if seconds <= number * SECONDS_OF_A_BATCH), None)
    if steps is None:
        raise ValueError(
            f"A round takes {seconds:,.0f} s at {mbit:g} Mbit/s, too long even for {LOCAL_STEPS[-1]} local steps. Send "
            "the largest values alone: --set local_steps=30 --set synchronisation=sparse --set aggregation_rule=mean"
        )
    if steps == 1:
        return {}
    return dict(
        local_steps=steps,
        inner_optimizer="muon",
        peak_learning_rate=INNER_RATE,
        outer_learning_rate=None,  # as the run chooses it for this inner optimizer
        outer_momentum=None,
        num_epochs=math.ceil(run.num_epochs / steps),
        num_warmup_epochs=math.ceil(run.num_warmup_epochs / steps),
    )
