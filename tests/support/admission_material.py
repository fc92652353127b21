"""Requests and the real service for the tests of admission; run as a program it is that service."""

import contextlib
import dataclasses
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx2
from admission_tokens import rsa_key
from huggingface_hub import HfApi

from hub_tools.endpoint import prepare_hub_client
from hub_tools.local_hub import LocalHub
from hub_tools.processes.child_process import ChildProcess
from hub_tools.publishing.account_proof import HubAccount
from pipelines.core.run.training_run import TrainingRun
from pipelines.core.signing.publisher_keys import PublisherKey
from pipelines.core.signing.signed_statement import signed_text
from pipelines.features.admission_service.requests import AdmissionRequest, proof_name, request_of


def request_for(
    run_id: str = "run", peer: str = "peer", username: str = "alice", moment: float | None = None, **changes: object
) -> AdmissionRequest:
    """Return a request that is right but for the given changes."""
    keys, now = (rsa_key(peer), rsa_key("record")), time.time() if moment is None else moment
    return dataclasses.replace(request_of(run_id, *keys, time=now, username=username), **changes)


def proven_request(account: HubAccount, authority_key: str, **changes: object) -> AdmissionRequest:
    """Return a request of the account's user, whose proof is on the Hub."""
    request = request_for(username=account.username, **changes)
    account.place(proof_name(request, authority_key))
    return request


def body_of(request: AdmissionRequest) -> dict[str, object]:
    return json.loads(signed_text(request, rsa_key("record")))


@dataclass
class RunningService:
    """The real service as a process of its own, which logs everything down to DEBUG."""

    address: str
    key: PublisherKey = field(repr=False)
    log_file: Path
    process: subprocess.Popen
    endpoint: str
    """Of the Hub."""

    accounts: dict[str, HubAccount] = field(default_factory=dict, repr=False)

    def ask(self, request: AdmissionRequest) -> httpx2.Response:
        """Ask for admission, whether or not the Hub has a proof of the user."""
        return httpx2.post(f"{self.address}/token", json=body_of(request), timeout=60)

    def ask_as(self, hub_token: str, **changes: object) -> httpx2.Response:
        """Ask for admission as the user with a Hub token, having placed the proof."""
        account = self.accounts.setdefault(hub_token, HubAccount(HfApi(endpoint=self.endpoint, token=hub_token)))
        return self.ask(proven_request(account, self.key.public, **changes))

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
            yield RunningService(address, key, folder / "service.log", process, hub.endpoint)
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
