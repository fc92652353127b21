"""How far the swarm is: hivemind's tracker, with a peer that counts itself, and only peers that may be counted."""

import math
from typing import Any

import hivemind
from hivemind.optim.progress_tracker import GlobalTrainingProgress, LocalTrainingProgress, ProgressTracker
from hivemind.utils import ValueWithExpiration

from pipelines.training.admission_records import AdmissionRecords


class SwarmProgressTracker(ProgressTracker):
    """Counts this peer among the swarm's even before its own record has come back from the DHT.

    Without this, a newcomer that sees the record of one other peer takes itself for alone, ends the epoch without
    averaging, and leaves the swarm's trajectory with its first gradient.
    """

    def __init__(self, *args: Any, dht: hivemind.DHT, prefix: str, **kwargs: Any) -> None:
        self._admissions = AdmissionRecords(dht, prefix)
        super().__init__(*args, dht=dht, prefix=prefix, **kwargs)

    def _parse_swarm_progress_data(self, metadata: Any) -> GlobalTrainingProgress:
        if isinstance(metadata, dict) and metadata:
            own = ValueWithExpiration(self.local_progress.dict(), math.inf)
            metadata = {self._local_public_key: own} | self._only_counted(metadata)
        return super()._parse_swarm_progress_data(metadata)

    def _only_counted(self, metadata: dict[bytes, Any]) -> dict[bytes, Any]:
        """Leave out the records of peers whom the run's authority has not admitted."""
        values = {owner: entry.value for owner, entry in metadata.items() if entry.value is not None}
        records = {owner: LocalTrainingProgress.parse_obj(value) for owner, value in values.items()}
        return {owner: metadata[owner] for owner in self._admissions.counted(records)}
