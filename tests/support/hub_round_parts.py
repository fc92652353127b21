"""The parts of rounds over the embedded Hub, in one process: a tiny run, its closers, and what volunteers put."""

import hashlib
import itertools
import logging

import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from huggingface_hub import constants
from huggingface_hub.utils import disable_progress_bars

from pipelines.core.run.training_run import TrainingRun
from pipelines.core.signing.publisher_keys import PublisherKey
from pipelines.core.signing.signed_statement import signed_text
from pipelines.features.hub_rounds.closer import RoundCloser
from pipelines.features.hub_rounds.files import RoundFiles
from pipelines.features.hub_rounds.reading import RoundReader
from pipelines.features.hub_rounds.statements import Pointer
from pipelines.features.hub_rounds.stepping import ReplayedState

SAMPLES = 64
NUMBERS = itertools.count()


def new_key():
    return PublisherKey(Ed25519PrivateKey.generate())


def log_in(monkeypatch, hub):
    """Let this process ask the embedded Hub, as its user alice."""
    monkeypatch.setattr(constants, "ENDPOINT", hub.endpoint)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setenv("HF_TOKEN", hub.alice_token)
    disable_progress_bars()
    logging.getLogger("httpx2").setLevel(logging.WARNING)


def tiny_model(width=64):
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(width, 48), torch.nn.Linear(48, 32))


class TinyRun:
    """A run of its own on the Hub, with the keys of its closers in order."""

    def __init__(self, *, closers=1, **settings):
        name = f"rounds{next(NUMBERS)}"
        values = dict(wire="hub", synchronisation="sparse", aggregation_rule="mean", local_steps=4, outer_momentum=0)
        own = dict(window_seconds=1.0, num_epochs=1000, bucket=f"org/{name}-rounds", authorization_service="")
        self.run = TrainingRun(run_id=name, **(values | own | settings))
        self.repository, self.keys = f"org/{name}", [new_key() for _ in range(closers)]
        self.files = self.new_files()
        self.volunteers = {}
        self.files.make_bucket("rounds", private=False)
        self._states = []

    def new_files(self):
        return RoundFiles(self.repository, self.run)

    def reader(self):
        order = [key.public for key in self.keys]
        return RoundReader(self.new_files(), self.run.contributions_per_round, lambda: order)

    def state(self):
        """Return the state at the beginning of the run."""
        self._states.append(ReplayedState(self.run, tiny_model()))
        return self._states[-1]

    def closer(self, number=0, state=None):
        """Return a closer with the key of this number; it has heard of the rounds that were closed."""
        closer = RoundCloser(self.reader(), state or self.state(), self.keys[number])
        closer.open()
        return closer

    def close(self):
        for state in self._states:
            state.close()

    def contribution(self, state, seed, *, samples=SAMPLES, scale=1e-3):
        generator = torch.Generator().manual_seed(seed)
        shapes = state.codec.layout.shapes
        return state.codec.encode([scale * torch.randn(shape, generator=generator) for shape in shapes], samples)

    def pointer(self, state, user, content, /, **changes):
        values = dict(
            swarm_id=self.run.swarm_id, user=user, round=state.epoch + 1, state=state.digest,
            digest=hashlib.sha256(content).hexdigest(), size=len(content), samples=SAMPLES, total_samples=10**6,
            loss=2.0, samples_per_second=3.5, device="cpu", package_version="0.1", key=self.key_of(user).public,
        )  # fmt: skip
        return Pointer(**(values | changes))

    def key_of(self, user):
        if user not in self.volunteers:
            self.files.make_bucket(user, private=False)
            self.volunteers[user] = new_key()
        return self.volunteers[user]

    def text(self, state, user, content, /, **changes):
        """Return the signed text of a pointer; what `Pointer` itself refuses is put into the text."""
        key = self.key_of(user)
        return signed_text(self.pointer(state, user, content, **changes), key)

    def put(self, state, user, content, text=None, *, at=None):
        """Put a pointer and the bytes of a contribution, as a volunteer does."""
        text = self.text(state, user, content) if text is None else text
        path = at or self.files.offer_path(state.epoch + 1, hashlib.sha256(content).hexdigest())
        self.files.put(self.files.bucket_of(user), {self.files.pointer_path: text, path: content})

    def follow(self, reader, state):
        """Follow one round that was closed; return its list, None if there is none."""
        closed = reader.closed_round(state.terms())
        if closed is not None:
            state.follow(closed)
        return closed and closed.closed


def close_round(closer, number=None):
    """Have a closer close rounds until it has closed this one; return its list."""
    number, seen, before = number or closer.state.epoch + 1, [], closer.on_closed
    closer.on_closed = seen.append
    while closer.state.epoch < number:
        if (seconds := closer.keep_up()) > 0:
            closer._sleep_until(closer._files.clock() + seconds)
    closer.on_closed = before
    return seen[-1].closed
