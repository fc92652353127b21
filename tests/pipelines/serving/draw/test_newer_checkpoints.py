"""A server looks for newer checkpoints as long as it serves, whatever one look meets."""

import threading
from types import SimpleNamespace

import pytest
import torch
from tiny_run_parts import tiny_model

from pipelines.serving.draw.serving_run import DrawingPeer, ServingOptions


class Looks:
    """What each look meets, in turn: an error, nothing new, or a newer checkpoint."""

    look_seconds, found_new_generation = 0.0, False

    def __init__(self, script, stop):
        self._script, self._stop = list(script), stop

    def newer(self, current):
        what = self._script.pop(0)
        if not self._script:
            self._stop.set()
        if isinstance(what, Exception):
            raise what
        return what


@pytest.mark.parametrize(
    "error",
    [torch.OutOfMemoryError("CUDA out of memory"), OSError("the Hub is away"), MemoryError(), KeyError("weights")],
)
def test_a_checkpoint_that_cannot_be_loaded_ends_no_later_look(error, caplog):
    stop, taken, heard = threading.Event(), [], []
    newest = SimpleNamespace(epoch=7)
    checkpoints = SimpleNamespace(
        current=SimpleNamespace(parts=SimpleNamespace(model=tiny_model(32))),
        drop_unused=lambda: None,
        replace=taken.append,
    )
    place = SimpleNamespace(
        dht=SimpleNamespace(peer_id=SimpleNamespace(to_base58=lambda: "peer")),
        admission=SimpleNamespace(has_authority=True, username="ann"),
    )
    peer = DrawingPeer(
        "org/run",
        SimpleNamespace(checkpoints=checkpoints),
        place,
        1.0,
        Looks([error, error, None, newest], stop),
        ServingOptions(),
        lambda event, **values: heard.append((event, values)),
    )
    looking = threading.Thread(target=peer._look, args=(stop,), daemon=True)
    looking.start()
    looking.join(60)
    assert taken == [newest] and heard == [("serves", {"epoch": 7})]
    assert caplog.text.count("cannot be served, the old one goes on") == 2
