"""What the demo's language models have to beat is known for every Python that there is."""

import pytest

from pipelines.tools.demo.language.language_judge import NGRAM_PERPLEXITIES, baseline_perplexity


@pytest.mark.parametrize(
    ("python", "nearest"), [("3.11.15", "3.11.7"), ("3.12.1", "3.12.1"), ("3.13.0rc1", "3.13.0"), ("3.14.2", "3.13.0")]
)
def test_the_baseline_is_that_of_the_nearest_python(python, nearest):
    for task, measured in NGRAM_PERPLEXITIES.items():
        assert baseline_perplexity(task, python) == (measured[nearest], nearest)
