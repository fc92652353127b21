"""Entering the swarm: the DHT node of this process, its addresses, and errors that say what is wrong."""

import logging
import multiprocessing
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import hivemind
from hivemind.dht.protocol import ValidationError
from hivemind.p2p import P2PDaemonError, PeerID
from hivemind.utils import MAX_DHT_TIME_DISCREPANCY_SECONDS

from hub_tools.processes.child_watch import ChildDiedError, wait_until_started
from hub_tools.processes.open_files import raise_open_files
from pipelines.core.admission.client import PeerAdmission
from pipelines.core.admission.dht_gate import SwarmDHT
from pipelines.core.swarm.forks import tidy_node
from pipelines.core.swarm.network_options import NetworkOptions
from pipelines.core.swarm.record_limits import bound_storage
from pipelines.core.swarm.rejoining import keep_time, stay_joined
from pipelines.core.swarm_time import in_words

logger = logging.getLogger(__name__)

SIGNS_OF_A_BAD_HOST = ("failed to listen", "failed to parse multiaddr")
"""The libp2p daemon's messages for an address it cannot use."""

SIGN_OF_A_SLOW_START = "failed to start in"
SIGNS_OF_SLOW_ENTRIES = ("failed to connect to bootstrap peers", "responded to a ping", "can't access this node")
"""The daemon's and hivemind's messages when no entry answers, or reaches this node, in time."""

LONGER_STARTUP = 2.0
"""Factor on the time-outs of the second try, when a daemon did not start in time or no entry has answered."""

REPLY_SECONDS = 3.0
"""hivemind's time for the reply of another node."""

DHT_PROCESS = "The process of hivemind that keeps the DHT"
DAEMON_PROCESS = "The process that connects this machine to the swarm (p2pd)"


NodeService = Callable[[hivemind.DHT], None]
"""Starts what a feature does in the node's process, or what other nodes may ask it for, until the node ends."""


class SwarmUnreachableError(ConnectionError):
    """No entry address of the run answers."""


class WrongClockError(ValueError):
    """This machine's clock is not that of the swarm."""


class CannotListenError(OSError):
    """The peer cannot listen on the given addresses."""


@contextmanager
def open_dht(
    run_name: str,
    entry_addresses: Sequence[str],
    options: NetworkOptions,
    *,
    admission: PeerAdmission | None,
    reply_seconds: float | None = None,
    own_group: bool = False,
    services: Sequence[NodeService] = (),
) -> Iterator[SwarmDHT]:
    """Start this process's DHT node, joined to the swarm; shut it down on exit.

    Call it in the main thread of a process that has no other threads: hivemind forks. `admission` is what
    `seek_admission` has yielded together with the identity; None: nothing is checked. `reply_seconds` is the time that
    other nodes have to reply once this one has joined; `REPLY_SECONDS` unless it is given. `own_group`: see
    `SwarmDHT`. `services` are started once the node is there. This process ends, with a line that says why, when
    one of its processes dies within the block.

    Raises:
        SwarmUnreachableError: none of the entry addresses answers.
        WrongClockError: this machine's clock differs from theirs by more than hivemind tolerates.
        CannotListenError: a port is taken, or an address is not one of this machine.
    """
    multiprocessing.set_start_method("fork", force=True)
    raise_open_files()
    keep_time()
    dht = _start_dht(run_name, entry_addresses, options, admission, own_group)
    try:
        with dht.children as children:
            children.add(dht.pid, DHT_PROCESS)
            daemon = dht.daemon_process()
            children.add(daemon, DAEMON_PROCESS)
            dht.run_coroutine(tidy_node)
            dht.run_coroutine(bound_storage)
            dht.bind_peers()
            stay_joined(dht, entry_addresses)
            dht.expect_replies_within(REPLY_SECONDS if reply_seconds is None else reply_seconds)
            for start in services:
                start(dht)
            try:
                yield dht
            finally:
                children.forget(dht.pid, daemon)  # they end in good order
    finally:
        dht.shutdown()


def _start_dht(
    run_name: str,
    entry_addresses: Sequence[str],
    options: NetworkOptions,
    admission: PeerAdmission | None,
    own_group: bool,
) -> SwarmDHT:
    """Start the node; a daemon that is slow to start, or entries slow to answer, get one more and longer chance."""
    failure: BaseException = TimeoutError()
    for share in (1.0, LONGER_STARTUP):
        try:
            dht = SwarmDHT(
                admission=admission,
                own_group=own_group,
                initial_peers=list(entry_addresses),
                host_maddrs=list(options.host_addresses),
                announce_maddrs=list(options.announce_addresses) or None,
                client_mode=options.client_mode,
                identity_path=str(options.identity_file) if options.identity_file else None,
                check_if_identity_free=admission is None or not admission.has_new_identity,
                startup_timeout=share * options.startup_timeout_seconds,
                wait_timeout=share * REPLY_SECONDS,
                use_relay=True,
                use_auto_relay=options.use_relay,
                # With relays requested, unreachability is known; libp2p needs several public peers to detect it.
                force_reachability="private" if options.use_relay else None,
                start=False,
            )
            dht.run_in_background(await_ready=False)
            wait_until_started(dht, DHT_PROCESS)
            return dht
        except ChildDiedError:
            raise
        except ValidationError as error:
            if (clocks := re.search(r"local: ([0-9.]+), peer: ([0-9.]+)", str(error))) is not None:
                raise WrongClockError(_explain_clock(float(clocks[1]) - float(clocks[2]))) from error
            failure = error
        except (P2PDaemonError, RuntimeError, TimeoutError) as error:
            failure = error
        if SIGN_OF_A_SLOW_START in str(failure):
            logger.warning("The libp2p daemon was slow to start.")
        elif not any(sign in str(failure) for sign in SIGNS_OF_SLOW_ENTRIES):
            break
    if any(sign in str(failure) for sign in SIGNS_OF_A_BAD_HOST):
        raise CannotListenError(_explain_host(options.host_addresses, failure)) from failure
    is_checked = admission is not None and admission.has_authority
    raise SwarmUnreachableError(_explain(run_name, entry_addresses, failure, is_checked)) from failure


def visible_addresses(dht: hivemind.DHT) -> tuple[str, ...]:
    """Return the multiaddresses, with the peer id, under which others can reach this node."""
    # Not `latest=True`: hivemind keeps no reference to the task that asks the daemon, and if it is garbage-collected,
    # the caller waits for ever.
    try:
        return tuple(str(address) for address in dht.get_visible_maddrs())
    except ValueError:  # a relayed peer has none until libp2p has found one, after 3 minutes
        return ()


def readable_peer_id(peer_id: bytes) -> str:
    """Return a libp2p id as people write it, in base 58."""
    return PeerID(peer_id).to_base58()


def _explain_host(host_addresses: Sequence[str], error: BaseException) -> str:
    return (
        f"Cannot listen on {', '.join(host_addresses)} ({error}). Choose an address of this machine and a free port: "
        "--host /ip4/0.0.0.0/tcp/PORT, or port 0 for any"
    )


def _explain_clock(ahead: float) -> str:
    return (
        f"This machine's clock is {in_words(ahead)} {'ahead of' if ahead > 0 else 'behind'} that of the run's entry "
        f"peer; at most {MAX_DHT_TIME_DISCREPANCY_SECONDS} s are tolerated. Set it: sudo timedatectl set-ntp true. If "
        "it is right, tell the run's organiser that the entry peer's is wrong."
    )


def _explain(run_name: str, entry_addresses: Sequence[str], error: BaseException, is_admitted: bool) -> str:
    if not entry_addresses:
        return f"The libp2p daemon did not start ({error}). On a busy machine retry with --startup-timeout 180."
    if SIGN_OF_A_SLOW_START in str(error):
        return (
            f"The libp2p daemon did not start in time, twice ({error}). This machine is very busy: close other "
            "programs, or wait longer: --startup-timeout 300"
        )
    if "/" not in run_name:  # a program's own run, which is in no repository
        return (
            f"No entry address of {run_name} answers ({len(entry_addresses)} tried: {error}). The program that printed "
            "the address must still be running, and this machine must reach it."
        )
    return (
        f"No entry address of {run_name} answers ({len(entry_addresses)} tried: {error}). Either this machine has "
        f"no route there, {'they do not accept its admission, ' if is_admitted else ''}or the run's auxiliary peer is "
        f"down. To check each address: dalle-collab doctor {run_name}. The organiser starts the auxiliary peer with: "
        f"dalle-collab run assist {run_name}"
    )
