"""Error feedback: nothing of the progress is lost but what decays, whatever becomes of a round."""

import math

import pytest
import torch
from sparse_progress import CHUNK, SHAPES, K, decoded, made_up

from pipelines.features.sparse.codec import SparseCodec
from pipelines.features.sparse.error_feedback import ErrorFeedback


@pytest.fixture
def codec():
    return SparseCodec(SHAPES, CHUNK, K)


def test_what_is_kept_is_the_decayed_sum_of_progress_less_exactly_what_was_sent(codec):
    feedback, expected = ErrorFeedback(codec, decay=0.9), [torch.zeros(shape) for shape in SHAPES]
    for seed in range(5):
        progress = made_up(seed)
        accumulated = [0.9 * kept + new for kept, new in zip(expected, progress, strict=True)]
        payload = feedback.compress(progress, 1)
        assert payload == codec.encode(accumulated, 1)
        expected = [total - sent for total, sent in zip(accumulated, decoded(codec, payload), strict=True)]
        assert all(map(torch.equal, feedback.error, expected))


def test_without_decay_all_of_the_progress_is_sent_in_the_end(codec):
    feedback, progress = ErrorFeedback(codec, decay=1.0), made_up(1)
    nothing, total = [torch.zeros(shape) for shape in SHAPES], [torch.zeros(shape) for shape in SHAPES]
    for number in range(300):
        sent = decoded(codec, feedback.compress(nothing if number else progress, 1))
        total = [summed + new for summed, new in zip(total, sent, strict=True)]
    for summed, whole in zip(total, progress, strict=True):
        torch.testing.assert_close(summed, whole, atol=2e-5, rtol=0)


def test_a_failed_round_gives_back_what_was_sent_once(codec):
    feedback, progress = ErrorFeedback(codec, decay=1.0), made_up(2)
    feedback.compress(progress, 1)
    feedback.restore()
    feedback.restore()
    for kept, whole in zip(feedback.error, progress, strict=True):
        torch.testing.assert_close(kept, whole, atol=1e-9, rtol=1e-6)


def test_what_the_mean_has_cut_comes_back_once(codec):
    feedback = ErrorFeedback(codec, decay=1.0)
    payload = feedback.compress(made_up(2), 1)
    unsent = [kept.clone() for kept in feedback.error]
    feedback.restore(0.25)
    feedback.restore()
    for kept, before, sent in zip(feedback.error, unsent, decoded(codec, payload), strict=True):
        torch.testing.assert_close(kept, before + 0.25 * sent, atol=1e-9, rtol=1e-6)


def test_progress_that_is_not_finite_or_has_another_shape_changes_nothing(codec):
    feedback = ErrorFeedback(codec, decay=0.9)
    feedback.compress(made_up(3), 1)
    before = [kept.clone() for kept in feedback.error]
    broken = made_up(4)
    broken[0][0, 0] = math.nan
    with pytest.raises(ValueError, match="not finite"):
        feedback.compress(broken, 1)
    with pytest.raises(ValueError, match="expected float32 of shapes"):
        feedback.compress([torch.ones(1) for _ in SHAPES], 1)
    assert all(map(torch.equal, feedback.error, before))


def test_after_a_reset_nothing_of_the_former_progress_is_sent(codec):
    feedback = ErrorFeedback(codec, decay=1.0)
    feedback.compress(made_up(5), 1)
    feedback.reset()
    feedback.restore()
    assert feedback.compress(made_up(6), 1) == codec.encode(made_up(6), 1)


@pytest.mark.parametrize("decay", [0.0, -0.5, 1.01, math.nan])
def test_a_decay_out_of_range_is_refused(codec, decay):
    with pytest.raises(ValueError, match=f"decay of the error feedback is {decay}; expected more than 0"):
        ErrorFeedback(codec, decay)
