"""The swarm under test: an embedded Hub, an auxiliary peer and trainers, with a proxy before every peer."""

import contextlib
import json
import resource
import signal
import socket
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from hub_tools.local_hub import LocalHub
from hub_tools.processes.child_process import end_group, last_line
from hub_tools.processes.process_group import WORKER_VARIABLE
from pipelines.tools.chaos.chaos_processes import MARKER_VARIABLE, Trainer, free_port, left_behind, read_events
from pipelines.tools.chaos.chaotic_peer import ChaoticPeerSettings, Control, events_file, settings_file
from pipelines.tools.chaos.faults.link_proxy import LinkProxy, PortOwners
from pipelines.tools.chaos.fork_server import ForkServer
from pipelines.tools.chaos.serving.scenario import ServingScenario
from pipelines.tools.chaos.tiny_settings import TINY_MODEL_SETTINGS
from pipelines.tools.demo.stages import StageError
from pipelines.tools.process_table import group_members, is_running, signal_processes

ORGANISATION = "chaos"
ATTACKER = "attacker"
NUM_KEYS = 12
"""Of an attacker in an open run."""

REPOSITORY, SERVED = f"{ORGANISATION}/run", f"{ORGANISATION}/served"
"""The run, and a copy of it at its first checkpoint, which servers follow: it does not change under them."""

AUXILIARY, SECOND_AUXILIARY = "auxiliary", "second-auxiliary"
SECONDS_TO_START = 240.0
MAX_FILE_BYTES_OF_A_FULL_DISK = 2**16
"""A file of this size can still be written: shared memory and logs are not the disk that is full."""

RUN_SETTINGS: Mapping[str, Any] = dict(
    **TINY_MODEL_SETTINGS,
    num_epochs=100_000,
    num_warmup_epochs=10,
    peak_learning_rate=0.005,
    delay_optimizer_step=False,
    matchmaking_seconds=1.5,
    averaging_timeout_seconds=16.0,
    progress_expiration_seconds=8.0,
    checkpoint_interval_epochs=10,
)

HUB_RUN_SETTINGS: Mapping[str, Any] = dict(
    wire="hub",
    bucket=f"{REPOSITORY}.rounds",
    synchronisation="sparse",
    aggregation_rule="mean",
    outer_momentum=0.0,
    num_warmup_epochs=2,
    local_steps=8,
    inner_batch_size=8,
    inner_optimizer="adamw",
    peak_learning_rate=0.001,
    checkpoint_interval_epochs=5,
    bucket_interval_epochs=5,
    kept_rounds=200,
)


@dataclass(frozen=True, kw_only=True)
class SwarmPlan:
    """Sizes of the swarm."""

    folder: Path
    """Folder of the Hub, logs, events and results."""

    num_peers: int = 4
    micro_batch_size: int = 4
    seconds_per_batch: float = 0.16
    """Speed of each trainer's machine. At this speed four trainers and a restart fit on two cores."""

    seconds_per_epoch: float = 4.0
    """Length of an epoch when all trainers work, without the time for averaging."""

    seed: int = 0
    has_authority: bool = False
    """Whether the run admits users only: each trainer is one, and so is who attacks."""

    settings: Mapping[str, object] = field(default_factory=dict)
    """Settings of the run that override or extend `RUN_SETTINGS`."""

    serving_faults: frozenset[str] = frozenset()
    """Which faults of servers the script has: what they need is started once there is a checkpoint."""

    wire: str = "p2p"
    """The run's setting: over the Hub alone there is a second auxiliary peer, and `seconds_per_epoch` is the window."""

    @property
    def is_over_the_hub(self) -> bool:
        """Whether the Hub is the only wire."""
        return self.wire == "hub"

    @property
    def auxiliaries(self) -> tuple[str, ...]:
        """Names of the auxiliary peers, in the order in which they publish."""
        return (AUXILIARY, SECOND_AUXILIARY) if self.is_over_the_hub else (AUXILIARY,)

    @property
    def run_settings(self) -> dict[str, Any]:
        """All settings that the run is created with."""
        own = RUN_SETTINGS | dict(target_batch_size=self.target_batch_size)
        if self.is_over_the_hub:
            own |= HUB_RUN_SETTINGS | dict(window_seconds=self.seconds_per_epoch)
        return own | dict(self.settings)

    @property
    def target_batch_size(self) -> int:
        """Samples of an epoch."""
        per_second = self.num_peers * self.micro_batch_size / self.seconds_per_batch
        return round(per_second * self.seconds_per_epoch)


class ChaosSwarm:
    """Everything that runs. Use as a context manager; `tick` restarts dead trainers and is called often."""

    def __init__(self, plan: SwarmPlan, console: Console) -> None:
        self.plan, self._console = plan, console
        self.marker = uuid.uuid4().hex
        self.trainers: list[Trainer] = []
        self.orphans: list[int] = []
        self._auxiliaries: dict[str, int] = {}
        self.attackers: dict[str, int] = {}
        self.scene: ServingScenario | None = None
        self._tokens: dict[str, str] = {}
        self._restarts: dict[str, float] = {}
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> "ChaosSwarm":
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        for trainer in self.trainers:
            trainer.kill()
        if self.scene is not None:
            self.scene.close()
        for group in (*self.attackers.values(), *self._auxiliaries.values()):
            end_group(group)
        self._stack.close()
        self.orphans += left_behind(self.marker)
        signal_processes(self.orphans, signal.SIGKILL)

    @property
    def auxiliary_reports(self) -> list[dict[str, Any]]:
        """The auxiliary peers' events, those of the first one last."""
        return [
            event
            for name in reversed(self.plan.auxiliaries)
            for event in read_events(self.plan.folder / f"{name}.jsonl")
        ]

    def tick(self) -> None:
        """Restart trainers whose volunteer is back, and record those that died without a fault."""
        for name in list(self._auxiliaries):
            if time.monotonic() >= self._restarts.get(name, float("inf")):
                del self._restarts[name]
                self._start_auxiliary(name)
        for trainer in self.trainers:
            if trainer.is_alive():
                continue
            if trainer.name not in self._restarts:
                trainer.num_unexpected_exits += 1
                self._console.print(
                    f"[red]{escape(trainer.name)} died by itself:[/red] {escape(trainer.last_words())}", markup=True
                )
                self._restarts[trainer.name] = time.monotonic() + 1.0
            if time.monotonic() >= self._restarts[trainer.name]:
                del self._restarts[trainer.name]
                self._start_trainer(trainer)

    def kill_trainer(self, number: int, seconds_until_back: float) -> None:
        """Kill a trainer; its volunteer restarts it later."""
        trainer = self.trainers[number]
        self._restarts[trainer.name] = time.monotonic() + seconds_until_back
        self.orphans += trainer.kill()

    def kill_auxiliary(self, seconds_until_back: float) -> None:
        """Kill the first auxiliary peer; its organiser restarts it later."""
        self._restarts[AUXILIARY] = time.monotonic() + seconds_until_back
        end_group(self._auxiliaries[AUXILIARY])

    def freeze_auxiliary(self, is_frozen: bool) -> None:
        """Freeze the first auxiliary peer, or let it go on where it stood."""
        signal_processes(group_members(self._auxiliaries[AUXILIARY]), signal.SIGSTOP if is_frozen else signal.SIGCONT)

    def kill_child(self, number: int, seconds_until_back: float) -> None:
        """Kill a process of hivemind's of a trainer, which must end by itself; its volunteer restarts it later."""
        trainer = self.trainers[number]
        self._restarts[trainer.name] = time.monotonic() + seconds_until_back
        if not trainer.ends_without_a_child():
            trainer.num_unexpected_exits += 1
            self._console.print(
                f"[red]{escape(trainer.name)} hangs:[/red] one of its processes was killed", markup=True
            )
        self.orphans += trainer.kill()

    def bucket_of(self, number: int) -> str:
        """Return a trainer's bucket, where the Hub is the only wire."""
        return f"{REPOSITORY}-{self.trainers[number].name}"

    def lists_are_right(self) -> bool:
        """Repeat the run's rounds from their files, where the Hub is the only wire; tell whether no list is false."""
        try:
            self._run_to_end("audit", "pipelines.command_line.main", ["run", "audit", REPOSITORY, "--rounds"])
        except StageError as error:
            self._console.print(str(error))
            return False
        return True

    def start_attack(self, name: str) -> None:
        """Start a process that makes an attack of `attacks.table`, by its name."""
        path = settings_file(self.plan.folder, name)
        settings = dict(repository=REPOSITORY, folder=str(self.plan.folder), name=name, attacks={name: NUM_KEYS})
        path.write_text(json.dumps(settings), encoding="utf-8")
        self.attackers[name] = self._forks.start(
            name, "pipelines.tools.chaos.attacks.hostile_process", [str(path)], self._environment_of(ATTACKER)
        )

    def end_attack(self, name: str) -> None:
        """Kill the process."""
        end_group(self.attackers.pop(name))

    def attack_events(self, name: str) -> list[dict[str, Any]]:
        """What the process of an attack has written."""
        return read_events(events_file(self.plan.folder, name))

    def start_serving(self) -> None:
        """Wait for a checkpoint, and start those who serve and use it, if the script has faults of theirs."""
        if not self.plan.serving_faults:
            return
        self.wait_until(
            lambda: any(look["published"] is not None for look in self.auxiliary_reports), "the first checkpoint"
        )
        self._run_to_end("copy", "pipelines.tools.chaos.serving.served_copy", [REPOSITORY, SERVED])
        environment = {"HF_TOKEN": self._organiser} if self.plan.has_authority else {}
        self.scene = ServingScenario(self.plan.folder, SERVED, self._forks, environment, self.plan.serving_faults)
        self.scene.start()
        self.wait_until(self.scene.is_in_use, "those who use what is served")

    def fill_disk(self, is_full: bool) -> None:
        """Prevent the auxiliary peer from writing large files, or allow it again."""
        limit = MAX_FILE_BYTES_OF_A_FULL_DISK if is_full else resource.RLIM_INFINITY
        for pid in group_members(self._auxiliaries[AUXILIARY]):
            with contextlib.suppress(ProcessLookupError):
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))

    def wait_until(self, is_so: Callable[[], bool], what: str, seconds: float = SECONDS_TO_START) -> None:
        """Tick until a condition holds; raises StageError if it times out."""
        deadline = time.monotonic() + seconds
        while not is_so():
            if time.monotonic() > deadline:
                raise StageError(
                    f"Timed out after {seconds:.0f} s waiting for {what}; see {self.plan.folder / 'logs'}.\n"
                    + "\n".join(trainer.last_sign_of_life() for trainer in self.trainers)
                )
            for name, group in self._auxiliaries.items():
                if name not in self._restarts and not is_running(group):
                    raise StageError(f"The auxiliary peer has exited; see {self._forks.log(name)}.")
            self.tick()
            time.sleep(0.05)

    def _start(self) -> None:
        folder = self.plan.folder
        self.hub = self._stack.enter_context(LocalHub(folder / "hub", controlled=self.plan.is_over_the_hub))
        self._organiser = self.hub.create_user("organiser")
        users = [ATTACKER, *map(_trainer_name, range(self.plan.num_peers))]
        self._tokens = {user: self.hub.create_user(user) for user in users}
        role = "contributor" if self.plan.is_over_the_hub else "read"
        self.hub.create_organization(ORGANISATION, members={"organiser": "admin"} | dict.fromkeys(users, role))
        if self.plan.is_over_the_hub:
            self._tokens = {user: self.hub.create_token(user, role=role, name="volunteer") for user in users}
        environment = {
            **self.hub.environment(), "OMP_NUM_THREADS": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            MARKER_VARIABLE: self.marker,
        }  # fmt: skip
        self._forks = self._stack.enter_context(ForkServer(folder / "logs", environment, clock_can_be_skewed=True))
        self._create_run()
        self._owners = PortOwners()
        self.proxy = self._stack.enter_context(LinkProxy(self._owners))
        if self.plan.has_authority:
            self._serve_admission()
        for name in self.plan.auxiliaries:  # one after the other: each adds its key to the run's list
            self._start_auxiliary(name)
            events = self.plan.folder / f"{name}.jsonl"
            self.wait_until(
                lambda events=events: bool(read_events(events)), "the auxiliary peer's first look at the run"
            )
        for number in range(self.plan.num_peers):
            self.trainers.append(self._make_trainer(number))
            self._start_trainer(self.trainers[-1])

    def _create_run(self) -> None:
        folder = self.plan.folder / "material"
        folder.mkdir()
        settings = dict(self.plan.run_settings, run_id=f"chaos-{self.marker[:8]}")
        path = self.plan.folder / "run_settings.json"
        path.write_text(json.dumps(settings), encoding="utf-8")
        self._run_to_end("create", "pipelines.tools.chaos.tiny_run", [str(folder), REPOSITORY, str(path)])

    def _run_to_end(self, name: str, program: str, arguments: list[str]) -> None:
        """Run a program with the organiser's token; raises StageError if it fails."""
        group = self._forks.start(name, program, arguments, {"HF_TOKEN": self._organiser})
        if (code := self._forks.wait(group)) != 0:
            log = self._forks.log(name)
            raise StageError(f"The program {name} failed (exit code {code}): {last_line(log)} See {log}.")

    def _serve_admission(self) -> None:
        port, key = free_port(), self.plan.folder / "authority.key"
        arguments = ["run", "authorize", REPOSITORY, "--port", str(port), "--key-file", str(key)]
        service = self._forks.start(
            "authority", "pipelines.command_line.main", arguments, {"HF_TOKEN": self._organiser}
        )
        self._stack.callback(end_group, service)
        deadline = time.monotonic() + SECONDS_TO_START
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                return
            time.sleep(0.1)
        raise StageError(f"The admission service did not start; see {self._forks.log('authority')}.")

    def _environment_of(self, user: str) -> dict[str, str]:
        is_known = self.plan.has_authority or self.plan.is_over_the_hub
        return {"HF_TOKEN": self._tokens[user]} if is_known else {}

    def _start_auxiliary(self, name: str) -> None:
        folder = self.plan.folder
        arguments = ["run", "assist", REPOSITORY, "--events", str(folder / f"{name}.jsonl")]
        if self.plan.is_over_the_hub:
            arguments += ["--state-folder", str(folder / f"{name}.state")]
        else:
            host, announce = self._addresses(name)
            arguments += ["--host", host, "--announce", announce]
        environment = {"HF_TOKEN": self._organiser, WORKER_VARIABLE: "1"}
        group = self._forks.start(name, "pipelines.command_line.main", arguments, environment)
        self._auxiliaries[name] = group
        self._owners.register(group, name)

    def _make_trainer(self, number: int) -> Trainer:
        host, announce = ("", "") if self.plan.is_over_the_hub else self._addresses(_trainer_name(number))
        settings = ChaoticPeerSettings(
            name=_trainer_name(number),
            folder=str(self.plan.folder),
            repository=REPOSITORY,
            host_address=host,
            announce_address=announce,
            micro_batch_size=self.plan.micro_batch_size,
            seconds_per_batch=self.plan.seconds_per_batch,
            seed=self.plan.seed * 1000 + number,
        )
        trainer = Trainer(settings, self._forks, self._environment_of(settings.name))
        trainer.control(Control())
        return trainer

    def _start_trainer(self, trainer: Trainer) -> None:
        self._owners.register(trainer.start(), trainer.name)

    def _addresses(self, name: str) -> tuple[str, str]:
        """Return where a peer listens and what it announces: the proxy before it."""
        port = free_port()
        return f"/ip4/127.0.0.1/tcp/{port}", f"/ip4/127.0.0.1/tcp/{self.proxy.add(name, port).proxy_port}"


def _trainer_name(number: int) -> str:
    return f"trainer-{number}"
