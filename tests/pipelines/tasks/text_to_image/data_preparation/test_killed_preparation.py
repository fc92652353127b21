"""The whole preparation, killed with SIGKILL: the same bytes with any workers and batches, every sample counted."""

import json

import pytest
from dirty_pictures import write_dirty_tars
from killed_preparation import folder_digest, prepare_with_kills

pytestmark = pytest.mark.slow

NUM_SAMPLES = 480


@pytest.mark.long
def test_killed_preparations_give_the_same_bytes_and_count_every_sample(codec, tmp_path):
    dropped = write_dirty_tars(tmp_path / "tars", NUM_SAMPLES, samples_per_tar=200, side=40, large=(13_000, 3_000))
    codec.save_pretrained(tmp_path / "codec")
    arguments = [str(tmp_path / "tars"), "--codec", str(tmp_path / "codec"), "--shard-size", "48"]
    digests, held = {}, []
    for num_kills, workers, batch_size in [(0, 1, 1), (3, 2, 7), (2, 1, 64)]:
        output = tmp_path / f"out-{workers}-{batch_size}"
        options = ["--workers", str(workers), "--batch-size", str(batch_size)]
        held += prepare_with_kills([*arguments, *options], output, num_kills, NUM_SAMPLES // 48)
        digests[output.name] = folder_digest(output)
    assert len(set(digests.values())) == 1, digests
    report = json.loads((output / "report.json").read_text())
    assert report["dropped"] == dropped and report["kept"] == NUM_SAMPLES - dropped.total()
    assert max(memory.resident for memory in held) < 1.5e9
