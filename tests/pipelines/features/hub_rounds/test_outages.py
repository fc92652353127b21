"""What a Hub that is away or refuses costs a run whose only wire it is: time, and nothing that was learnt."""

import contextlib
import queue
import threading

import pytest
import torch
from hub_round_parts import new_key

from pipelines.core.gradients.computation import BatchLoss
from pipelines.core.run.compute_options import ComputeOptions
from pipelines.features.hub_rounds.exchange import RoundExchange
from pipelines.features.hub_rounds.files import HubAwayError
from pipelines.features.hub_rounds.peer import HubPeer
from pipelines.features.hub_rounds.reading import IncompleteError, replayed

pytestmark = pytest.mark.slow

WINDOW, BATCH, SECONDS = 8.0, 8, 240.0


class Computation:
    """Gradients by lot."""

    def __init__(self, model):
        self.model, self.num_samples = model, 0

    def compute(self, _batch):
        self.num_samples += BATCH
        generator = torch.Generator().manual_seed(self.num_samples)
        for parameter in self.model.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        return BatchLoss(mean=1.0, weight=BATCH)

    def note_step(self, _seconds, _num_samples):
        pass

    def rest_after(self, _seconds):
        return 0.02


class Alone:
    """A peer and a closer, each in a thread, in a run of their own."""

    def __init__(self, run):
        self.stop, self.reports, self.ended = threading.Event(), [], threading.Condition()
        self.closer, self.closed = run.closer(), queue.Queue()
        self.closer.on_closed = self.closed.put
        state = run.state()
        run.key_of("ada")
        self.computation = Computation(state.model)
        reader = run.reader()
        exchange = RoundExchange(reader, "ada", new_key(), WINDOW)
        self.peer = HubPeer(
            run.run, state, self.computation, reader, exchange, user="ada", device="cpu", package_version="0",
            limits=ComputeOptions(), fetch_checkpoint=lambda: None,
        )  # fmt: skip
        self.threads = [threading.Thread(target=target) for target in (self._close_rounds, self._train)]

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *exception):
        self.stop.set()
        for thread in self.threads:
            thread.join(SECONDS)
        self.peer._exchange.close()

    def wait_for_epoch(self, epoch):
        """Return the report of the micro-batch after which the peer is in an epoch, and the samples until then."""
        with self.ended:
            assert self.ended.wait_for(lambda: self.peer.epoch >= epoch, SECONDS), self.peer.epoch
            return self.reports[-1]

    def wait_for_round(self, is_it):
        """Wait until a round is closed that has not been waited for, and for which `is_it`."""
        while not is_it(self.closed.get(timeout=SECONDS)):
            pass

    def _close_rounds(self):
        while not self.stop.is_set():
            try:
                wait = self.closer.keep_up()
            except (HubAwayError, IncompleteError):
                wait = 0.2
            self.stop.wait(wait)

    def _train(self):
        self.peer.synchronise(self.stop)
        for report in self.peer.train(iter(lambda: {"image_codes": torch.zeros(BATCH, 1)}, None), self.stop):
            with self.ended:
                self.reports.append((report, self.computation.num_samples))
                self.ended.notify_all()


@pytest.fixture
def alone(rounds):
    with Alone(rounds(window_seconds=WINDOW, inner_batch_size=BATCH)) as parts:
        yield parts


def test_a_hub_that_is_away_at_everybodys_deadline_delays_rounds_and_nothing_is_lost(alone, hub):
    alone.wait_for_epoch(1)
    hub.controls.go_away(1.5 * WINDOW)
    report, num_samples = alone.wait_for_epoch(3)
    assert report.num_samples == num_samples


def test_a_peer_that_is_rounds_behind_comes_to_the_newest_and_counts_again(rounds):
    run = rounds(window_seconds=WINDOW, inner_batch_size=BATCH)
    with Alone(run) as parts:
        parts.wait_for_round(lambda _closed: True)
        parts.peer.pause_switch.pause()
        state, reader = run.state(), run.reader()
        while state.epoch < 4:
            run.put(state, "bert", run.contribution(state, state.epoch))
            with contextlib.suppress(queue.Empty):  # what ada had offered before may have closed that round
                parts.closed.get(timeout=WINDOW)
            list(replayed(reader, state))
        parts.peer.pause_switch.resume()
        parts.wait_for_round(lambda closed: [pointer.user for pointer in closed.pointers] == ["ada"])
        assert parts.peer.epoch >= 4
