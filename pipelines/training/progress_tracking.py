"""How far the swarm is: hivemind's tracker, with a peer that counts itself."""

import math
from typing import Any

from hivemind.optim.progress_tracker import GlobalTrainingProgress, ProgressTracker
from hivemind.utils import ValueWithExpiration


class SwarmProgressTracker(ProgressTracker):
    """Counts this peer among the swarm's even before its own record has come back from the DHT.

    Without this, a newcomer that sees the record of one other peer takes itself for alone, ends the epoch without
    averaging, and leaves the swarm's trajectory with its first gradient.
    """

    def _parse_swarm_progress_data(self, metadata: Any) -> GlobalTrainingProgress:
        if isinstance(metadata, dict) and metadata and self._local_public_key not in metadata:
            own = ValueWithExpiration(self.local_progress.dict(), math.inf)
            metadata = {**metadata, self._local_public_key: own}
        return super()._parse_swarm_progress_data(metadata)
