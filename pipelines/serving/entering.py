"""Entering the swarm of a run to serve its model or to use what others serve: the same way in as training peers."""

import contextlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from hub_tools.run_files import WEIGHTS_FILE
from pipelines.admission.client import PeerAdmission
from pipelines.admission.dht_gate import SwarmDHT
from pipelines.swarm.forks import set_aside_what_exists
from pipelines.swarm.network_options import NetworkOptions
from pipelines.swarm.node import open_dht
from pipelines.swarm.records import SwarmRecords
from pipelines.swarm.streams.introductions import Introductions
from pipelines.swarm.streams.peer_loop import PeerLoop
from pipelines.training.peer.joining import admitted
from pipelines.training.repository.snapshot import RunSnapshot
from pipelines.training.run.training_run import TrainingRun
from pipelines.training.swarm_optimizer.hivemind_options import reply_seconds

logger = logging.getLogger(__name__)


Check = Callable[[RunSnapshot, str], None]
"""Raises ValueError if a machine cannot serve a run on a torch device."""


def check_nothing(_snapshot: RunSnapshot, _device: str) -> None:
    """Object to nothing; see `Check`."""


class NothingToServeError(ValueError):
    """The run has published no weights yet."""


@dataclass(frozen=True, kw_only=True)
class PlaceInSwarm:
    """A peer's node in the swarm of a run."""

    run: TrainingRun
    dht: SwarmDHT
    admission: PeerAdmission
    records: SwarmRecords

    @property
    def namespace(self) -> str:
        """What the names of this run's services begin with."""
        return self.run.swarm_id

    def introductions(self) -> Introductions:
        """Return how this peer introduces itself in conversations."""
        return Introductions(self.admission)


@contextlib.contextmanager
def entered_swarm(run: TrainingRun, repository: str, network: NetworkOptions) -> Iterator[PlaceInSwarm]:
    """Be a node of the run's swarm for the duration of the block.

    Call it in the main thread of a process that has no other threads: hivemind forks. So load models afterwards.

    Raises:
        ValueError: the run has no entry address yet.
        AdmissionRefusedError: the run's authority does not admit this user, or no longer does.
        ConnectionError: the Hub, the authority or the swarm cannot be reached.
    """
    if not run.entry_addresses:
        raise ValueError(
            f"{repository} has no entry address yet. Its organiser starts one, which stays after the last epoch: "
            f"dalle-collab run assist {repository} --stay"
        )
    with contextlib.ExitStack() as stack:
        network, admission = stack.enter_context(admitted(run, repository, network))
        set_aside_what_exists()
        dht = stack.enter_context(
            open_dht(repository, run.entry_addresses, network, admission=admission, reply_seconds=reply_seconds(run))
        )
        records = SwarmRecords(dht, run.swarm_id, admission=admission).open()
        yield PlaceInSwarm(run=run, dht=dht, admission=admission, records=records)


def open_loop(place: PlaceInSwarm) -> PeerLoop:
    """Return the event loop for this peer's streams, to be entered after all else that forks."""
    return PeerLoop(place.dht)


def weights_name(snapshot: RunSnapshot) -> str:
    """Return the SHA-256 of the weights at a commit, without downloading them: what servers call the revision.

    Raises:
        NothingToServeError: there are none.
        CheckpointRefusedError: no publisher of the run has signed them.
    """
    if snapshot.manifest is not None:
        return snapshot.manifest.files[WEIGHTS_FILE].sha256
    from huggingface_hub import HfApi

    for entry in HfApi().get_paths_info(snapshot.repository, [WEIGHTS_FILE], revision=snapshot.commit):
        if (stored := getattr(entry, "lfs", None)) is not None:
            return str(stored.sha256)
    raise NothingToServeError(
        f"{snapshot.repository} has published no checkpoint yet: wait for the auxiliary peer's first one. If none is "
        f"running, start it with: dalle-collab run assist {snapshot.repository}"
    )
