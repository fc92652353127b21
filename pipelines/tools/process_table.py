"""What /proc says about this machine's processes and CPUs."""

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path


def process_ids() -> Iterator[int]:
    """Yield the ids of all processes except this one."""
    for path in Path("/proc").iterdir():
        if path.name.isdigit() and int(path.name) != os.getpid():
            yield int(path.name)


def group_members(group: int) -> list[int]:
    """Return the processes of a process group, without zombies."""
    members = []
    for pid in process_ids():
        with contextlib.suppress(OSError):
            if os.getpgid(pid) == group and is_running(pid):
                members.append(pid)
    return members


def signal_processes(pids: Iterable[int], number: int) -> None:
    """Send a signal to processes, skipping those that have exited."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def is_running(pid: int) -> bool:
    """Tell whether such a process is running, zombies excluded."""
    return _state(pid) not in ("", "Z")


def is_frozen(pid: int) -> bool:
    """Tell whether a process was stopped by a signal, and would go on with SIGCONT."""
    return _state(pid) in ("T", "t")


def _state(pid: int) -> str:
    with contextlib.suppress(OSError):
        # The state is the first field after the name, which is in parentheses and may contain anything.
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        return status.rpartition(") ")[2][0]
    return ""


def name_of(pid: int) -> str:
    """Return the first 15 characters of a process's name; nothing if it has ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip()
    return ""


def processes_with_variable(name: str, value: str, *, or_longer: bool = False) -> list[int]:
    """Return the processes that were started with a variable of this value in their environment.

    With `or_longer` the value may go on. Zombies have no environment and are not among them.
    """
    wanted = f"{name}={value}".encode() + (b"" if or_longer else b"\0")
    return [pid for pid in process_ids() if _has_variable(pid, wanted)]


def _has_variable(pid: int, beginning: bytes) -> bool:
    with contextlib.suppress(OSError):  # it ended meanwhile, or is another user's
        return b"\0" + beginning in b"\0" + Path(f"/proc/{pid}/environ").read_bytes() + b"\0"
    return False


def memory_of(pid: int) -> int:
    """Return the bytes of a process's resident memory, also shared ones; 0 if it has ended.

    A garbage collection in a fork copies what it shared with its parent: then its own part grows, and this does not.
    """
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines():
            if line.startswith("Rss:"):
                return 1024 * int(line.split()[1])
    return 0


def processor_ticks() -> tuple[int, int]:
    """Return the busy time and the total time of all CPUs since the machine's start.

    In kernel ticks. Time that the host gave to other machines counts as busy: it was not available.
    """
    user, nice, system, idle, waiting, *rest = map(int, Path("/proc/stat").read_text(encoding="ascii").split()[1:9])
    busy = user + nice + system + sum(rest)
    return busy, busy + idle + waiting


def connected_inodes(port: int) -> set[str]:
    """Return the inodes of sockets that use this local TCP port and do not listen on it."""
    listening, inodes = "0A", set()
    for line in Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]:
        fields = line.split()
        if int(fields[1].rsplit(":", 1)[1], 16) == port and fields[3] != listening:
            inodes.add(fields[9])
    return inodes


def socket_inodes(pid: int) -> set[str]:
    """Return the inodes of a process's sockets."""
    found = set()
    with contextlib.suppress(OSError):
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                target = str(descriptor.readlink())
                if target.startswith("socket:["):
                    found.add(target[8:-1])
    return found
