"""One process with many keys that publishes false progress and states: python lying_records.py SETTINGS.json.

It trains nothing and is in no round. Settings: `run`, `folder`, `name`, `entry_addresses`, and `claims`, a list of the
fields of progress records that differ from an ordinary one. Each claim has keys of its own. Without an epoch it is
about the one that the others are in.
"""

import json
import sys
import time
from pathlib import Path

import hivemind
from cryptography.hazmat.primitives.asymmetric import rsa
from hivemind.dht.crypto import RSASignatureValidator
from hivemind.dht.validation import RecordValidatorBase
from hivemind.p2p import PeerID
from hivemind.utils import get_dht_time
from hivemind.utils.crypto import RSAPrivateKey
from swarm_peer import write_event

from pipelines.admission.tokens import der_of, own_admission, peer_id_of, self_signed_token
from pipelines.training.run.training_run import TrainingRun

SECONDS_BETWEEN_LIES = 0.5
FAR = 1000
"""Epochs from here on are lies."""


class ManyKeys(RecordValidatorBase):
    """Signs each record with the key that its sub-key names."""

    def __init__(self, keys: list[RSAPrivateKey]) -> None:
        self._signers = [RSASignatureValidator(key) for key in keys]

    def validate(self, record) -> bool:
        return True

    def sign_value(self, record) -> bytes:
        for signer in self._signers:
            if signer.local_public_key in record.subkey:
                return signer.sign_value(record)
        return record.value

    def strip_value(self, record) -> bytes:
        return self._signers[0].strip_value(record)


def epoch_of_others(dht: hivemind.DHT, run: TrainingRun) -> int:
    found = dht.get(f"{run.swarm_id}_progress", latest=True)
    records = [entry.value for entry in found.value.values()] if found is not None else []
    return max((record["epoch"] for record in records if record["epoch"] < FAR), default=0)


def main(settings: dict) -> None:
    run = TrainingRun.from_mapping(settings["run"])
    events = Path(settings["folder"]) / f"{settings['name']}.jsonl"
    peers = [rsa.generate_private_key(65537, 2048) for _ in settings["claims"]]
    keys = [RSAPrivateKey() for _ in settings["claims"]]
    dht = hivemind.DHT(
        initial_peers=settings["entry_addresses"], host_maddrs=["/ip4/127.0.0.1/tcp/0"], use_ipfs=False,
        record_validators=[ManyKeys(keys)], client_mode=True, start=True,
    )  # fmt: skip
    write_event(events, event="ready", addresses=[])
    while True:
        now, epoch = get_dht_time(), epoch_of_others(dht, run)
        for claim, peer, key in zip(settings["claims"], peers, keys, strict=True):
            peer_id, record_key = peer_id_of(der_of(peer)), key.get_public_key().to_bytes().decode()
            admission = own_admission(run.run_id, peer, record_key, now=now, expires_at=now + 600)
            record = dict(
                peer_id=peer_id, epoch=epoch, samples_accumulated=1, samples_per_second=1.0, time=now, client_mode=False
            )
            owner = RSASignatureValidator(key).local_public_key
            state = dict(
                peer_id=PeerID(peer_id).to_base58(), epoch=claim.get("epoch", epoch), digest="0" * 64, shares=True
            )
            told = dict(admissions=self_signed_token(admission, peer), progress=record | claim, states=state)
            for name, value in told.items():
                dht.store(f"{run.swarm_id}_{name}", subkey=owner, value=value, expiration_time=now + 20)
        write_event(events, event="lied")
        time.sleep(SECONDS_BETWEEN_LIES)


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
