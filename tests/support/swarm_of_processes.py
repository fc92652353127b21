"""Starts peers of a test swarm as OS processes and reads their events; ends all of them, whatever happens."""

import json
import signal
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from forked_processes import ForkedProcess, fork_server
from language_material import ALBERT, GPT2, SEQUENCE_LENGTH
from running_programs import end_of, wait_for

from hub_tools.processes.event_files import read_events
from pipelines.core.run.training_run import TrainingRun
from pipelines.tools.chaos.tiny_settings import TINY_MODEL_SETTINGS
from pipelines.tools.process_table import group_members, signal_processes

TINY_MODEL = dict(**TINY_MODEL_SETTINGS, text_vocab_size=40, codebook_size=32, image_grid_size=4)

HOSTILE_PROCESS = "pipelines.tools.chaos.attacks.hostile_process"
PATIENT = dict(matchmaking_seconds=3.0, averaging_timeout_seconds=80.0, progress_expiration_seconds=30.0)
"""Changes of a tiny run in which every round has to succeed: how long peers wait follows from these, and on a busy
machine an answer takes a second."""


TINY_LANGUAGE = dict(sequence_length=SEQUENCE_LENGTH)
TINY_TASKS = {
    "text-to-image": dict(model_config=TINY_MODEL),
    "fill-mask": dict(model_config=dict(ALBERT, vocab_size=40, pad_token_id=0), task_settings=TINY_LANGUAGE),
    "text-generation": dict(model_config=dict(GPT2, vocab_size=40), task_settings=TINY_LANGUAGE),
}
"""What differs between tiny runs of the tasks."""

WEIGHT_OF_A_SAMPLE = {"text-to-image": 1, "fill-mask": 5, "text-generation": 19}
"""About what `made_up_batch` comes to."""


def tiny_run(task: str = "text-to-image", **changes: Any) -> TrainingRun:
    """Return a run that a swarm on this machine goes through in seconds; `target_batch_size` is in samples."""
    changes["target_batch_size"] = changes.get("target_batch_size", 32) * WEIGHT_OF_A_SAMPLE[task]
    settings = dict(
        run_id=f"test-{uuid.uuid4().hex[:12]}",
        task=task,
        **TINY_TASKS[task],
        dataset_repository="made/up",
        dataset_revision="none",
        target_batch_size=32,
        num_epochs=6,
        num_warmup_epochs=2,
        peak_learning_rate=0.01,
        optimizer_bits=32,
        averaging_compression="none",
        delay_optimizer_step=False,
        matchmaking_seconds=1.5,
        averaging_timeout_seconds=20.0,
        progress_expiration_seconds=10.0,
        min_8bit_elements=1024,
    )
    return TrainingRun(**(settings | changes))


@dataclass
class PeerProcess:
    """A peer, its process group and the events that it has written."""

    name: str
    process: ForkedProcess
    folder: Path

    def events(self, kind: str | None = None) -> list[dict[str, Any]]:
        """Return the events so far, all or those of one kind."""
        events = read_events(self.folder / f"{self.name}.jsonl")
        return [event for event in events if kind in (None, event["event"])]

    def wait_for(self, kind: str, seconds: float = 300, after: float = 0.0, **values: Any) -> dict[str, Any]:
        """Wait for an event of a kind with these values, later than `after` (seconds since 1970).

        Fails if the process ends before it comes.
        """

        def look() -> dict[str, Any] | None:
            newer = (event for event in self.events(kind) if event["time"] > after)
            return next((it for it in newer if all(it[key] == value for key, value in values.items())), None)

        return wait_for(look, f"{self.name}: {kind} {values}", seconds, process=self.process, log=self._log)

    @property
    def _log(self) -> Path:
        return self.folder / f"{self.name}.log"

    def log(self) -> str:
        """Return the end of what the peer printed."""
        return end_of(self._log)

    def kill(self) -> None:
        """Kill the whole process group with SIGKILL."""
        self.process.signal_group(signal.SIGKILL)
        self.process.wait()

    def freeze(self) -> None:
        """Stop all processes of the peer but the guard, which would kill them if it could not look."""
        self._signal_all_but_guard(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let them go on."""
        self._signal_all_but_guard(signal.SIGCONT)

    def _signal_all_but_guard(self, number: int) -> None:
        guard = self.events("ready")[0]["guard"]
        signal_processes(set(group_members(self.process.pid)) - {guard}, number)

    def terminate(self) -> None:
        """Ask the peer to finish."""
        self.process.send_signal(signal.SIGTERM)


@dataclass
class Swarm:
    """Peers of one run. Use as a context manager."""

    folder: Path
    run: TrainingRun
    num_peers: int
    peers: list[PeerProcess] = field(default_factory=list)
    entry_addresses: list[str] = field(default_factory=list)
    anchor_keys: list[str] = field(default_factory=list)
    environment: Mapping[str, str] = field(default_factory=dict)
    """Of all peers; for those that show whose they are, that of their Hub."""

    def __enter__(self) -> "Swarm":
        return self

    def __exit__(self, *exception: object) -> None:
        for peer in self.peers:
            peer.kill()

    def start(self, name: str, program: str = "swarm_peer.py", **settings: Any) -> PeerProcess:
        """Start a peer, by a file of this folder or a module.

        The first one is waited for and becomes the entry address of the others.
        """
        values = dict(
            run=json.loads(self.run.to_json()),
            folder=str(self.folder),
            name=name,
            entry_addresses=self.entry_addresses,
            anchor_keys=self.anchor_keys,
            micro_batch_size=4,
            num_peers=self.num_peers,
            first_seed=1_000_000 * (len(self.peers) + 1),
            seconds_per_batch=0.1,
        )
        path = self.folder / f"{name}.json"
        path.write_text(json.dumps(values | settings), encoding="utf-8")
        log = self.folder / f"{name}.log"
        if program.endswith(".py"):
            program = str(Path(__file__).with_name(program))
        process = ForkedProcess(fork_server(self.environment), program, [str(path)], log)
        peer = PeerProcess(name, process, self.folder)
        self.peers.append(peer)
        self.entry_addresses = self.entry_addresses or peer.wait_for("ready", seconds=300)["addresses"]
        return peer
