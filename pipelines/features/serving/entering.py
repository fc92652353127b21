"""Entering the swarm of a run to serve its model or to use what others serve: the same way in as training peers."""

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import httpx2

from pipelines.core.admission.client import AdmissionRefusedError, AdmissionUnreachableError, PeerAdmission
from pipelines.core.admission.dht_gate import SwarmDHT
from pipelines.core.admission.tokens import TokenCheck
from pipelines.core.epoch.hivemind_options import reply_seconds
from pipelines.core.peer.entering import admitted
from pipelines.core.peer.volunteer import hub_username
from pipelines.core.run.training_run import TrainingRun
from pipelines.core.swarm.forks import set_aside_what_exists
from pipelines.core.swarm.network_options import NetworkOptions
from pipelines.core.swarm.node import open_dht
from pipelines.core.swarm.records import SwarmRecords
from pipelines.core.swarm.streams.asking import open_conversation
from pipelines.core.swarm.streams.conversation import Conversation
from pipelines.core.swarm.streams.introductions import Introductions, Stranger
from pipelines.core.swarm.streams.peer_loop import PeerLoop
from pipelines.features.all_records import ALL_RECORDS
from pipelines.features.all_services import ALL_SERVICES
from pipelines.features.publishing.repository.snapshot import RunSnapshot
from pipelines.features.servers.complaints import (
    COMPLAINT_SECONDS,
    COMPLAINTS,
    MOST_COMPLAINTS,
    ComplaintsRecord,
    ServerComplaint,
)
from pipelines.features.servers.server_list import ask_for_servers
from pipelines.features.servers.server_record import SERVERS, ServerRecord
from pipelines.features.servers.visiting import Visitor

logger = logging.getLogger(__name__)


Check = Callable[[RunSnapshot, str], None]
"""Raises ValueError if a machine cannot serve a run on a torch device."""


def check_nothing(_snapshot: RunSnapshot, _device: str) -> None:
    """Object to nothing; see `Check`."""


class NothingToServeError(ValueError):
    """The run has published no weights yet."""


@dataclass(frozen=True, kw_only=True)
class SwarmConnection:
    """A peer's node in the swarm of a run."""

    run: TrainingRun
    dht: SwarmDHT
    admission: PeerAdmission
    records: SwarmRecords

    def introductions(self) -> Introductions:
        """Return how this peer introduces itself in conversations, and whom it answers."""
        return Introductions(self.admission, admits_everybody=self.run.who_may_draw == "everybody")

    def username(self, chosen: str | None = None) -> str:
        """Return what others see: what the run's authority says, or in an open run what was chosen, or the Hub's."""
        return self.admission.username if self.admission.has_authority else chosen or hub_username()


def _check_has_swarm(run: TrainingRun, repository: str) -> None:
    command = "generate" if run.task == "text-to-image" else "write"
    run.check_has_swarm(
        repository, f"Nobody serves its model to others; compute with it here: dalle-collab {command} {repository}"
    )


@contextlib.contextmanager
def entered_swarm(run: TrainingRun, repository: str, network: NetworkOptions) -> Iterator[SwarmConnection]:
    """Be a node of the run's swarm for the duration of the block.

    Call it in the main thread of a process that has no other threads: hivemind forks. So load models afterwards.

    Raises:
        ValueError: the run has no entry address yet, or its wire is the Hub.
        AdmissionRefusedError: the run's authority does not admit this user, or no longer does.
        ConnectionError: the Hub, the authority or the swarm cannot be reached.
    """
    _check_has_swarm(run, repository)
    if not run.entry_addresses:
        raise ValueError(
            f"{repository} has no entry address yet. Its organiser starts one, which stays after the last epoch: "
            f"dalle-collab run assist {repository} --stay"
        )
    with contextlib.ExitStack() as stack:
        network, admission = stack.enter_context(admitted(run, repository, network))
        set_aside_what_exists()
        dht = stack.enter_context(
            open_dht(
                repository,
                run.entry_addresses,
                network,
                admission=admission,
                reply_seconds=reply_seconds(run),
                services=ALL_SERVICES,
            )
        )
        records = SwarmRecords(dht, run.swarm_id, admission=admission, kinds=ALL_RECORDS).open()
        yield SwarmConnection(run=run, dht=dht, admission=admission, records=records)


@dataclass(frozen=True, kw_only=True)
class ClientConnection:
    """What who asks needs of a run's swarm, as a member of it or as a stranger."""

    loop: PeerLoop
    namespace: str
    introductions: Introductions
    servers: Callable[[], Mapping[bytes, ServerRecord]]
    """Return who serves now, by public key; not to be called in the loop."""

    names_users: bool
    """Whether the run's authority vouches for the user names in records; otherwise they are anybody's own word."""

    complain: Callable[[Sequence[ServerComplaint]], None]
    """Publish what was found of servers; nothing of a stranger, who has no voice in the swarm."""

    async def open(self, peer: str, service: str, **limits: Any) -> tuple[Conversation, Mapping[str, object]]:
        """Open a conversation with a peer about a service; see `open_conversation`."""
        return await open_conversation(self.loop.p2p, peer, self.namespace, service, self.introductions, **limits)


@contextlib.contextmanager
def client_connection(run: TrainingRun, repository: str, network: NetworkOptions) -> Iterator[ClientConnection]:
    """Be able to talk to the run's servers for the duration of the block, after everything has been forked.

    Whom the authority does not admit comes as a stranger, where the organiser lets everybody draw. Raises as
    `entered_swarm`, which see.
    """
    with contextlib.ExitStack() as stack:
        try:
            place = stack.enter_context(entered_swarm(run, repository, network))
        except (AdmissionRefusedError, AdmissionUnreachableError) as error:
            if run.who_may_draw != "everybody":
                raise
            logger.info("Asking as a stranger, since everybody may draw: %s", error)
            place = None
        yield stack.enter_context(_visited(run, repository, network) if place is None else _joined(place))


@contextlib.contextmanager
def _joined(place: SwarmConnection) -> Iterator[ClientConnection]:
    with PeerLoop(place.dht) as loop:
        yield ClientConnection(
            loop=loop,
            namespace=place.run.swarm_id,
            introductions=place.introductions(),
            servers=partial(place.records.read, SERVERS),
            names_users=place.admission.has_authority,
            complain=partial(_complain, place),
        )


@contextlib.contextmanager
def _visited(run: TrainingRun, repository: str, network: NetworkOptions) -> Iterator[ClientConnection]:
    check = TokenCheck(run.run_id, run.authorization_key)
    with PeerLoop(Visitor(repository, run.entry_addresses, network)) as loop:
        yield ClientConnection(
            loop=loop,
            namespace=run.swarm_id,
            introductions=Introductions(Stranger(check)),
            servers=lambda: loop.call(ask_for_servers(loop.p2p, run.entry_addresses, check)),
            names_users=bool(check.authority_key),
            complain=lambda _complaints: None,
        )


def _complain(place: SwarmConnection, complaints: Sequence[ServerComplaint]) -> None:
    try:
        place.records.publish(
            COMPLAINTS,
            ComplaintsRecord(
                peer_id=place.dht.peer_id.to_base58(),
                username=place.username(),
                complaints=list(complaints)[-MOST_COMPLAINTS:],
            ),
            COMPLAINT_SECONDS,
            waits=True,
        )
    except (OSError, ValueError, httpx2.HTTPError) as error:  # what was drawn is worth more than the complaint
        logger.warning("What was found of servers is not published: %s", error)


def weights_name(snapshot: RunSnapshot) -> str:
    """Return the SHA-256 of the weights at a commit, without downloading them: what servers call the revision.

    Raises:
        NothingToServeError: there are none.
        CheckpointRefusedError: no publisher of the run has signed them.
    """
    if (name := snapshot.weights_sha256) is not None:
        return name
    raise NothingToServeError(
        f"{snapshot.repository} has published no checkpoint yet: wait for the auxiliary peer's first one. If none is "
        f"running, start it with: dalle-collab run assist {snapshot.repository}"
    )
