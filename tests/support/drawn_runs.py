"""Runs that others can draw from: a tiny model that has learned a little, published, and servers of it."""

import contextlib
import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from entry_peers import started_entry_peers
from forked_processes import ForkedProcess, fork_server
from huggingface_hub import HfApi, constants
from language_material import ALBERT, GPT2, tiny_tokenizer
from running_programs import wait_for
from tiny_run_parts import write_tiny_run
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM, PreTrainedModel

from hub_tools.local_hub import LocalHub
from hub_tools.processes.event_files import read_events
from modeling_dalle_collab import DalleCollabForConditionalGeneration
from pipelines.core.run.training_run import TrainingRun

MAIN = "pipelines.command_line.main"
LOOPBACK = "/ip4/127.0.0.1/tcp/0"


def write_language_folder(folder: Path, task: str) -> None:
    """Write a whole language run with an untrained model, as `run`."""
    tokenizer = tiny_tokenizer(task)
    tokenizer.save_pretrained(folder / "run")
    torch.manual_seed(0)
    sizes = dict(vocab_size=len(tokenizer), pad_token_id=0, bos_token_id=1, eos_token_id=1)
    if task == "fill-mask":
        model = AutoModelForMaskedLM.from_config(AutoConfig.for_model(**ALBERT | sizes))
    else:
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**GPT2 | sizes))
    write_weights(folder / "run", model.eval(), epoch=3)


def write_weights(folder: Path, model: PreTrainedModel, *, epoch: int) -> None:
    """Write a checkpoint's weights and state into a run's folder."""
    model.save_pretrained(folder)
    write_state(folder, epoch=epoch)


def write_state(folder: Path, *, epoch: int) -> None:
    """Write into a run's folder of which epoch its weights are."""
    (folder / "run_state.json").write_text(json.dumps(dict(epoch=epoch, run_id="drawn")), encoding="utf-8")


class DrawnRun:
    """A finished run on the embedded Hub with an entry peer, and servers of it as processes."""

    def __init__(self, hub: LocalHub, folder: Path, entry: list[str], name: str, task: str) -> None:
        constants.HF_HUB_DISABLE_XET = True
        self.hub, self.folder, self.name, self.entry = hub, folder, f"org/{name}", entry
        self.end_entry: Callable[[], None] = lambda: None
        """Ends the entry peer before its time."""

        self.api = HfApi(endpoint=hub.endpoint, token=hub.alice_token)
        if task == "text-to-image":
            write_tiny_run(folder, f"{self.name}-codec", f"{self.name}-clip")
            write_state(folder / "run", epoch=3)
            parts = {"run": self.name, "codec": f"{self.name}-codec", "clip": f"{self.name}-clip"}
        else:
            write_language_folder(folder, task)
            parts = {"run": self.name}
        run = TrainingRun(
            run_id="drawn",
            task=task,
            dataset_repository="made/up",
            dataset_revision="none",
            num_epochs=3,
            num_warmup_epochs=1,
            entry_addresses=tuple(entry),
        )
        (folder / "run" / "training_run.json").write_text(run.to_json(), encoding="utf-8")
        for part, repository in parts.items():
            self.api.create_repo(repository)
            self.api.upload_folder(repo_id=repository, folder_path=folder / part)
        self.environment = {**hub.environment(hub.alice_token), "OMP_NUM_THREADS": "1"}
        self.servers: list[Server] = []

    def change(self, **settings: object) -> None:
        """Publish the run with other settings."""
        file = self.folder / "run" / "training_run.json"
        text = TrainingRun.from_file(file).replace(**settings).to_json()
        file.write_text(text, encoding="utf-8")
        self.api.upload_file(repo_id=self.name, path_in_repo=file.name, path_or_fileobj=text.encode())

    def publish(self, model: DalleCollabForConditionalGeneration, *, epoch: int) -> None:
        """Publish another checkpoint."""
        write_weights(self.folder / "run", model, epoch=epoch)
        self.api.upload_folder(repo_id=self.name, folder_path=self.folder / "run")

    def serve(self, *options: object) -> "Server":
        """Start a server; return it when it serves."""
        server = self.begin_serving(*options)
        server.wait_for("serving")
        return server

    def assist(self, *options: object) -> "Server":
        """Start the entry of the run, which is over; return it when it is there."""
        words = ("run", "assist", self.name, "--stay", "--host", LOOPBACK, "--startup-timeout", 240, *options)
        self.servers.append(Server(self, len(self.servers), words))
        self.servers[-1].wait_for("entry")
        return self.servers[-1]

    def serve_falsely(self) -> "Server":
        """Start a server with noise in its weights; return it when it serves."""
        events = self.folder / f"events-{len(self.servers)}.jsonl"
        program, words = "pipelines.tools.chaos.serving.false_server", (self.name, events, LOOPBACK)
        self.servers.append(Server(self, len(self.servers), words, program=program))
        self.servers[-1].wait_for("serving")
        return self.servers[-1]

    def begin_serving(self, *options: object) -> "Server":
        """Start a server and return at once."""
        number = len(self.servers)
        words = ("serve", self.name, "--host", LOOPBACK, "--startup-timeout", 240)
        own = ("--cpu-threads", 1, "--name", f"giver-{number}")
        self.servers.append(Server(self, number, (*words, *own, *options)))
        return self.servers[-1]

    def close(self) -> None:
        """End all servers."""
        for server in self.servers:
            server.kill()


class Server:
    """A command that serves, in a process group of its own."""

    def __init__(self, run: DrawnRun, number: int, words: tuple[object, ...], program: str = MAIN) -> None:
        self.events, self.log = run.folder / f"events-{number}.jsonl", run.folder / f"server-{number}.log"
        own = ("--events", self.events) if program == MAIN else ()
        arguments = [str(word) for word in (*words, *own)]
        environment = {**run.environment, "DALLE_COLLAB_WORKER": "1"}
        self.process = ForkedProcess(fork_server(run.environment), program, arguments, self.log, environment)

    def wait_for(self, event: str, seconds: float = 180) -> dict:
        """Wait for an event of the server's; return it."""

        def look() -> dict | None:
            return next((line for line in reversed(read_events(self.events)) if line.get("event") == event), None)

        return wait_for(look, event, seconds, process=self.process, log=self.log)

    def signal(self, number: int) -> None:
        """Send a signal to all processes of the server."""
        self.process.signal_group(number)

    def kill(self) -> None:
        """Kill all processes of the server."""
        self.signal(signal.SIGKILL)


@contextlib.contextmanager
def drawn_run(hub: LocalHub, folder: Path, name: str, task: str = "text-to-image") -> Iterator[DrawnRun]:
    """Publish a finished run and start its entry peer for the length of the block."""
    with contextlib.ExitStack() as entry:
        addresses = entry.enter_context(started_entry_peers(folder, entry={}))
        run = DrawnRun(hub, folder, addresses["entry"], name, task)
        run.end_entry = entry.close
        try:
            yield run
        finally:
            run.close()
