"""The swarm of a run that is over: an entry for those who serve its model and for those who use what is served."""

import contextlib
import logging
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hub_tools.processes.repeating import repeated
from pipelines.core.admission.client import PeerAdmission
from pipelines.core.admission.dht_gate import SwarmDHT
from pipelines.core.epoch.hivemind_options import reply_seconds
from pipelines.core.peer.entering import admitted
from pipelines.core.peer.pausing import stop_on_signals
from pipelines.core.peer.volunteer import EventHandler, ignore_events
from pipelines.core.run.training_run import TrainingRun
from pipelines.core.signing.publisher_keys import PublisherKey
from pipelines.core.swarm.dialling import parse_address
from pipelines.core.swarm.forks import set_aside_what_exists
from pipelines.core.swarm.network_options import NetworkOptions
from pipelines.core.swarm.node import SwarmUnreachableError, open_dht, visible_addresses
from pipelines.core.swarm.records import SwarmRecords
from pipelines.features.all_records import ALL_RECORDS
from pipelines.features.all_services import ALL_SERVICES
from pipelines.features.publishing.repository.announcements import announce_entry
from pipelines.features.publishing.repository.entries import RENEWAL_SECONDS, EntriesRefusedError
from pipelines.features.publishing.repository.generation_watch import GenerationWatch, watching_generation
from pipelines.features.publishing.repository.key_list import PUBLISHER, TrustedKeys
from pipelines.features.publishing.repository.snapshot import RunSnapshot
from pipelines.features.servers.server_list import offer_server_list

logger = logging.getLogger(__name__)

MOST_ENTRIES = 8


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A node through which others find the swarm."""

    addresses: tuple[str, ...]
    records: SwarmRecords
    stop: threading.Event
    """Set when the entry should end, by a signal or because the run goes on in a new generation."""

    watch: GenerationWatch


@contextlib.contextmanager
def kept_entry(
    repository: str,
    *,
    key: PublisherKey,
    network: NetworkOptions = NetworkOptions(),
    on_event: EventHandler = ignore_events,
    takes_signals: bool = False,
) -> Iterator[Entry]:
    """Be an entry of a run's swarm, announced in its repository with the signature of `key`, for the block's duration.

    Call it in the main thread of a process that has no other threads: hivemind forks. `on_event` is told `asking`, and
    `starting anew` where no other entry answers.

    Raises:
        AdmissionRefusedError: the run's authority does not admit this user, or no longer does.
        OSError: the Hub, the authority or the swarm cannot be reached, or the Hub does not let this user announce.
    """
    run = entered_run(snapshot := RunSnapshot.read(repository))
    with contextlib.ExitStack() as stack:
        on_event("asking", run=run)
        network, admission = stack.enter_context(admitted(run, repository, network))
        how = dict(admission=admission, reply_seconds=reply_seconds(run), services=ALL_SERVICES)
        set_aside_what_exists()
        others = run.entry_addresses
        try:
            dht = stack.enter_context(open_dht(repository, others, network, **how))
        except SwarmUnreachableError:
            if not others:
                raise
            on_event("starting anew")
            others = ()
            dht = stack.enter_context(open_dht(repository, (), network, **how))
        tell_strangers(dht, run, admission)
        records = SwarmRecords(dht, run.swarm_id, admission=admission, kinds=ALL_RECORDS).open()
        own = visible_addresses(dht)
        if run.organiser_key and not snapshot.keys.has_role(key.public, PUBLISHER, at=time.time()):
            logger.warning(
                "Newcomers do not believe these entry addresses: this machine's key is no publisher's. The organiser "
                "lists it with: dalle-collab run keys %s --add %s",
                *(repository, key.public),
            )

        def announce(others_answer: bool = True) -> tuple[str, ...]:
            return announce_entry(
                repository, lambda found: with_others(own, found if others_answer else ()), key, time.time()
            )

        addresses = announce(bool(others))
        stop = stack.enter_context(stop_on_signals()) if takes_signals else threading.Event()
        admission.on_refusal(stop.set)
        watch = stack.enter_context(watching_generation(repository, run, stop, TrustedKeys(run)))
        stack.enter_context(repeated(announce, RENEWAL_SECONDS, "entries"))
        yield Entry(addresses=addresses, records=records, stop=stop, watch=watch)


def entered_run(snapshot: RunSnapshot) -> TrainingRun:
    """Return a run's settings for who signs its next entries; with those that are not signed, if no others count.

    Raises KeysRefusedError.
    """
    try:
        return snapshot.run_to_enter
    except EntriesRefusedError as error:
        logger.warning("%s", error)
        return snapshot.run


def tell_strangers(dht: SwarmDHT, run: TrainingRun, admission: PeerAdmission) -> None:
    """Let strangers ask a node who serves the model, where the organiser lets them draw."""
    if not run.is_open and run.who_may_draw == "everybody":
        offer_server_list(dht, run.swarm_id, admission.check)


def with_others(own: Sequence[str], others: Sequence[str]) -> tuple[str, ...]:
    """Return a node's own addresses, then those of other nodes that were announced before."""
    own_peers = {parse_address(address).peer_id for address in own}
    kept = [address for address in others if parse_address(address).peer_id not in own_peers]
    return tuple([*own, *kept][:MOST_ENTRIES])
