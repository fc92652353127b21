"""The run's Model Hub repository: reading and writing what peers need before they meet."""

import itertools
import json
import logging
from http import HTTPStatus
from pathlib import Path
from typing import Any, Protocol

from huggingface_hub import CommitOperationAdd, HfApi, hf_hub_download, snapshot_download
from huggingface_hub.errors import (
    EntryNotFoundError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
)

from hub_tools.endpoint import current_endpoint
from hub_tools.run_files import METRICS_FOLDER, REEL_FOLDER, RUN_STATE_FILE, TRAINING_RUN_FILE
from pipelines.training.repository.head import read_publisher_keys
from pipelines.training.repository.manifest import CheckpointRefusedError, verify_checkpoint
from pipelines.training.run.training_run import TrainingRun

logger = logging.getLogger(__name__)

NUM_ATTEMPTS_TO_COMMIT = 8
NOT_OF_A_CHECKPOINT = (f"{METRICS_FOLDER}/*", f"{REEL_FOLDER}/*", "*.md", "*.png")


class Processor(Protocol):
    """A processor or a tokenizer of transformers."""

    def save_pretrained(self, folder: Path) -> Any:
        """Write its files into a folder."""


def create_run_repository(repository: str, run: TrainingRun, processor: Processor, folder: Path) -> str:
    """Publish the run's settings, tokenizer and processor in one commit; return the commit's address.

    `folder` is an empty folder for the files. Raises ValueError if the repository already holds a run.
    """
    api = HfApi()
    if api.repo_exists(repository) and api.file_exists(repository, TRAINING_RUN_FILE):
        raise ValueError(
            f"{repository} already holds a training run. Choose another name, or delete the repository: "
            f"hf repos delete {repository}"
        )
    processor.save_pretrained(folder)
    (folder / TRAINING_RUN_FILE).write_text(run.to_json(), encoding="utf-8")
    (folder / "README.md").write_text(_card_before_training(repository, run), encoding="utf-8")
    api.create_repo(repository, exist_ok=True)
    operations = [
        CommitOperationAdd(path_in_repo=str(path.relative_to(folder)), path_or_fileobj=str(path))
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    ]
    return api.create_commit(repository, operations, commit_message=f"Create training run {run.run_id}").commit_url


def read_run(repository: str) -> TrainingRun:
    """Download the settings of a run.

    Raises:
        ValueError: there is no such repository, or it holds no training run.
    """
    try:
        path = download_if_present(repository, TRAINING_RUN_FILE)
    except RepositoryNotFoundError as error:
        raise ValueError(
            f"There is no model repository {repository} on this Hub, or your token may not read it. "
            "Check the name and HF_ENDPOINT; log in with: hf auth login"
        ) from error
    if path is None:
        raise ValueError(
            f"{repository} holds no {TRAINING_RUN_FILE}: it is not a training run. Its organiser creates one with: "
            f"dalle-collab run create {repository} --dataset ORG/DATASET"
        )
    return TrainingRun.from_file(path)


def read_run_state(repository: str) -> dict[str, Any] | None:
    """Return the state of the newest checkpoint (`epoch`, ...), or None while there is none."""
    path = download_if_present(repository, RUN_STATE_FILE)
    return None if path is None else json.loads(path.read_text(encoding="utf-8"))


def download_checkpoint(repository: str, revision: str | None = None) -> Path:
    """Download the newest checkpoint, or that of a revision, check it, and return its folder.

    A copy that this machine's disk has damaged is downloaded once more.

    Raises:
        CheckpointRefusedError: a file is not what the signed manifest says: with its name and that of the tensor.
    """
    keys = read_publisher_keys(repository)
    folder = _snapshot(repository, revision)
    try:
        verify_checkpoint(folder, keys)
    except CheckpointRefusedError as error:
        logger.warning("%s Downloading it again.", error)
        folder = _snapshot(repository, revision, force_download=True)
        verify_checkpoint(folder, keys)
    return folder


def _snapshot(repository: str, revision: str | None, **options: bool) -> Path:
    ignored = list(NOT_OF_A_CHECKPOINT)
    return Path(snapshot_download(repository, revision=revision, ignore_patterns=ignored, **options))


def announce_admission(repository: str, service: str, key: str) -> bool:
    """Write into the run which service admits peers, both empty for an open run; return whether that was a change.

    Raises:
        ValueError: the address or the key cannot be used.
    """
    message = "Announce the admission service" if service else "Open the run to everybody"
    return _change_run(repository, message, authorization_service=service, authorization_key=key)


def _change_run(repository: str, message: str, **changes: Any) -> bool:
    """Change settings of a run in one commit, on top of those that were read, so that writers undo nothing.

    Others publish at the same time: a commit that came in between is read, and the change is made on top of it.
    """
    api = HfApi()
    for attempt in itertools.count(1):
        head = api.repo_info(repository).sha
        run = TrainingRun.from_file(Path(hf_hub_download(repository, TRAINING_RUN_FILE, revision=head)))
        changed = run.replace(**changes)
        if changed == run:
            return False
        operation = CommitOperationAdd(path_in_repo=TRAINING_RUN_FILE, path_or_fileobj=changed.to_json().encode())
        try:
            api.create_commit(repository, [operation], commit_message=message, parent_commit=head)
            return True
        except HfHubHTTPError as error:
            is_overtaken = error.response is not None and error.response.status_code == HTTPStatus.PRECONDITION_FAILED
            if not is_overtaken or attempt == NUM_ATTEMPTS_TO_COMMIT:
                raise


def _card_before_training(repository: str, run: TrainingRun) -> str:
    return (
        "---\nlibrary_name: transformers\npipeline_tag: text-to-image\ntags: [collaborative-training, hivemind]\n"
        f"datasets: [{run.dataset_repository}]\n---\n\n# {repository}\n\n"
        f"A text-to-image transformer that is being trained together. Give it GPU time:\n\n"
        f"```bash\ndalle-collab join {repository}\n```\n\n"
        "The first checkpoint is published by the run's auxiliary peer.\n"
    )


def download_if_present(repository: str, file: str) -> Path | None:
    """Download a file, or return None if the repository has none of that name.

    Raises:
        ConnectionError: the Hub does not answer; the client reports this as a file that is not in its cache.
    """
    try:
        return Path(hf_hub_download(repository, file))
    except LocalEntryNotFoundError as error:
        raise ConnectionError(
            f"The Hub at {current_endpoint()} does not answer, and {file} of {repository} is not in the cache. "
            "Check HF_ENDPOINT and the network, then try again."
        ) from error
    except EntryNotFoundError:
        return None
