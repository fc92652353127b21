"""What both sides of `petals_beside.py` do alike, in two Pythons: generate greedily, time each token, lose a server."""

import itertools
import statistics
import time

import torch

SPANS = {"first": range(0, 4), "second": range(4, 8), "spare": range(4, 8)}
NUM_TOKENS = 64


class Clock:
    """A streamer of transformers that notes when each token came, and calls something behind one of them."""

    def __init__(self, place=None, action=None):
        self._place, self._action, self.times = place, action, []

    def put(self, tokens):
        """Note a token; the first call brings the prompt."""
        self.times.append(time.perf_counter())
        if self._action is not None and len(self.times) - 1 == self._place:
            self._action()

    def end(self):
        """Nothing is left to do."""

    def gap(self):
        """Return the median time between tokens, in seconds; the first one includes reading the prompt."""
        return statistics.median(later - earlier for earlier, later in itertools.pairwise(self.times[1:]))

    def wait(self):
        """Return the seconds from the action to the next token."""
        return self.times[self._place + 1] - self.times[self._place]


def generated(model, clock):
    """Return 64 tokens behind a fixed prompt."""
    prompt = torch.arange(1, 9)[None]
    with torch.inference_mode():
        found = model.generate(prompt, max_new_tokens=NUM_TOKENS, do_sample=False, streamer=clock)
    return found[0, prompt.shape[1] :].tolist()


def measured_runs(local, across, repeats=3):
    """Return tokens and seconds a token of a local model and one across servers, in turns, after a warm-up each."""
    tokens, gaps = {}, {"local": [], "across": []}
    for repeat in range(repeats + 1):
        for name, model in (("local", local), ("across", across)):
            clock = Clock()
            tokens[name] = generated(model, clock)
            if repeat:
                gaps[name].append(clock.gap())
    return {"tokens": tokens, "seconds": {name: statistics.median(found) for name, found in gaps.items()}}
