"""Somebody at the door of a swarm: tries the DHT, a group, an average and the state, and writes what came of it.

Usage: python swarm_stranger.py SETTINGS.json. It comes three times: as a stranger; as a thief, who has a member's token
and record key, but not its identity; and as a visitor with an admission, who shows what the others would get.
"""

import asyncio
import json
import sys
import time
from functools import partial
from pathlib import Path

from hivemind.dht.crypto import RSASignatureValidator
from hivemind.p2p import P2P, P2PDaemonError, P2PHandlerError, PeerID
from hivemind.proto import auth_pb2, averaging_pb2
from hivemind.utils import get_dht_time
from hivemind.utils.crypto import RSAPrivateKey
from hivemind.utils.multiaddr import Multiaddr
from hivemind.utils.serializer import MSGPackSerializer
from swarm_peer import write_event

from hub_tools.processes.event_files import read_events
from hub_tools.processes.process_group import guard_process_group
from pipelines.core.admission.averaging_gate import AdmissionGate
from pipelines.core.admission.client import seek_admission
from pipelines.core.admission.dht_gate import access_token
from pipelines.core.averaging.averager import SwarmAverager
from pipelines.core.run.admission_config import admission_config_of
from pipelines.core.run.training_run import TrainingRun
from pipelines.core.state.download import manifest_request
from pipelines.core.state.exchange import SERVICE
from pipelines.core.swarm.network_options import NetworkOptions
from pipelines.core.swarm.node import SwarmUnreachableError, open_dht
from pipelines.core.swarm.peer_records import PeerMetrics
from pipelines.core.swarm.records import METRICS, SwarmRecords
from pipelines.core.swarm.streams.asking import open_conversation
from pipelines.core.swarm.streams.introductions import Introductions
from pipelines.core.swarm.streams.refusals import Refusal

SECONDS = 60.0
FIGURES = dict(
    epoch=3, loss=1.0, num_samples=10**9, samples_per_second=1.0, share_averaged=1.0, bytes_sent=0, num_rounds=0,
    round_seconds=0.0, num_refused_gradients=0, client_mode=False, package_version="0",
)  # fmt: skip


async def answer_of(make_call) -> str:
    """Return the kind of the first message that a call brings, or what refuses it."""
    try:
        async with asyncio.timeout(SECONDS):
            while True:
                try:
                    message = await anext(aiter(await make_call()))
                    break
                except ConnectionError:  # refused while the question was being written: the answer is lost
                    continue
    except (P2PHandlerError, P2PDaemonError) as error:
        return f"refused: {error}"
    except StopAsyncIteration:  # the peer holds a newer state by now
        return "nothing"
    if hasattr(message, "code"):
        return averaging_pb2.MessageCode.Name(message.code)
    return "state"


async def state_of(p2p: P2P, target: PeerID, run: TrainingRun, admission, digest: str) -> str:
    """Return what comes when a peer is asked for its state, by somebody who shows a token or none."""
    try:
        conversation, _ = await open_conversation(p2p, target, run.swarm_id, SERVICE, Introductions(admission))
        async with conversation:
            await conversation.send(manifest_request(digest))
            return "state" if (await conversation.receive(SECONDS)).tensors else "nothing"
    except Refusal as error:
        return f"refused: {error}"


async def try_averagers(run: TrainingRun, addresses: list[str], admission_config, newest_digest) -> dict[str, str]:
    p2p = await P2P.create(
        initial_peers=[Multiaddr(address) for address in addresses],
        identity_path=admission_config.identity,
        check_if_identity_free=False,
    )
    target = PeerID.from_base58(addresses[0].rpartition("/")[2])
    gradients = f"{run.swarm_id}_grad_averager"
    gathered = MSGPackSerializer.dumps([None, 0, MSGPackSerializer.dumps(None)])
    if admission_config.admission:
        gathered = AdmissionGate(admission_config.admission, gradients, 60.0).prove(gathered, p2p.peer_id)
    request = averaging_pb2.JoinRequest(
        schema_hash=b"any", expiration=get_dht_time() + 30, gather=gathered, group_key=f"{gradients}.0b"
    )

    async def part():
        yield averaging_pb2.AveragingData(code=averaging_pb2.PART_FOR_AVERAGING, group_id=b"any", weight=1.0)

    gradient_stub = SwarmAverager.get_stub(p2p, target, namespace=gradients)
    found = dict(group=await answer_of(partial(gradient_stub.rpc_join_group, request)))
    if admission_config.admission:
        shown = auth_pb2.RequestAuthInfo(client_access_token=access_token(admission_config.admission))
        answer = await gradient_stub.rpc_introduce(shown)
        admission_config.admission.check.check(
            answer.service_access_token.username, get_dht_time(), peer_id=target.to_bytes()
        )
        found["introduced"] = "yes"
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:  # a refusal may be lost with its stream
        found["aggregation"] = await answer_of(lambda: gradient_stub.rpc_aggregate_part(part()))
        if found["aggregation"] != "nothing":
            break
        await asyncio.sleep(0.05)
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:  # the state changes while it is asked for, and its digest is written down later
        found["state"] = await state_of(p2p, target, run, admission_config.admission, newest_digest())
        if found["state"] != "nothing":
            break
        await asyncio.sleep(0.05)
    await p2p.shutdown()
    return found


class AdmissionConfig:
    """With what somebody comes: an identity, and an admission or none."""

    def __init__(self, options: NetworkOptions, admission) -> None:
        self.identity, self.admission = str(options.identity_file), admission


def try_dht(run: TrainingRun, addresses: list[str], options: NetworkOptions, admission) -> str:
    try:
        with open_dht("test/run", addresses, options, admission=admission) as dht:
            return "in" if dht.get(f"{run.swarm_id}_progress", latest=True) is not None else "in, but sees nothing"
    except SwarmUnreachableError:
        return "out"


def try_records(run: TrainingRun, addresses: list[str], options: NetworkOptions, admission) -> dict[str, object]:
    """Publish figures under another user's name, and under a key that nobody admitted; return which ones count."""
    with open_dht("test/run", addresses, options, admission=admission) as dht:
        records = SwarmRecords(dht, run.swarm_id, admission=admission).open()
        other = RSASignatureValidator(RSAPrivateKey())

        def stored() -> dict[bytes, str]:
            found = dht.get(f"{run.swarm_id}_metrics", latest=True)
            return {} if found is None else {key: entry.value["username"] for key, entry in found.value.items()}

        def counted() -> list[str]:
            return sorted(record.username for record in records.read(METRICS).values())

        records.publish(METRICS, PeerMetrics(username=admission.username, **FIGURES), 300.0)
        honest = wait_for(counted, lambda names: len(names) == 3)
        records.publish(METRICS, PeerMetrics(username="first-of-door", **FIGURES), 300.0)
        wait_for(stored, lambda names: list(names.values()).count("first-of-door") == 2)
        dht.run_coroutine(partial(_store_signed, key=f"{run.swarm_id}_metrics", validator=other))
        names = wait_for(stored, lambda names: other.local_public_key in names)
        return dict(
            honest=honest,
            stored=sorted(names.values()),
            counted=counted(),
            names=sorted(held.username for held in records.admissions.admitted(names).values()),
        )


def wait_for(look, is_so, seconds: float = 60.0):
    """Look until it is so; return what was seen at last."""
    deadline = time.monotonic() + seconds
    while not is_so(seen := look()) and time.monotonic() < deadline:
        time.sleep(0.2)
    return seen


async def _store_signed(_dht, node, key: str, validator: RSASignatureValidator) -> bool:
    """Store figures signed with a key of one's own making, as a member who wants to be many would."""
    signers = node.protocol.record_validator._validators
    index = next(i for i, signer in enumerate(signers) if isinstance(signer, RSASignatureValidator))
    honest, signers[index] = signers[index], validator
    try:
        values = PeerMetrics(username="many", **FIGURES).dict()
        return await node.store(key, values, get_dht_time() + 60, subkey=validator.local_public_key)
    finally:
        signers[index] = honest


def main(settings: dict) -> None:
    guard_process_group()
    run, addresses, folder = (
        TrainingRun.from_mapping(settings["run"]),
        settings["entry_addresses"],
        Path(settings["folder"]),
    )
    events = folder / f"{settings['name']}.jsonl"

    def newest_digest() -> str:
        events = read_events(folder / "first.jsonl")
        return [event["digest"] for event in events if event["event"] == "state"][-1]

    def come_with_new_identity(name: str) -> NetworkOptions:
        P2P.generate_identity(str(folder / f"{name}.identity"))
        return NetworkOptions(host_addresses=("/ip4/127.0.0.1/tcp/0",), identity_file=folder / f"{name}.identity")

    options = come_with_new_identity("stranger")
    found = asyncio.run(try_averagers(run, addresses, AdmissionConfig(options, None), newest_digest))
    write_event(events, event="stranger", **found, dht=try_dht(run, addresses, options, None))
    options, stolen = come_with_new_identity("visitor"), come_with_new_identity("thief")
    with seek_admission(admission_config_of(run, "test/run"), options.identity_file, settings["hub_token"]) as (
        _,
        admission,
    ):
        write_event(events, event="thief", dht=try_dht(run, addresses, stolen, admission))
        found = asyncio.run(try_averagers(run, addresses, AdmissionConfig(options, admission), newest_digest))
        write_event(events, event="visitor", **found, records=try_records(run, addresses, options, admission))


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
