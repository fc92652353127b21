"""A server looks for newer checkpoints as long as it serves, whatever one look meets."""

import threading
from types import SimpleNamespace

import pytest
import torch

from pipelines.features.serving.offer import ServingOptions
from pipelines.features.serving.serving_run import ServingPeer

SHA = "a" * 64


class Watch:
    """What each look meets, in turn: an error, nothing new, or a newer checkpoint."""

    found_new_generation = False

    def __init__(self, script):
        self._script = list(script)

    def newer(self, revision):
        assert revision == SHA
        what = self._script.pop(0)
        if isinstance(what, Exception):
            raise what
        return what


class Offer:
    """Serves every checkpoint that is found."""

    def __init__(self):
        self.epoch = 6

    def record(self):
        return dict(state="online", revision=SHA, epoch=self.epoch)

    def renew(self, newest):
        if newest is None:
            return None
        self.epoch = newest
        return dict(epoch=newest)


@pytest.mark.parametrize(
    "error",
    [torch.OutOfMemoryError("CUDA out of memory"), OSError("the Hub is away"), MemoryError(), KeyError("weights")],
)
def test_a_checkpoint_that_cannot_be_loaded_ends_no_later_look(error, caplog):
    stop, published, heard = threading.Event(), [], []

    def hear(event, **values):
        heard.append((event, values))
        stop.set()

    place = SimpleNamespace(
        dht=SimpleNamespace(peer_id=SimpleNamespace(to_base58=lambda: "peer")),
        username=lambda chosen: "ann",
        records=SimpleNamespace(publish=lambda _kind, record, _seconds: published.append(record)),
    )
    watch = Watch([error, error, None, 7])
    peer = ServingPeer(Offer(), watch, place, ServingOptions(look_seconds=1e-3), hear)
    looking = threading.Thread(target=peer._look, args=(stop,), daemon=True)
    looking.start()
    looking.join(60)
    assert heard == [("serves", {"epoch": 7})] and [record.epoch for record in published] == [7]
    assert caplog.text.count("cannot be served, the old one goes on") == 2
