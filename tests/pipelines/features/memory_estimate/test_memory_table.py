"""The stored table has what a fresh count gives."""

import json

import pytest
from memory_table import table_entry

from pipelines.features.memory_estimate.model_presets import MODEL_PRESETS, TABLE

STORED = json.loads(TABLE.read_text(encoding="utf-8"))


def test_the_table_has_every_named_model():
    assert list(STORED) == list(MODEL_PRESETS)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["BERT base", "GPT-2 S"])
def test_a_fresh_count_is_what_the_table_says(name):
    assert json.loads(json.dumps(table_entry(MODEL_PRESETS[name]))) == STORED[name]
