"""Whether a run is open is said by whoever builds a part, never read from the DHT node that the part is given."""

import asyncio
import signal
import time

import hivemind
import pytest
import torch
from admission_tokens import held_admission
from hivemind.p2p import P2P, P2PHandlerError
from hivemind.proto import averaging_pb2
from hivemind.utils import get_dht_time

from pipelines.core.admission.dht_gate import SwarmDHT
from pipelines.core.admission.record_owners import AdmissionRecords
from pipelines.core.averaging.averager import SwarmAverager
from pipelines.core.epoch.acquaintances import Acquaintances
from pipelines.core.epoch.progress_tracking import SwarmProgressTracker
from pipelines.core.state.exchange import StateExchange
from pipelines.core.swarm.records import SwarmRecords

# hivemind 1.1.12 finds its daemon's executable in an old-fashioned way.
pytestmark = pytest.mark.filterwarnings("ignore:path is deprecated:DeprecationWarning")


@pytest.fixture(scope="module")
def plain_dht():
    """Yield a node of hivemind's own kind, which knows of no admission."""
    node = hivemind.DHT(host_maddrs=["/ip4/127.0.0.1/tcp/0"], use_ipfs=False, start=True)
    yield node
    node.shutdown()


@pytest.fixture
def held():
    """The admission of this process, as the authority would have signed it."""
    return held_admission()


def gradient_averager(dht, start=False, **options):
    return SwarmAverager([torch.zeros(3)], dht=dht, prefix="said", start=start, min_matchmaking_time=1.0, **options)


@pytest.mark.parametrize(
    "build",
    [
        lambda dht: SwarmDHT(start=False),
        lambda dht: AdmissionRecords(dht, "run"),
        lambda dht: SwarmRecords(dht, "run"),
        lambda dht: SwarmProgressTracker(
            dht=dht, prefix="run", acquaintances=Acquaintances(), target_batch_size=1, start=False
        ),
        gradient_averager,
        lambda dht: StateExchange(None, dht, "said"),
    ],
    ids=["node", "admissions", "records", "tracker", "gradients", "state"],
)
# What was never built is cleaned up by hivemind, which expects more of it.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_nobody_builds_a_part_without_saying_who_is_admitted(plain_dht, build):
    with pytest.raises(TypeError, match="missing 1 required keyword-only argument: 'admission"):
        build(plain_dht)


def test_strangers_records_count_in_an_open_run_alone(plain_dht, held):
    assert AdmissionRecords(plain_dht, "run", admission=None).counted({b"stranger": 1}) == {b"stranger": 1}
    assert AdmissionRecords(plain_dht, "run", admission=held).counted({b"stranger": 1}) == {}


def wait_for_tokens(dht, run_id):
    """Return once the node holds a token, as publishing does not wait for that."""
    deadline = time.monotonic() + 60
    while dht.get(f"{run_id}_admissions", latest=True) is None:
        assert time.monotonic() < deadline, "no token was published"


def test_behind_a_record_stands_a_user_or_in_an_open_run_its_key(plain_dht, held):
    records = SwarmRecords(plain_dht, "run_of_users", admission=held).open()
    owner = records.owner
    wait_for_tokens(plain_dht, "run_of_users")
    assert records.admissions.users([owner]) == {owner: "alice"}
    assert SwarmRecords(plain_dht, "run_of_users", admission=None).admissions.users([owner]) == {owner: owner.hex()}


def test_records_and_tracker_share_what_was_looked_up(plain_dht, held):
    records = SwarmRecords(plain_dht, "run", admission=held)
    tracker = SwarmProgressTracker(
        dht=plain_dht,
        prefix="run",
        admissions=records.admissions,
        acquaintances=Acquaintances(),
        target_batch_size=1,
        start=False,
    )
    assert tracker._admissions is records.admissions and records.admissions.admission is held


def test_building_records_changes_nothing_and_opening_them_publishes_the_token(plain_dht, held):
    records = SwarmRecords(plain_dht, "run_of_records", admission=held)
    assert plain_dht.get("run_of_records_admissions", latest=True) is None
    records.open()
    wait_for_tokens(plain_dht, "run_of_records")
    assert list(records.admissions.admitted([records.owner])) == [records.owner]


@pytest.mark.parametrize("is_open", [True, False])
def test_an_averager_on_an_ordinary_node_asks_strangers_for_a_token_unless_the_run_is_open(plain_dht, held, is_open):
    averager = gradient_averager(plain_dht, start=True, admission=None if is_open else held)

    async def join():
        p2p = await P2P.create(initial_peers=plain_dht.get_visible_maddrs())
        try:
            stub = SwarmAverager.get_stub(p2p, averager.peer_id, namespace=averager.prefix)
            request = averaging_pb2.JoinRequest(schema_hash=b"any", expiration=get_dht_time() + 30, gather=b"")
            return (await anext(aiter(await stub.rpc_join_group(request)))).code
        finally:
            await p2p.shutdown()

    try:
        if is_open:
            assert asyncio.run(join()) != averaging_pb2.ACCEPTED
        else:
            with pytest.raises(P2PHandlerError, match="shows no token"):
                asyncio.run(join())
    finally:
        averager.shutdown()


def test_who_starts_an_averager_goes_on_hearing_ctrl_c(plain_dht):
    averager = gradient_averager(plain_dht, start=True, admission=None)
    try:
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        averager.shutdown()
