"""The ledger of a real run: an anchor, trainers that come, die and come back, and what was published of it."""

import contextlib
from collections import Counter

import pytest
from assistants import assistant
from ledger_runs import Trainer, create_ledger_run
from published_runs import NOT_FOR_PEOPLE

from pipelines.core.run.spans import Span
from pipelines.features.ledger.gradient_files import GRADIENTS_FILE, read_gradients, write_gradients
from pipelines.features.ledger.ledger_files import overlaps, read_bookings, read_state

pytestmark = [pytest.mark.slow, pytest.mark.swarm]

NUM_RECORDS = 6_144


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:It seems that you are about to commit a data file")
@pytest.mark.timeout(600)
def test_each_record_of_the_first_pass_counts_once_though_a_trainer_is_killed_and_comes_back(
    training_material, tmp_path
):
    settings = dict(num_epochs=30, target_batch_size=512, checkpoint_interval_epochs=2)
    material, repository = create_ledger_run(training_material, tmp_path, "ledger", NUM_RECORDS, **settings)
    with contextlib.ExitStack() as stack:
        anchor = stack.enter_context(assistant(material, repository, tmp_path, "anchor"))
        anchor.wait_until(lambda look: True, "up")

        def join(name):
            options = ["--identity-file", str(tmp_path / "second.key")] if name.startswith("second") else []
            return stack.enter_context(Trainer.joining(material, repository, tmp_path, name, *options))

        join("first")
        second = join("second")
        # Of a round that the anchor has missed, before it knew the two, nothing counts.
        anchor.wait_until(lambda look: look["published_epoch"] >= 2 and len(second.epochs()) >= 2, "both train")
        second.process.kill()
        anchor.wait_until(lambda look: look["num_trainers"] == 1, "one is gone", after=len(anchor.looks()))
        again = join("second-again")
        anchor.wait_until(lambda look: len(again.epochs()) >= 2, "it is back")
        anchor.wait_until(lambda look: look["published_epoch"] >= 30, "published", seconds=300)
    for log in ("anchor.log", "first.log", "second-again.log"):
        assert NOT_FOR_PEOPLE.search(text := (tmp_path / log).read_text()) is None, text
    published = material.snapshot(repository) / "metrics"
    bookings, state = read_bookings(published), read_state(published / "ledger.json")
    assert overlaps(bookings) == []
    first_pass = [booking for booking in bookings if booking.span.pass_number == 0]
    assert sum(booking.span.num_records for booking in first_pass) == NUM_RECORDS
    assert dict(state["finished_passes"])[0] == NUM_RECORDS and state["num_strange"] == state["num_repeated"] == 0
    names = Counter(booking.name for booking in bookings)
    last = {name: max(booking.epoch for booking in bookings if booking.name == name) for name in names}
    assert len(names) == 2 and min(last.values()) > 10, "the second came back under its name"
    checked = material.commands.run("run", "ledger", repository)
    assert checked.returncode == 0 and "Every record that was trained on counted once." in checked.stdout
    assert "100.00 %" in checked.stdout
    assert {booking.epoch for booking in bookings} >= {gradient.epoch for gradient in read_gradients(published)}
    recomputed = material.commands.run("run", "recompute", repository, "--most", "20")
    assert recomputed.returncode == 0, recomputed.stdout + recomputed.stderr
    assert " 100.0 % of the records" in recomputed.stdout
    print(recomputed.stdout)
    signed = read_gradients(published)
    assert len({gradient.model_epoch for gradient in signed}) > 10
    stolen = [signed[0]._replace(sketch=signed[-1].sketch), signed[0]._replace(spans=(Span(0, 999, 0, 0, 8),))]
    write_gradients(tmp_path, [*signed[1:], *stolen])
    material.api.upload_file(
        repo_id=repository, path_or_fileobj=tmp_path / GRADIENTS_FILE, path_in_repo=f"metrics/{GRADIENTS_FILE}"
    )
    recomputed = material.commands.run("run", "recompute", repository, "--most", "1000")
    assert recomputed.returncode == 1 and "2 of " in recomputed.stderr, recomputed.stdout + recomputed.stderr
    assert "The dataset has no block 0 of a shard 999." in recomputed.stderr
    report = material.commands.run("run", "report", repository, "--output", tmp_path / "report.md")
    assert report.returncode == 0, report.stderr
    text = (tmp_path / "report.md").read_text()
    assert f"| pass 1 | {NUM_RECORDS:,} records trained on, 0 counted twice |" in text
