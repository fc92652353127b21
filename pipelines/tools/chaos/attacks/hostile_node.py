"""The DHT node of a hostile participant: in an open run with as many keys as it likes, else with its admission."""

import base64
import contextlib
import copy
import itertools
import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

from cryptography.hazmat.primitives.asymmetric import rsa
from hivemind.dht.crypto import RSASignatureValidator
from hivemind.dht.node import DHTNode
from hivemind.dht.validation import DHTRecord, RecordValidatorBase
from hivemind.p2p import PeerID
from hivemind.utils import MPFuture, get_dht_time
from hivemind.utils.crypto import RSAPrivateKey

from pipelines.core.admission.client import PeerAdmission
from pipelines.core.admission.dht_gate import SwarmDHT
from pipelines.core.admission.tokens import own_admission, token_of
from pipelines.core.run.training_run import TrainingRun
from pipelines.core.signing.rsa_keys import RsaKey, peer_id_of
from pipelines.core.state.exchange import SERVICE
from pipelines.core.swarm.streams.server import handler_name
from pipelines.tools.chaos.attacks.hostile_records import (
    crowd,
    dear_key,
    hide_others,
    open_silent_streams,
    send_dear_tokens,
    write_in_many_names,
)
from pipelines.tools.chaos.attacks.table import FAR_EPOCH

SECONDS = 20.0
"""Lifetime of its records."""

SECONDS_OF_A_TOKEN = 600.0
SECONDS_BETWEEN_LIES = 0.5


class ManyKeys(RecordValidatorBase):
    """Signs each record with the key that its sub-key names."""

    def __init__(self, keys: list[RSAPrivateKey]) -> None:
        self._signers = [RSASignatureValidator(key) for key in keys]

    def validate(self, record: DHTRecord) -> bool:
        """Believe everything."""
        return True

    def sign_value(self, record: DHTRecord) -> bytes:
        """Sign as the owner, if this node has its key."""
        for signer in self._signers:
            if signer.local_public_key in record.subkey:
                return signer.sign_value(record)
        return record.value

    def strip_value(self, record: DHTRecord) -> bytes:
        """Remove anybody's signature."""
        return self._signers[0].strip_value(record)

    def merge_with(self, other: RecordValidatorBase) -> bool:
        """Take another one's keys, so that each record is signed once."""
        if not isinstance(other, ManyKeys):
            return False
        self._signers += other._signers
        return True


@dataclass(frozen=True, kw_only=True)
class Identity:
    """One of the peers that this node says it is."""

    peer_id: bytes
    owner: bytes
    """Sub-key of its records."""

    token: str


class HostileNode:
    """What attacks need; see `table`. The first identity is the node's own."""

    def __init__(self, run: TrainingRun, dht: SwarmDHT, admission: PeerAdmission, num_keys: int) -> None:
        """`num_keys` is the number of identities in an open run; an admitted member has its own."""
        self.run, self.dht, self.admission = run, dht, admission
        self._progress: dict[str, object] = {}
        self._stores: list[MPFuture] = []
        keys = [admission.record_key]
        made_up = [] if admission.has_authority else [RSAPrivateKey() for _ in range(num_keys - 1)]
        own = Identity(peer_id=dht.peer_id.to_bytes(), owner=_owner(admission.record_key), token=admission.token)
        self.identities = [own, *(_made_up_identity(run, key) for key in made_up)]
        for key in keys + made_up:  # one by one: the pipe to the node's process takes 16 KiB at once
            dht.add_validators([ManyKeys([key])])

    def split(self, num_keys: Sequence[int]) -> list[Self]:
        """Divide the identities among several attacks; a member has but one, for all of them."""
        ends = list(itertools.accumulate(num_keys))
        parts = [copy.copy(self) for _ in ends]
        for part, number, end in zip(parts, num_keys, ends, strict=True):
            part.identities = self.identities[end - number : end] or self.identities
        return parts

    def take_new_identity(self) -> None:
        """Be somebody else from now on; a member of a run with an authority cannot."""
        if not self.admission.has_authority:
            key = RSAPrivateKey()
            self.identities = [_made_up_identity(self.run, key)]
            self.dht.add_validators([ManyKeys([key])])

    def store(self, name: str, value: object, *, owner: bytes | None = None, seconds: float = SECONDS) -> None:
        """Begin to store a value under a key of the run, whatever other nodes make of it; `finish` waits for it."""
        until = get_dht_time() + seconds
        key = f"{self.run.swarm_id}_{name}"
        self._stores.append(self.dht.store(key, subkey=owner, value=value, expiration_time=until, return_future=True))

    def finish(self) -> None:
        """Wait until all that was begun is stored, or refused."""
        for storing in self._stores:
            with contextlib.suppress(Exception):  # nobody accepts it
                storing.result()
        self._stores.clear()

    def tell(self, name: str, value: object) -> None:
        """Store a record of every identity."""
        for identity in self.identities:
            self.store(name, value, owner=identity.owner)

    def flood(self, name: str, num_bytes: int) -> None:
        """Store so many bytes of every identity."""
        for identity in self.identities:
            store = partial(_store_large, key=f"{self.run.swarm_id}_{name}", owner=identity.owner, num_bytes=num_bytes)
            self.dht.run_coroutine(store)

    def claim(self, *, progress: Mapping[str, object] = {}, state: Mapping[str, object] = {}) -> None:
        """Say of every identity that it trains and has a state, apart from what is given like everybody's."""
        honest = self.progress()
        epoch = honest["epoch"]
        for identity in self.identities:
            is_own = identity.peer_id == self.dht.peer_id.to_bytes()
            told: dict[str, object] = dict(
                admissions=self.admission.token if is_own else identity.token,
                progress=honest | dict(peer_id=identity.peer_id) | dict(progress),
                states=dict(peer_id=PeerID(identity.peer_id).to_base58(), epoch=epoch, digest="0" * 64, shares=is_own)
                | dict(state),
            )
            for name, value in told.items():
                self.store(name, value, owner=identity.owner)

    def crowd(self) -> None:
        """Declare thousands of peers that look for a group."""
        averager = f"{self.run.swarm_id}_grad_averager"
        self.dht.run_coroutine(partial(crowd, key=f"{averager}.0b", searches=f"{averager}_searches"))
        for number, identity in enumerate(self.identities):
            search = dict(peer_id=b"\x12\x20" + number.to_bytes(32, "big"), is_looking=True)
            self.store("grad_averager_searches", search, owner=identity.owner, seconds=1.0)

    def open_silent_streams(self) -> None:
        """Open streams at all nodes that it knows, for the state, and ask for nothing."""
        call = handler_name(self.run.swarm_id, SERVICE)
        self.dht.run_coroutine(partial(open_silent_streams, call=call))

    def write_in_many_names(self) -> None:
        """Store the progress of thousands of owners, whose key is one."""
        self._progress = self._progress or self.progress()
        key, private = f"{self.run.swarm_id}_progress", self.admission.record_key
        self.dht.run_coroutine(partial(write_in_many_names, key=key, progress=self._progress, private=private))

    def send_dear_tokens(self) -> None:
        """Store tokens whose check takes long."""
        key, private = f"{self.run.swarm_id}_admissions", self.admission.record_key
        token = partial(_dear_token, self.run.run_id, private.get_public_key().to_bytes().decode(), dear_key())
        self.dht.run_coroutine(partial(send_dear_tokens, key=key, claims=token, private=private))
        for identity in self.identities:
            self.store("admissions", token(identity.owner[-9:-1]), owner=identity.owner)

    def hide_others(self) -> None:
        """Answer with one record alone who asks for progress, and have others do so."""
        keys = [f"{self.run.swarm_id}_progress"]
        call = partial(hide_others, keys=keys, private=self.admission.record_key, value=self.progress())
        self.dht.run_coroutine(call)

    def progress(self) -> dict[str, object]:
        """Return the progress of a peer that keeps up."""
        return dict(
            peer_id=self.dht.peer_id.to_bytes(),
            epoch=self.epoch_of_others(),
            samples_accumulated=1,
            samples_per_second=1.0,
            time=get_dht_time(),
            client_mode=False,
        )

    def figures(self) -> dict[str, object]:
        """Return ordinary figures of a peer."""
        return dict(
            username=self.admission.username,
            epoch=self.epoch_of_others(),
            loss=1.0,
            num_samples=1,
            samples_per_second=1.0,
            share_averaged=1.0,
            bytes_sent=0,
            num_rounds=1,
            round_seconds=1.0,
            num_refused_gradients=0,
            client_mode=False,
            package_version="0",
        )

    def epoch_of_others(self) -> int:
        """Return the newest epoch that is no lie of this process."""
        return max((record["epoch"] for record in self._read("progress") if record["epoch"] < FAR_EPOCH), default=0)

    def state_of_most(self) -> tuple[int, str] | None:
        """Return epoch and digest of the state that most name."""
        named = Counter((record["epoch"], record["digest"]) for record in self._read("states"))
        return named.most_common(1)[0][0] if named else None

    def donors_of(self, digest: str) -> list[str]:
        """Return who says that it serves a state, by libp2p id."""
        return [record["peer_id"] for record in self._read("states") if record["shares"] and record["digest"] == digest]

    def spans_of_others(self) -> list[list[int]]:
        """Return the records that anybody says that it has trained on."""
        return [span for record in self._read("trained") for entry in record["epochs"] for span in entry["spans"]]

    def compute(self, share: float) -> None:
        """Keep a core busy for this share of the time until the next lie."""
        end = time.monotonic() + SECONDS_BETWEEN_LIES * share / (1 - share)
        while time.monotonic() < end:
            pass

    def _read(self, name: str) -> list[dict[str, Any]]:
        found = self.dht.get(f"{self.run.swarm_id}_{name}", latest=True)
        values = found.value.values() if found is not None and isinstance(found.value, dict) else ()
        return [entry.value for entry in values if isinstance(entry.value, dict)]


async def _store_large(dht: SwarmDHT, node: DHTNode, *, key: str, owner: bytes, num_bytes: int) -> None:
    """Store made-up bytes, from the process of the node: the pipe to it takes no large values."""
    await node.store(key, "x" * num_bytes, get_dht_time() + SECONDS, subkey=owner)


def _made_up_identity(run: TrainingRun, key: RSAPrivateKey) -> Identity:
    peer, now = RsaKey(rsa.generate_private_key(65537, 2048)), get_dht_time()
    record_key = key.get_public_key().to_bytes().decode()
    admission = own_admission(run.run_id, peer, record_key, now=now, expires_at=now + SECONDS_OF_A_TOKEN)
    return Identity(peer_id=peer_id_of(peer.public), owner=_owner(key), token=token_of(admission, peer))


def _dear_token(run_id: str, record_key: str, key: str, number: bytes) -> str:
    times = dict(expires_at=get_dht_time() + SECONDS_OF_A_TOKEN, confirmed_at=0.0)
    claims = dict(username=f"a{number.hex()}", run_id=run_id, peer_id="", record_key=record_key, key=key)
    return json.dumps(claims | times | {"signature": base64.b64encode(bytes(256)).decode()})


def _owner(key: RSAPrivateKey) -> bytes:
    return RSASignatureValidator(key).local_public_key
