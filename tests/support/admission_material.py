"""Keys, requests and the real service for the tests of admission; run as a program it is that service."""

import base64
import contextlib
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import httpx2
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519, rsa
from huggingface_hub import HfApi

from hub_tools.endpoint import prepare_hub_client
from hub_tools.local_hub import LocalHub
from hub_tools.processes.child_process import ChildProcess
from pipelines.core.admission.tokens import Admission, AdmissionRequest, peer_id_of, sign_request
from pipelines.core.run.training_run import TrainingRun


@cache
def rsa_key(name: str) -> rsa.RSAPrivateKey:
    """Return a key that stays the same for a name within one process."""
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def der(key: rsa.RSAPrivateKey) -> bytes:
    return key.public_key().public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)


def ssh(key: rsa.RSAPrivateKey) -> str:
    return key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH).decode()


def unsigned_request(**changes: object) -> AdmissionRequest:
    values = dict(
        run_id="run", peer_key=base64.b64encode(der(rsa_key("peer"))).decode(), record_key=ssh(rsa_key("record")),
        time=time.time(),
    )  # fmt: skip
    return AdmissionRequest(**(values | changes))


def signed_request(**changes: object) -> AdmissionRequest:
    """Return a request that is right but for the given changes, which are signed too."""
    return sign_request(unsigned_request(**changes), rsa_key("peer"), rsa_key("record"))


def body_of(request: AdmissionRequest) -> dict[str, object]:
    names = ("run_id", "peer_key", "record_key", "time", "peer_signature", "record_signature", "token")
    proof = {name: value for name in ("username", "nonce", "proof_expires_at") if (value := getattr(request, name))}
    return {name: getattr(request, name) for name in names} | proof


def admission(now: float, **changes: object) -> Admission:
    values = dict(
        username="alice", run_id="run", peer_id=peer_id_of(der(rsa_key("peer"))).hex(),
        record_key=ssh(rsa_key("record")), expires_at=now + 60.0, confirmed_at=now,
    )  # fmt: skip
    return Admission(**(values | changes))


@dataclass
class RunningService:
    """The real service as a process of its own, which logs everything down to DEBUG."""

    address: str
    key: ed25519.Ed25519PrivateKey = field(repr=False)
    log_file: Path
    process: subprocess.Popen

    def ask(self, token: str | None, request: AdmissionRequest) -> httpx2.Response:
        """Ask for admission as the user with a Hub token."""
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        return httpx2.post(f"{self.address}/token", json=body_of(request), headers=headers, timeout=60)

    def log(self) -> str:
        return self.log_file.read_text(encoding="utf-8")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@contextlib.contextmanager
def running_service(
    hub: LocalHub, repository: str, folder: Path, port: int = 0, **options: float
) -> Iterator[RunningService]:
    """Run the service of a repository, with a key that stays in the folder; it ends with the block."""
    from pipelines.features.admission_service.server import load_or_create_key

    key = load_or_create_key(folder / "authority.key")
    settings = dict(repository=repository, folder=str(folder), port=port, options=options)
    environment = {**os.environ, **hub.environment(hub.alice_token)}
    command = [sys.executable, __file__, json.dumps(settings)]
    with (
        (folder / "service.log").open("a", encoding="utf-8") as log,
        ChildProcess(command, env=environment, stdout=subprocess.PIPE, stderr=log) as process,
    ):
        address = process.stdout.readline().strip()
        assert address, (folder / "service.log").read_text(encoding="utf-8")
        try:
            yield RunningService(address, key, folder / "service.log", process)
        finally:
            process.end(60)


def serve(repository: str, folder: str, port: int, options: dict[str, float]) -> None:
    """Be the service; print the address."""
    from pipelines.features.admission_service.server import load_or_create_key, open_service, serve_admission
    from pipelines.features.admission_service.service import ServiceOptions

    logging.basicConfig(level=logging.DEBUG)
    prepare_hub_client()
    key, cache = load_or_create_key(Path(folder) / "authority.key"), Path(folder) / "cache"
    api = HfApi()
    run = TrainingRun.from_file(Path(api.hf_hub_download(repository, "training_run.json", cache_dir=cache)))
    service = open_service(
        repository, key, api, cache, ServiceOptions(**options),
        run_id=run.run_id, averaging_timeout_seconds=run.averaging_timeout_seconds,
    )  # fmt: skip
    logging.info("%r", service)
    serve_admission(service, "127.0.0.1", port, lambda address: print(address, flush=True))


def publish_run(hub: LocalHub, repository: str, run_json: str) -> None:
    """Publish a repository that holds nothing but a run's settings."""
    api = HfApi(endpoint=hub.endpoint, token=hub.alice_token)
    api.create_repo(repository)
    api.upload_file(repo_id=repository, path_in_repo="training_run.json", path_or_fileobj=run_json.encode())


def edit_lists(hub: LocalHub, repository: str, lists: object) -> None:
    """Do what a moderator does: change `admission.json` of the run's repository."""
    text = lists if isinstance(lists, str) else json.dumps(lists)
    api = HfApi(endpoint=hub.endpoint, token=hub.alice_token)
    api.upload_file(repo_id=repository, path_in_repo="admission.json", path_or_fileobj=text.encode())


if __name__ == "__main__":
    serve(**json.loads(sys.argv[1]))
