import pytest

from pipelines.core.run.training_run import TrainingRun
from pipelines.tasks.setting_list import settings_without_effect

NEEDED = dict(run_id="birds", model_config={"hidden_size": 8}, dataset_repository="org/birds", dataset_revision="abc")
SPARSE = dict(synchronisation="sparse", local_steps=30, outer_momentum=0, aggregation_rule="mean")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (dict(tau_ratio=1.0, aggregation_rule="mean"), ["tau_ratio has no effect: it needs another aggregation_rule"]),
        (dict(inner_batch_size=8), ["inner_batch_size has no effect: it needs local_steps above 1."]),
        (dict(inner_batch_size=8, local_steps=2), []),
        (dict(optimizer="adamw", local_steps=2), ["optimizer has no effect: it needs local_steps=1."]),
        (dict(min_8bit_elements=9, averaging_compression="none"), ["min_8bit_elements has no effect: it needs averag"]),
        (
            dict(reel_interval_epochs=9, bucket_interval_epochs=9),
            ["bucket_interval_epochs has", "reel_interval_epochs"],
        ),
        (dict(sparse_error_decay=0.5), ["sparse_error_decay has no effect: it needs synchronisation=sparse."]),
        (SPARSE, []),
    ],
)
def test_settings_without_effect_beside_the_others_are_named(changes, said):
    found = settings_without_effect(TrainingRun(**NEEDED, **changes), changes)
    assert len(found) == len(said) and all(text.startswith(start) for text, start in zip(found, said, strict=True))
    assert settings_without_effect(TrainingRun(**NEEDED, **changes), ()) == []
