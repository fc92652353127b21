"""What deeper models hold, from the moments of shallow ones."""

from itertools import accumulate

import pytest

from pipelines.features.memory_estimate.counted_step import CountedSteps, Moment, Stack

# An encoder's layers begin like a decoder's, whose first one makes a table besides that all of them keep.
ENCODER, DECODER, TABLE = (4, 4, 9), (4, 4, 9, 30, 2), 50


def step(num_encoder, num_decoder, samples):
    """Return the moments of a step whose layers keep all they make, and free it one by one in the backward pass."""
    made = [*ENCODER] * num_encoder + [TABLE] + [*DECODER] * num_decoder
    kept = [samples * size for size in made]
    forward = [Moment(size, live) for size, live in zip(kept, accumulate(kept), strict=True)]
    # A layer's gradients are there beside what it kept; the table goes before the layer that made it, like T5's bias.
    first = len(ENCODER) * num_encoder
    freed = [samples * TABLE if first < place <= first + len(DECODER) else 0 for place in range(len(made))]
    backward = [
        Moment(size, moment.live + size - less) for size, moment, less in zip(kept, forward, freed, strict=True)
    ]
    return forward, backward[::-1]


def counted(few, layers):
    stacks = [Stack(name, number, few, 1) for name, number in zip(("encoder", "decoder"), layers, strict=True)]
    depths = [(few, few), (few + 1, few), (few, few + 1)]
    return CountedSteps(stacks, (2, 3), tuple([step(*depth, samples) for depth in depths] for samples in (2, 3)))


@pytest.mark.parametrize("layers", [(24, 24), (24, 2), (2, 24), (12, 6)])
def test_the_peak_of_two_deep_stacks_follows_from_shallow_ones(layers):
    for samples in (1, 2, 64):
        lines = counted(2, layers).lines()
        expected = max(moment.live for moments in step(*layers, samples) for moment in moments)
        assert max(without + samples * each for without, each in lines) == pytest.approx(expected)


def test_a_share_of_the_layers_is_a_share_of_each_stack():
    expected = max(moment.live for moments in step(12, 6, 5) for moment in moments)
    assert max(without + 5 * each for without, each in counted(2, (24, 12)).lines(0.5)) == pytest.approx(expected)
