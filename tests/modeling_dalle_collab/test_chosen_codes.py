"""Codes are chosen with the probabilities that the sampling options leave."""

import torch

from modeling_dalle_collab.sampling_dalle_collab import SamplingOptions, choose_codes, keep_likely

NO_LIMIT = SamplingOptions(top_k=None)


def test_codes_are_drawn_with_the_probabilities_of_the_tempered_softmax():
    logits = torch.tensor([0.0, 2.0, -1.0, 1.0])
    options = SamplingOptions(top_k=None, temperature=0.7)
    numbers = (torch.arange(100_000, dtype=torch.float64) + 0.5) / 100_000
    chosen = choose_codes(logits.expand(100_000, -1), numbers, options)
    shares = chosen.bincount(minlength=4) / 100_000
    torch.testing.assert_close(shares, (logits / 0.7).softmax(dim=-1), atol=2e-5, rtol=0)


def test_top_k_keeps_the_likeliest_codes():
    logits = torch.tensor([[0.0, 3.0, 1.0, 2.0], [5.0, 1.0, 2.0, 3.0]])
    kept = keep_likely(logits, SamplingOptions(top_k=2)).isfinite()
    assert kept.tolist() == [[False, True, False, True], [True, False, False, True]]
    assert keep_likely(logits, SamplingOptions(top_k=9)).isfinite().all()


def test_top_p_keeps_codes_until_the_threshold_is_crossed():
    logits = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()
    for top_p, number_kept in ((0.4, 1), (0.6, 2), (0.81, 3), (0.99, 4), (1.0, 4)):
        kept = keep_likely(logits, SamplingOptions(top_k=None, top_p=top_p)).isfinite()
        assert kept.tolist() == [[place < number_kept for place in range(4)]]


def test_top_p_counts_after_top_k():
    logits = torch.tensor([[0.4, 0.3, 0.2, 0.1]]).log()
    # Of the first two codes alone the first has 0.57.
    assert keep_likely(logits, SamplingOptions(top_k=2, top_p=0.55)).isfinite().tolist() == [
        [True, False, False, False]
    ]


def test_a_code_without_probability_is_never_chosen():
    logits = torch.tensor([[-torch.inf, 0.0, -torch.inf, 0.0, -torch.inf]]).expand(4, -1)
    numbers = torch.tensor([0.0, 0.4999, 0.5, 1 - 2**-53], dtype=torch.float64)
    assert choose_codes(logits, numbers, NO_LIMIT).tolist() == [1, 1, 3, 3]
