"""Links of given rates between processes of this machine: a network namespace for each, the kernel shapes both ways.

It needs the rights to make namespaces (root in most containers) and the kernel's token bucket filter.
"""

import subprocess
from collections.abc import Sequence
from contextlib import suppress

QUEUE = ("burst", "32kb", "latency", "100ms")
"""A router's queue: what comes faster than the link waits for up to 100 ms, then it is dropped."""


class ShapedLinks:
    """A namespace for each link, all connected by a switch. Use as a context manager."""

    def __init__(self, name: str, megabits: Sequence[float]) -> None:
        """`name` begins the names of the namespaces; `megabits`: each link's rate, per second and direction."""
        self._switch, self._megabits = f"{name}-switch", megabits
        self.namespaces = tuple(f"{name}-{number}" for number in range(len(megabits)))
        self.addresses = tuple(f"10.77.0.{number + 1}" for number in range(len(megabits)))

    def __enter__(self) -> "ShapedLinks":
        try:
            _ip("netns", "add", self._switch)
            _ip("-n", self._switch, "link", "add", "switch", "type", "bridge")
            _ip("-n", self._switch, "link", "set", "switch", "up")
            for number, (namespace, rate) in enumerate(zip(self.namespaces, self._megabits, strict=True)):
                port = f"port{number}"
                _ip("netns", "add", namespace)
                _ip("link", "add", "link0", "netns", namespace, "type", "veth", "peer", port, "netns", self._switch)
                _ip("-n", self._switch, "link", "set", port, "master", "switch", "up")
                _ip("-n", namespace, "addr", "add", f"{self.addresses[number]}/24", "dev", "link0")
                for device in ("lo", "link0"):
                    _ip("-n", namespace, "link", "set", device, "up")
                for owner, device in ((namespace, "link0"), (self._switch, port)):
                    shape = ("qdisc", "add", "dev", device, "root", "tbf", "rate", f"{rate}mbit", *QUEUE)
                    _run("tc", "-n", owner, *shape)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        for namespace in (*self.namespaces, self._switch):
            with suppress(RuntimeError):
                _ip("netns", "del", namespace)

    def command(self, number: int) -> tuple[str, ...]:
        """Return what precedes a command so that it runs behind one of the links."""
        return ("ip", "netns", "exec", self.namespaces[number])


def _ip(*arguments: str) -> None:
    _run("ip", *arguments)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed: {done.stderr.strip()}")
