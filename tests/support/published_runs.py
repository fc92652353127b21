"""What a tiny run needs on the embedded Hub: a dataset of image codes, its codec, a tokenizer; and its commands."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from forked_commands import ForkedCommands
from huggingface_hub import HfApi, constants
from huggingface_hub.utils import disable_progress_bars
from language_material import DOCUMENTS, SEQUENCE_LENGTH, tiny_tokenizer, write_texts

from hub_tools.local_hub import LocalHub
from hub_tools.processes.child_process import ChildProcess
from pipelines.core.run.training_run import TrainingRun
from pipelines.tasks.text_to_image.image_codes.image_code_record import ImageCodeLayout
from pipelines.tools.chaos.tiny_run import save_tiny_codec, write_tiny_material
from pipelines.tools.chaos.tiny_settings import TINY_MODEL_SETTINGS

NUM_RECORDS = 96
TEXT_DATASET = "org/tiny-documents"
LOOPBACK = "/ip4/127.0.0.1/tcp/0"
NOT_FOR_PEOPLE = re.compile(
    r"Traceback|never retrieved|already awaited|never awaited|was destroyed|Exception ignored|\w+Warning:|^  File ",
    re.M,
)
"""What no log of a command has, whatever goes wrong in its swarm: words of libraries."""
TINY_SETTINGS = dict(
    **TINY_MODEL_SETTINGS,
    target_batch_size=32,
    num_epochs=10_000,
    num_warmup_epochs=2,
    peak_learning_rate=0.01,
    averaging_compression="none",
    delay_optimizer_step=False,
    matchmaking_seconds=1.5,
    averaging_timeout_seconds=20.0,
    progress_expiration_seconds=10.0,
    checkpoint_interval_epochs=1000,
)


@dataclass(frozen=True, kw_only=True)
class TrainingMaterial:
    """Repositories on the embedded Hub from which runs can be created, and the folder of the tokenizer."""

    hub: LocalHub
    commands: ForkedCommands
    dataset: str
    codec: str
    other_codec: str
    """A codec that did not make the dataset."""

    tokenizer: Path
    layout: ImageCodeLayout

    @property
    def api(self) -> HfApi:
        """A client of the embedded Hub, as the organisation's admin."""
        return HfApi(endpoint=self.hub.endpoint, token=self.hub.alice_token)

    def file(self, repository: str, name: str) -> Path:
        """Download the newest version of one file of a model repository."""
        return Path(self.api.hf_hub_download(repository, name, cache_dir=self._cache))

    def snapshot(self, repository: str) -> Path:
        """Download the newest version of a model repository."""
        return Path(self.api.snapshot_download(repository, cache_dir=self._cache))

    @property
    def _cache(self) -> Path:
        return self.hub.root / "client_home" / "tests"

    def create_arguments(self, repository: str, **settings: object) -> list[str]:
        """Return the arguments of `dalle-collab` that create a tiny run."""
        values = {**TINY_SETTINGS, **settings}
        sets = [part for name, value in values.items() for part in ("--set", f"{name}={json.dumps(value)}")]
        return [
            "run", "create", repository, "--dataset", self.dataset, "--codec", self.codec,
            "--tokenizer", str(self.tokenizer), *sets,
        ]  # fmt: skip

    def language_arguments(self, repository: str, task: str, model: dict, **settings: object) -> list[str]:
        """Return the arguments of `dalle-collab` that create a tiny run of a language model."""
        folder = self.tokenizer.parent / task
        if not folder.exists():
            tiny_tokenizer(task).save_pretrained(folder)
            self.api.create_repo(TEXT_DATASET, repo_type="dataset", exist_ok=True)
            texts = write_texts(folder / "text", {"text": list(DOCUMENTS)})
            self.api.upload_folder(repo_id=TEXT_DATASET, repo_type="dataset", folder_path=str(texts))
        common = {name: value for name, value in TINY_SETTINGS.items() if name not in TINY_MODEL_SETTINGS}
        values = {**common, "target_batch_size": 512, "sequence_length": SEQUENCE_LENGTH, **model, **settings}
        sets = [part for name, value in values.items() for part in ("--set", f"{name}={json.dumps(value)}")]
        return [
            "run", "create", repository, "--task", task, "--dataset", TEXT_DATASET, "--tokenizer", str(folder), *sets,
        ]  # fmt: skip

    def create_run(self, repository: str, **settings: object) -> str:
        """Create a tiny run with the public command and return its name."""
        done = self.commands.run(*self.create_arguments(repository, **settings))
        assert done.returncode == 0, done.stderr
        return repository

    def copy_run(self, repository: str, source: str, **files: str) -> str:
        """Publish a copy of a run with some files replaced; the names of files are given with `__` for the dot."""
        self.api.create_repo(repository)
        self.api.upload_folder(repo_id=repository, folder_path=str(self.snapshot(source)))
        for name, text in files.items():
            path = name.replace("__", ".")
            self.api.upload_file(repo_id=repository, path_in_repo=path, path_or_fileobj=text.encode())
        return repository

    def anchors(self, repository: str) -> list[str]:
        """Return the keys of the run's anchors."""
        listed = json.loads(self.file(repository, "publisher_keys.json").read_text(encoding="utf-8"))["keys"]
        return [entry["key"] for entry in listed if "anchor" in entry["roles"]]

    def settings(self, repository: str) -> TrainingRun:
        """Return the settings of a published run."""
        return TrainingRun.from_file(self.file(repository, "training_run.json"))


def publish_training_material(hub: LocalHub, commands: ForkedCommands, folder: Path) -> TrainingMaterial:
    """Publish a dataset and two codecs to `org` on the embedded Hub, and train a tokenizer."""
    constants.HF_HUB_DISABLE_XET = True
    disable_progress_bars()
    layout = write_tiny_material(folder, NUM_RECORDS)
    other = save_tiny_codec(folder / "other", seed=1)
    api = HfApi(endpoint=hub.endpoint, token=hub.alice_token)
    for name, kind in (("codec", "model"), ("other", "model"), ("dataset", "dataset")):
        api.create_repo(f"org/tiny-{name}", repo_type=kind)
        api.upload_folder(repo_id=f"org/tiny-{name}", repo_type=kind, folder_path=str(folder / name))
    assert other.fingerprint != layout.codec_fingerprint
    return TrainingMaterial(
        hub=hub,
        commands=commands,
        dataset="org/tiny-dataset",
        codec="org/tiny-codec",
        other_codec="org/tiny-other",
        tokenizer=folder / "tokenizer",
        layout=layout,
    )


def command_environment(hub: LocalHub, token: str | None) -> dict[str, str]:
    """Return the environment in which a person with this token uses the embedded Hub."""
    quiet = {"OMP_NUM_THREADS": "1", "COLUMNS": "200", "NO_COLOR": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    return {**os.environ, **hub.environment(token), **quiet}


def run_command(hub: LocalHub, *arguments: str, token: str | None = None) -> subprocess.CompletedProcess:
    """Run `dalle-collab` to its end, as the organisation's admin unless another token is given."""
    return subprocess.run(
        [sys.executable, "-m", "pipelines.command_line.main", *arguments],
        env=command_environment(hub, hub.alice_token if token is None else token),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def started_command(
    hub: LocalHub, log: Path, *arguments: str, token: str | None = None
) -> contextlib.AbstractContextManager[subprocess.Popen]:
    """Start `dalle-collab` in a session of its own; kill it and all that it started at the end of the block."""
    command = [sys.executable, "-m", "pipelines.command_line.main", *arguments]
    environment = command_environment(hub, hub.alice_token if token is None else token)
    with log.open("w", encoding="utf-8") as output:
        return killed_with_family(ChildProcess(command, env=environment, stdout=output, stderr=output))


@contextlib.contextmanager
def killed_with_family(process: Any) -> Iterator[Any]:
    """Kill a process, a `Popen` or a `ForkedProcess`, and all that it started at the end of the block."""
    try:
        yield process
    finally:
        kill_family(process.pid)
        process.wait()


def kill_family(pid: int) -> None:
    """Kill a process and all that it has started."""
    for member in family_of(pid):
        with contextlib.suppress(psutil.NoSuchProcess):
            member.kill()


def family_of(pid: int) -> list[psutil.Process]:
    """Return a process and all that it has started, as far as they are alive."""
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def still_alive(family: Sequence[psutil.Process], seconds: float = 10) -> list[psutil.Process]:
    """Return the processes that are alive after they were given some time to end."""
    return psutil.wait_procs(family, timeout=seconds)[1]


def interrupt(process: subprocess.Popen, seconds: float = 30) -> int:
    """Send what Ctrl-C sends; return the exit code, which has to come within the given time."""
    process.send_signal(signal.SIGINT)
    return process.wait(seconds)


TOLD = re.compile(r"\d{4}-\d\d-\d\dT\S+ INFO ")
"""How the lines of a command begin that tell what it does."""


def the_line(done: subprocess.CompletedProcess) -> str:
    """Return the one line of a command that ended with a mistake of its user, after what it may have told before."""
    assert done.returncode == 1, done.stdout + done.stderr
    lines = [line for line in done.stderr.strip().splitlines() if not TOLD.match(line)]
    assert len(lines) == 1 and lines[0].startswith("dalle-collab: "), done.stderr
    return lines[0]
