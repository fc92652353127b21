"""How far the swarm is: hivemind's tracker, which counts itself, and others only as far as they may be counted."""

import math
from collections.abc import Iterable
from typing import Any

import hivemind
from hivemind.optim.progress_tracker import GlobalTrainingProgress, LocalTrainingProgress, ProgressTracker
from hivemind.utils import ValueWithExpiration, get_dht_time

from pipelines.training.admission_records import AdmissionRecords

GENEROSITY = 2.0
"""Times what a peer's records say that it may have gathered: records are late, and speeds vary."""


def plausible_samples(
    records: Iterable[LocalTrainingProgress], now: float, seconds_to_come: float
) -> dict[bytes, float]:
    """Return, by bytes of the peer id, the most samples that each peer can have gathered when the round begins.

    `seconds_to_come`: until then, at most. Of several records that name one peer the largest counts, so that nobody
    can take weight from another by signing a record in its name.
    """
    samples: dict[bytes, float] = {}
    for record in records:
        seconds = max(0.0, now - record.time) + seconds_to_come
        gathered = GENEROSITY * (record.samples_accumulated + seconds * record.samples_per_second)
        if math.isfinite(gathered):
            samples[record.peer_id] = max(gathered, samples.get(record.peer_id, 0.0))
    return samples


class SwarmProgressTracker(ProgressTracker):
    """Counts this peer among the swarm's even before its own record has come back from the DHT.

    Without this, a newcomer that sees the record of one other peer takes itself for alone, ends the epoch without
    averaging, and leaves the swarm's trajectory with its first gradient.
    """

    seconds_to_come = 0.0
    """Time that a round may take to begin once an epoch has enough samples."""

    _records: tuple[LocalTrainingProgress, ...] = ()

    def __init__(self, *args: Any, dht: hivemind.DHT, prefix: str, **kwargs: Any) -> None:
        self._admissions = AdmissionRecords(dht, prefix)
        super().__init__(*args, dht=dht, prefix=prefix, **kwargs)

    def plausible_samples(self) -> dict[bytes, float]:
        """Return the most samples that each peer can have gathered when the round begins; see the function."""
        return plausible_samples(self._records, get_dht_time(), self.seconds_to_come)

    def _parse_swarm_progress_data(self, metadata: Any) -> GlobalTrainingProgress:
        if isinstance(metadata, dict) and metadata:
            own = ValueWithExpiration(self.local_progress.dict(), math.inf)
            metadata = {self._local_public_key: own} | self._only_counted(metadata)
        if isinstance(metadata, dict):
            values = [entry.value for entry in metadata.values() if entry.value is not None]
            self._records = tuple(LocalTrainingProgress.parse_obj(value) for value in values)
        return super()._parse_swarm_progress_data(metadata)

    def _only_counted(self, metadata: dict[bytes, Any]) -> dict[bytes, Any]:
        """Leave out the records of peers whom the run's authority has not admitted."""
        values = {owner: entry.value for owner, entry in metadata.items() if entry.value is not None}
        records = {owner: LocalTrainingProgress.parse_obj(value) for owner, value in values.items()}
        return {owner: metadata[owner] for owner in self._admissions.counted(records)}
