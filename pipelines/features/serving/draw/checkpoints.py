"""The checkpoints that a server holds: the newest, and older ones while somebody is being served from them."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hub_tools.run_files import WEIGHTS_FILE
from pipelines.core.swarm.streams.refusals import Refusal
from pipelines.features.publishing.repository.manifest import digest_file
from pipelines.features.serving.draw.modalities.modality import Modality, Parts
from pipelines.features.serving.draw.requests import SamplingRequest, tokenizer_name

logger = logging.getLogger(__name__)

MOST_SECONDS_KEPT = 900.0
"""An older checkpoint is dropped after this time, whoever still draws from it."""


@dataclass(frozen=True, kw_only=True)
class ServedCheckpoint:
    """One checkpoint in memory."""

    revision: str
    """SHA-256 of the weights' file."""

    epoch: int
    parts: Parts
    tokenizer: str


def load_served(folder: Path, name: str, modality: Modality, *, precision: str, device: str) -> ServedCheckpoint:
    """Load a checkpoint from its folder; raises as `Modality.load`."""
    parts = modality.load(folder, precision=precision, device=device)
    revision = digest_file(folder / WEIGHTS_FILE).sha256
    logger.debug("Loaded epoch %s of %s in %s.", parts.epoch, name, precision)
    tokenizer = tokenizer_name(parts.processor, parts.model.config)
    return ServedCheckpoint(revision=revision, epoch=parts.epoch or 0, parts=parts, tokenizer=tokenizer)


class ServedCheckpoints:
    """What is served now. Any thread may use it."""

    def __init__(self, first: ServedCheckpoint, precision: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.precision, self._clock = precision, clock
        self._held, self._users, self._lock = [first], list[set[str]](), threading.Lock()
        self._left_at: dict[str, float] = {}

    @property
    def current(self) -> ServedCheckpoint:
        """The newest checkpoint."""
        return self._held[-1]

    def replace(self, newest: ServedCheckpoint) -> None:
        """Serve another checkpoint from now on; those who are being served go on with the one before."""
        with self._lock:
            self._left_at[self.current.revision] = self._clock()
            self._held = [*(held for held in self._held if held.revision != newest.revision), newest]
        self.drop_unused()

    def drop_unused(self) -> None:
        """Free older checkpoints that nobody is served from."""
        with self._lock:
            used = set().union(*self._users)
            late = {name for name, left in self._left_at.items() if self._clock() - left > MOST_SECONDS_KEPT}
            self._held = [
                held
                for held in self._held
                if held is self._held[-1] or (held.revision in used and held.revision not in late)
            ]

    @contextmanager
    def in_use(self) -> Iterator[set[str]]:
        """Yield a set for the revisions that somebody uses; they are kept until the end of the block."""
        used: set[str] = {self.current.revision}
        with self._lock:
            self._users.append(used)
        try:
            yield used
        finally:
            with self._lock:
                self._users = [other for other in self._users if other is not used]
            self.drop_unused()

    def find(self, sampling: SamplingRequest) -> ServedCheckpoint:
        """Return the checkpoint that a sampling request names; raises `Refusal` if another one is served."""
        for held in self._held:
            if held.revision == sampling.revision:
                break
        else:
            raise Refusal(
                "revision",
                f"This server has epoch {self.current.epoch} ({self.current.revision[:12]}), not "
                f"{sampling.revision[:12]}. Ask for the newest checkpoint, or another server.",
            )
        if sampling.precision != self.precision:
            raise Refusal("revision", f"This server computes in {self.precision}, not in {sampling.precision[:20]}.")
        if sampling.tokenizer != held.tokenizer:
            raise Refusal(
                "invalid",
                "The text ids are of another tokenizer than the run's, so something else would be drawn. Take the "
                "processor from the run's repository.",
            )
        return held
