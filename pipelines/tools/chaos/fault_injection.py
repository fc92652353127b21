"""Injects the faults of a script into a swarm, each at its time, and ends them."""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import httpx2

from hub_tools.local_hub.controls.hub_controls import HubFault
from pipelines.tools.chaos.chaos_swarm import ChaosSwarm
from pipelines.tools.chaos.chaotic_peer import Control
from pipelines.tools.chaos.faults.fault_script import NO_PEER, Fault, FaultKind, RoundFault, ServingFault
from pipelines.tools.chaos.faults.link_proxy import FREE, LinkLimits

SLOW_LINK = LinkLimits(bytes_per_second=125_000, delay_seconds=0.1)
"""1 Mbit/s and 100 ms: to the tiny model's rounds of 0.3 MB what a bad mobile link is to a real model's."""

CLOCK_SKEW_SECONDS = 10.0
"""hivemind tolerates 3 s."""

HOURS_OF_SKEW = 3 * 3600.0
"""Where the Hub is the only wire, everybody goes by its clock."""

SECONDS_LATE, SECONDS_TO_COME_BACK, LATER_ON_A_SLOW_LINK = 2.0, 5.0, 5.0


@dataclass
class FaultInjection:
    """Starts and ends faults; `advance` is called often with the time since the first fault could start."""

    swarm: ChaosSwarm
    faults: Sequence[Fault]
    slow_link: LinkLimits = SLOW_LINK
    _running: list[Fault] = field(default_factory=list)
    _next: int = 0
    _controls: dict[int, Control] = field(default_factory=dict)

    def advance(self, seconds: float) -> list[str]:
        """Start and end what is due; return a description of what was done."""
        done = []
        for fault in [fault for fault in self._running if fault.ends_at_seconds <= seconds]:
            self._running.remove(fault)
            self._set(fault, is_on=False)
            done.append(f"over: {fault.describe()}")
        while self._next < len(self.faults) and self.faults[self._next].at_seconds <= seconds:
            fault = self.faults[self._next]
            self._next += 1
            self._running.append(fault)
            self._set(fault, is_on=True)
            done.append(fault.describe())
        return done

    def end_all(self) -> None:
        """End all active faults; no more are started."""
        self._next = len(self.faults)
        self.advance(float("inf"))

    def _set(self, fault: Fault, *, is_on: bool) -> None:
        actions: dict[str, Callable[[Fault, bool], None]] = {
            FaultKind.KILL: self._kill,
            FaultKind.STOP: self._stop,
            FaultKind.PARTITION: self._limit,
            FaultKind.SLOW_LINK: self._limit,
            FaultKind.NAN: self._attack,
            FaultKind.LIAR: self._attack,
            FaultKind.NOISE: self._attack,
            FaultKind.HUB_OUTAGE: self._hub,
            FaultKind.CLOCK_SKEW: self._skew,
            FaultKind.CHILD: self._kill_child,
            FaultKind.DISK_FULL: lambda _fault, on: self.swarm.fill_disk(on),
        }
        actions |= dict.fromkeys(ServingFault, self._serving)
        if self.swarm.plan.is_over_the_hub:
            actions |= dict.fromkeys((FaultKind.PARTITION, FaultKind.SLOW_LINK, *RoundFault), self._hub_fault)
            actions |= {
                RoundFault.CLOSER_KILLED: self._kill_closer,
                RoundFault.CLOSER_FROZEN: lambda _fault, on: self.swarm.freeze_auxiliary(on),
                RoundFault.BUCKET_FULL: self._fill_bucket,
            }
        actions.get(fault.kind, self._let_attack)(fault, is_on)

    def _serving(self, fault: Fault, is_on: bool) -> None:
        assert self.swarm.scene is not None, "the swarm was told of these faults at its start"
        self.swarm.scene.strike(fault.kind, is_on=is_on)

    def _let_attack(self, fault: Fault, is_on: bool) -> None:
        self.swarm.start_attack(fault.kind) if is_on else self.swarm.end_attack(fault.kind)

    def _kill(self, fault: Fault, is_on: bool) -> None:
        if is_on:
            self.swarm.kill_trainer(fault.peer, fault.duration_seconds)

    def _kill_child(self, fault: Fault, is_on: bool) -> None:
        if is_on:
            self.swarm.kill_child(fault.peer, fault.duration_seconds)

    def _kill_closer(self, fault: Fault, is_on: bool) -> None:
        if is_on:
            self.swarm.kill_auxiliary(fault.duration_seconds)

    def _stop(self, fault: Fault, is_on: bool) -> None:
        trainer = self.swarm.trainers[fault.peer]
        trainer.freeze() if is_on else trainer.thaw()

    def _limit(self, fault: Fault, is_on: bool) -> None:
        limits = LinkLimits(is_cut=True) if fault.kind == FaultKind.PARTITION else self.slow_link
        self.swarm.proxy.limit(self.swarm.trainers[fault.peer].name, limits if is_on else FREE)

    def _attack(self, fault: Fault, is_on: bool) -> None:
        self._change_control(fault.peer, attack=str(fault.kind) if is_on else "")

    def _skew(self, fault: Fault, is_on: bool) -> None:
        seconds = HOURS_OF_SKEW if self.swarm.plan.is_over_the_hub else CLOCK_SKEW_SECONDS
        self._change_control(fault.peer, clock_skew_seconds=seconds if is_on else 0.0)

    def _hub_fault(self, fault: Fault, is_on: bool) -> None:
        """Have the Hub treat a peer, or all, like that; it ends by itself."""
        seconds = fault.duration_seconds
        kinds: dict[str, dict[str, Any]] = {
            FaultKind.PARTITION: dict(kind="late", seconds=seconds),
            FaultKind.SLOW_LINK: dict(kind="late", seconds=self.slow_link.delay_seconds * LATER_ON_A_SLOW_LINK),
            RoundFault.TOO_MANY_REQUESTS: dict(kind="refuse", status=429, seconds=SECONDS_TO_COME_BACK),
            RoundFault.SLOW_HUB: dict(kind="late", seconds=SECONDS_LATE),
            RoundFault.BROKEN_UPLOADS: dict(kind="break_body"),
            RoundFault.TOKEN_EXPIRED: dict(kind="refuse", status=401),
        }
        user = None if fault.peer == NO_PEER else self.swarm.trainers[fault.peer].name
        if is_on:
            with contextlib.suppress(httpx2.HTTPError):  # it is away: nobody notices a second fault
                self.swarm.hub.controls.add(HubFault(user=user, lasts_seconds=seconds, **kinds[fault.kind]))

    def _fill_bucket(self, fault: Fault, is_on: bool) -> None:
        with contextlib.suppress(httpx2.HTTPError):
            self.swarm.hub.controls.fill_bucket(self.swarm.bucket_of(fault.peer), is_full=is_on)

    def _hub(self, _fault: Fault, is_on: bool) -> None:
        if is_on:
            self.swarm.hub.kill()
        else:
            with contextlib.suppress(RuntimeError):  # its port may be in use for a moment: retried below
                self.swarm.hub.start()
                return
            self.swarm.hub.start()

    def _change_control(self, peer: int, **changes: object) -> None:
        control = replace(self._controls.get(peer, Control()), **changes)
        self._controls[peer] = control
        self.swarm.trainers[peer].control(control)
