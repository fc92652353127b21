"""The ledger of a real run whose first anchor is killed, loses everything that it had not published, and comes back.

Writes `results/two_anchors.json`. It takes five minutes: an anchor that says nothing counts as present for two.
Usage: python -m pytest tests/long/two_anchors.py
"""

import contextlib
import json
import shutil
import time
from pathlib import Path

import pytest
from assistants import assistant
from ledger_runs import Trainer, create_ledger_run

from hub_tools.atomic_files import write_text_whole
from pipelines.core.state.anchors import SECONDS_FRESH
from pipelines.features.ledger.coverage import coverage
from pipelines.features.ledger.ledger_files import STATE_FILE, read_bookings, read_state

RESULTS = Path(__file__).with_name("results") / "two_anchors.json"
NUM_RECORDS, EPOCH_RECORDS = 131_072, 1024


@pytest.mark.timeout(1200)
def test_records_count_once_though_the_leasing_anchor_is_killed_and_comes_back_without_its_folder(
    training_material, tmp_path
):
    material, repository = create_ledger_run(
        training_material, tmp_path, "anchors", NUM_RECORDS, target_batch_size=EPOCH_RECORDS
    )
    with contextlib.ExitStack() as stack:

        def assist(name, folder):
            own = ("--state-folder", str(tmp_path / folder), "--takeover-seconds", "10", "--metrics-seconds", "5")
            peer = stack.enter_context(assistant(material, repository, tmp_path, name, *own))
            peer.wait_until(lambda look: True, "up")
            return peer

        first, second = assist("first-anchor", "first"), assist("second-anchor", "second")
        trainers = [stack.enter_context(Trainer.joining(material, repository, tmp_path, name)) for name in ("a", "b")]
        second.wait_until(lambda look: min(len(trainer.epochs()) for trainer in trainers) >= 8, "both train")
        first.process.kill()
        first.process.wait(30)
        shutil.rmtree(next((tmp_path / "first").rglob(STATE_FILE)).parent)
        killed_at = max(trainers[0].epochs())
        # What the first has leased lasts for a while; then peers read in orders of their own until the second leases.
        seconds = SECONDS_FRESH + 30
        time.sleep(seconds)
        again = assist("first-anchor-again", "first")
        back_at = max(trainers[0].epochs())
        again.wait_until(lambda look: max(trainers[0].epochs()) >= back_at + 20, "it leases again", seconds=300)
        for trainer in trainers:
            trainer.process.kill()
        again.wait_until(lambda look: look["num_trainers"] == 0, "nobody trains", after=len(again.looks()))
        epoch = max(max(trainer.epochs()) for trainer in trainers)
        again.wait_until(lambda look: newest_booking(material, repository) >= epoch - 1, "booked", seconds=120)
    published = material.snapshot(repository) / "metrics"
    bookings, state = read_bookings(published), read_state(published / STATE_FILE)
    passes = [(one.num_records, one.num_twice) for one in coverage(bookings)]
    figures = dict(
        killed_at_epoch=killed_at,
        back_at_epoch=back_at,
        last_epoch=epoch,
        num_booked=sum(booking.span.num_records for booking in bookings),
        num_twice=sum(twice for _, twice in passes),
        num_trained=sum(trainer.num_samples for trainer in trainers),
        num_repeated=state["num_repeated"],
        num_strange=state["num_strange"],
        passes=passes,
    )
    write_text_whole(RESULTS, json.dumps(figures, indent=1, sort_keys=True) + "\n")
    print(json.dumps(figures))
    assert figures["num_twice"] == 0
    # Without an anchor peers read in orders of their own, and some of it is done already.
    known = figures["num_booked"] + figures["num_repeated"] + figures["num_strange"]
    assert known > 0.95 * figures["num_trained"]


def newest_booking(material, repository):
    """The newest epoch in the published ledger."""
    folder = material.snapshot(repository) / "metrics"
    return max((booking.epoch for booking in read_bookings(folder)), default=0)
