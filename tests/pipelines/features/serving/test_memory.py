"""How much a server gives where its owner does not say."""

import pytest

from pipelines.features.serving.memory import SHARE_FOR_OTHERS, UNKNOWN_BYTES, free_memory, memory_for_others


@pytest.mark.parametrize(
    ("gibibytes", "free", "expected"),
    [
        (1.5, 10, 3 * 2**29),
        (None, 8e9, 8e9 * SHARE_FOR_OTHERS),
        (None, -1.0, 0),
        (None, None, UNKNOWN_BYTES),
    ],
)
def test_what_the_owner_says_counts_else_a_share_of_what_is_free(gibibytes, free, expected):
    assert memory_for_others(gibibytes, free) == expected


def test_this_machine_has_some():
    assert free_memory("cpu") > 0
