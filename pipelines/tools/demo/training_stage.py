"""The demo's training: an auxiliary peer and trainers as processes, watched until the last epoch is published.

Who dies is started again, who hangs is left alone or ended, and what counts is what the Hub has: as long as epochs
advance, it is waited.
"""

import contextlib
import json
import time
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx2
from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError

from hub_tools.counted import counted
from hub_tools.local_hub import LocalHub
from hub_tools.run_files import RUN_STATE_FILE
from pipelines.tools.demo.configured_hub import ConfiguredHub
from pipelines.tools.demo.demo_plan import Accounts, DemoPlan
from pipelines.tools.demo.free_ports import take_ports
from pipelines.tools.demo.running.peers import Peer
from pipelines.tools.demo.running.programs import Program, stop_all
from pipelines.tools.demo.running.progress_pictures import ProgressPictures
from pipelines.tools.demo.running.stall_timeout import StallTimeout
from pipelines.tools.demo.stages import StageError, Stages

FIRST_PEER_PORT, NUM_PEER_PORTS = 20_000, 10_000
"""The auxiliary peer's port is one of these, by its folder: demos side by side do not take each other's."""

ONLINE_PORT = 31337
"""Where others reach the auxiliary peer; a router can be told to forward it."""

LOOPBACK, EVERYWHERE = "/ip4/127.0.0.1/tcp", "/ip4/0.0.0.0/tcp"
SECONDS_TO_START = "300"
"""Of the libp2p daemon: on a machine with other work it may take a minute."""

SECONDS_BETWEEN_LOOKS = 0.5
SECONDS_BETWEEN_LOOKS_AT_THE_HUB = 3.0
SECONDS_TO_LEAVE = 20.0
SECONDS_TO_HAND_OVER = 20.0
"""The time that the auxiliary peer has for the last state once no trainer is left to give it."""

MOST_RENEWALS = 2
"""How often all peers are started again while no epoch ends."""


def train_together(stages: Stages, plan: DemoPlan, accounts: Accounts, hub: LocalHub | ConfiguredHub) -> None:
    """Train until the Hub has the last epoch's checkpoint; go on from the newest one that it has.

    Raises:
        StageError: nobody trains any more, or nothing has advanced for long.
    """
    training = Training(stages, plan, accounts, hub)
    with training.running():
        while not training.is_published():
            training.look(time.monotonic())
            time.sleep(SECONDS_BETWEEN_LOOKS)


class Training:
    """The peers of a demo's run."""

    def __init__(self, stages: Stages, plan: DemoPlan, accounts: Accounts, hub: LocalHub | ConfiguredHub) -> None:
        self._stages, self._plan, self._accounts, self._hub = stages, plan, accounts, hub
        self._auxiliary = Peer("The auxiliary peer", "auxiliary", plan.work / "auxiliary.jsonl", self._start_auxiliary)
        self._trainers = [
            Peer(
                f"Trainer {number + 1}", f"trainer-{number}", plan.work / f"trainer-{number}.jsonl",
                lambda number=number: self._start_trainer(number),
            )
            for number in range(len(accounts.volunteers))
        ]  # fmt: skip
        self._pictures = ProgressPictures(plan.auxiliary_folder, plan.output)
        self._stall_timeout = StallTimeout(time.monotonic())
        self._newest_epoch = 0
        self._num_renewals = 0
        """Since an epoch has ended that none had reached before."""

        self._alone_since: float | None = None
        """Since when there has been no trainer."""

        self._next_look_at_hub = 0.0
        self._port = 0
        """The auxiliary peer's."""

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Start the peers; when the block ends, so do they."""
        try:
            self._auxiliary.start(time.monotonic())
            yield
        except BaseException:
            stop_all(self._programs())  # the auxiliary peer publishes what it holds
            raise
        late = stop_all(self._programs(), SECONDS_TO_LEAVE, asks=False)
        if names := [peer.name for peer in self._peers if peer.program in late]:
            self._stages.lines.say(
                f"The last epoch is published: the demo goes on. {', '.join(names)} had not left and "
                f"{'was' if len(names) == 1 else 'were'} ended."
            )

    def is_published(self) -> bool:
        """Whether the last epoch's checkpoint is on the Hub, whoever says so."""
        if self._auxiliary.report.get("published_epoch", 0) >= self._plan.num_epochs:
            return True
        now = time.monotonic()
        may_be = self._newest_epoch >= self._plan.num_epochs or not self._auxiliary.is_running
        if not may_be or now < self._next_look_at_hub:
            return False
        self._next_look_at_hub = now + SECONDS_BETWEEN_LOOKS_AT_THE_HUB
        return published_epoch(self._hub, self._accounts.organiser, self._plan) >= self._plan.num_epochs

    def look(self, now: float) -> None:
        """Hear what the peers say; start who is to be started. `now`: seconds of any clock.

        Raises:
            StageError: there is nothing to wait for.
        """
        if not self._plan.work.is_dir():
            raise StageError(f"{self._plan.output} was removed while the demo ran in it. Start it again.")
        failed = [peer for peer in self._peers if peer.has_failed(now)]  # before the last that they say is read
        for peer in self._peers:
            if peer.hear(now):
                self._stall_timeout.advanced(now)
        self._note_epoch()
        if news := self._pictures.news(self._plan.num_epochs):
            self._stages.lines.say(news)
        self._stages.lines.tell(self._text)
        if self.is_published():
            return
        self._keep_hub()
        if self._auxiliary in failed:
            self._start_again(self._auxiliary, now)
        if self._auxiliary.epoch >= 0:  # newcomers find the swarm through it
            for trainer in self._trainers:
                if trainer.program is None or (trainer in failed and not self._may_miss(trainer)):
                    self._start_again(trainer, now)
        self._look_for_end(now)
        if self._stall_timeout.is_over(now):
            self._begin_anew(now)

    @property
    def _peers(self) -> list[Peer]:
        return [self._auxiliary, *self._trainers]

    def _programs(self) -> list[Program]:
        return [peer.program for peer in self._peers if peer.program is not None]

    def _note_epoch(self) -> None:
        epoch = max(peer.epoch for peer in self._peers)
        if epoch > self._newest_epoch:
            self._newest_epoch, self._num_renewals = epoch, 0

    def _keep_hub(self) -> None:
        if isinstance(self._hub, ConfiguredHub):
            return
        if self._hub.process is None or self._hub.process.poll() is not None:
            self._stages.lines.say("The demo's Hub has ended: it is started again.")
            self._hub.kill()
            self._hub.start()

    def _may_miss(self, trainer: Peer) -> bool:
        """Whether a trainer that has ended need not come back: it was the end, or it never stays and others do."""
        if self._newest_epoch >= self._plan.num_epochs:
            return True
        if trainer.may_start or not any(other.is_running for other in self._trainers if other is not trainer):
            return False
        if not trainer.is_given_up:
            trainer.is_given_up = True
            words = self._stages.last_words(trainer.log_name)
            self._stages.lines.say(f"{trainer.name} has ended too often: the demo goes on without it. ({words})")
        return True

    def _start_again(self, peer: Peer, now: float) -> None:
        if peer.program is not None:
            words = self._stages.last_words(peer.log_name)
            what = (
                "has been stopped by a signal" if peer.exit_code is None else f"ended with exit code {peer.exit_code}"
            )
            if not peer.may_start:
                raise StageError(
                    f"{peer.name} {what} in epoch {self._newest_epoch} of {self._plan.num_epochs}, and so it did each "
                    f"time that it was started again: {words} {self._where_to_look()}"
                )
            more = "" if peer.exit_code is None else f" ({words})"
            self._stages.lines.say(f"{peer.name} {what} in epoch {self._newest_epoch}: it is started again.{more}")
        peer.start(now)

    def _look_for_end(self, now: float) -> None:
        """Start the trainers again if they have left with the last state, and nobody else has it."""
        is_alone = all(trainer.exit_code is not None for trainer in self._trainers)
        has_state = self._auxiliary.report.get("held_epoch", 0) >= self._plan.num_epochs
        if not is_alone or has_state:
            self._alone_since = None
        elif self._alone_since is None:
            self._alone_since = now
        elif now - self._alone_since > SECONDS_TO_HAND_OVER and self._auxiliary.epoch >= 0:
            for trainer in self._trainers:
                self._start_again(trainer, now)

    def _begin_anew(self, now: float) -> None:
        seconds = self._stall_timeout.seconds_waited(now)
        seen = ", ".join(f"{peer.name[0].lower()}{peer.name[1:]} {_state(peer)}" for peer in self._peers)
        if self._num_renewals == MOST_RENEWALS:
            raise StageError(
                f"Nothing has advanced for {seconds:.0f} s in epoch {self._newest_epoch} of {self._plan.num_epochs}, "
                f"also after all peers were started again: {seen}. The auxiliary peer's last line: "
                f"{self._stages.last_words(self._auxiliary.log_name)} {self._where_to_look()}"
            )
        self._stages.lines.say(
            f"Nothing has advanced for {seconds:.0f} s ({seen}): all are started again from the newest checkpoint."
        )
        self._num_renewals += 1
        stop_all(self._programs())
        for peer in self._peers:
            peer.program, peer.num_starts, peer.epoch = None, 0, -1
        self._auxiliary.start(now)
        self._stall_timeout.begin_anew(time.monotonic())

    def _where_to_look(self) -> str:
        return f"Logs are in {self._stages.logs}. The same command goes on from the newest checkpoint."

    def _start_auxiliary(self) -> Program:
        # The same identity and, if it is free, the same port: trainers find it again when it is started anew.
        folder = self._plan.auxiliary_folder
        of_folder = FIRST_PEER_PORT + zlib.crc32(str(folder).encode()) % NUM_PEER_PORTS
        (port,) = take_ports(ONLINE_PORT if self._plan.is_online else of_folder, 1)
        if port != self._port:
            stop_all([trainer.program for trainer in self._trainers if trainer.program is not None])
            for trainer in self._trainers:
                trainer.program = None  # to be started where it is found
        self._port = port
        folder.mkdir(parents=True, exist_ok=True)
        if self._plan.is_online and port != ONLINE_PORT:
            raise StageError(
                f"TCP port {ONLINE_PORT} is in use, and volunteers need it. End what uses it: {self._where_to_look()}"
            )
        host = EVERYWHERE if self._plan.is_online else LOOPBACK
        announced = [f"--announce={address}" for address in self._plan.announce]
        return self._stages.start(
            "dalle-collab", "run", "assist", self._plan.repository(), "--host", f"{host}/{port}",
            "--identity-file", str(folder / "identity.key"),
            "--state-folder", str(folder), *self._plan.organiser_key, *announced,
            "--startup-timeout", SECONDS_TO_START, "--events", str(self._plan.work / "auxiliary.jsonl"),
            token=self._accounts.organiser, log_name="auxiliary",
        )  # fmt: skip

    def _start_trainer(self, number: int) -> Program:
        return self._stages.start(
            "dalle-collab", "join", self._plan.repository(), "--host", f"{LOOPBACK}/0", "--cpu-threads", "1",
            "--micro-batch-size", str(self._plan.micro_batch_size), "--device", "cpu",
            "--startup-timeout", SECONDS_TO_START, "--events", str(self._plan.work / f"trainer-{number}.jsonl"),
            token=self._accounts.volunteers[number], log_name=f"trainer-{number}",
        )  # fmt: skip

    def _text(self) -> str:
        if not self._auxiliary.report:
            return "peers are starting"
        return f"epoch {max(0, self._auxiliary.epoch)}/{self._plan.num_epochs}, {training_text(self._auxiliary.report)}"


def published_epoch(hub: LocalHub | ConfiguredHub, token: str, plan: DemoPlan) -> int:
    """Return the epoch of the run's newest checkpoint on the Hub; 0 if it has none, or the Hub does not answer."""
    api = HfApi(endpoint=hub.endpoint, token=token)
    try:
        file = api.hf_hub_download(plan.repository(), RUN_STATE_FILE, local_dir=plan.work / "published")
        return int(json.loads(Path(file).read_text(encoding="utf-8"))["epoch"])
    except (HfHubHTTPError, httpx2.HTTPError, OSError, ValueError, KeyError, TypeError):
        return 0


def training_text(report: Mapping[str, Any]) -> str:
    """Say how a run is doing, from what its auxiliary peer reports."""
    summary = report.get("summary")
    if summary is None:
        return counted(report.get("num_trainers", 0), "trainer")
    return (
        f"loss {summary['loss']:.3f}, {counted(summary['num_peers'], 'peer')}, "
        f"{summary['samples_per_second']:.0f} samples/s, {summary['share_averaged']:.0%} averaged"
    )


def _state(peer: Peer) -> str:
    if peer.program is None:
        return "has not been started"
    if peer.exit_code is not None:
        return f"has ended with exit code {peer.exit_code}"
    return f"runs and is in epoch {peer.epoch}" if peer.epoch >= 0 else "runs and has not said anything yet"
