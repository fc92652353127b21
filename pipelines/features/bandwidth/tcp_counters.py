"""The kernel's counters of a process's TCP connections: what has really arrived at the other end, and from there.

A program that writes to the libp2p daemon only learns what the daemon has taken, which may lie in queues for seconds.
"""

import contextlib
import socket
import struct
from dataclasses import dataclass
from pathlib import Path

DAEMON = "p2pd"
SOCK_DIAG, BY_FAMILY, DUMP = 4, 20, 0x301
"""`NETLINK_SOCK_DIAG`, `SOCK_DIAG_BY_FAMILY`, `NLM_F_REQUEST | NLM_F_DUMP`; see sock_diag(7)."""

MESSAGE_ERROR, MESSAGE_DONE = 2, 3
INFO = 2
"""`INET_DIAG_INFO`: asks for, and marks, a `struct tcp_info`."""

ESTABLISHED = 1 << 1
HEADER, REQUEST = struct.Struct("=IHHII"), struct.Struct("=BBBBI48x")
ANSWER = struct.Struct("=68xI")
"""`struct inet_diag_msg`, of which we read `idiag_inode`."""

TCP_INFO = struct.Struct("=120xQQ8xI")
"""`struct tcp_info`, of which we read `tcpi_bytes_acked`, `tcpi_bytes_received` and `tcpi_notsent_bytes`."""

SECONDS_TO_ANSWER = 1.0


@dataclass(frozen=True)
class Traffic:
    """Bytes of one connection."""

    sent: int
    """Since it was opened, as far as the other end has confirmed them."""

    received: int
    """Since it was opened."""

    waiting: int
    """Now in the queue, because the link or the other end takes no more."""


def daemon_of(process: int) -> int | None:
    """Return the libp2p daemon that a process has started; None if there is none to be seen."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError):
            before, _, after = path.read_text(encoding="utf-8", errors="replace").rpartition(") ")
            if before.endswith(f"({DAEMON}") and int(after.split()[1]) == process:
                return int(path.parent.name)
    return None


def traffic_of(*processes: int) -> dict[int, Traffic]:
    """Return the traffic of the processes' open TCP connections, by inode.

    Raises:
        OSError: this kernel does not tell, or a process has ended.
    """
    own = set[int]().union(*map(_socket_inodes, processes))
    return {inode: traffic for inode, traffic in _all_traffic().items() if inode in own}


def _socket_inodes(process: int) -> set[int]:
    inodes = set()
    for descriptor in Path(f"/proc/{process}/fd").iterdir():
        with contextlib.suppress(OSError):
            target = str(descriptor.readlink())
            if target.startswith("socket:["):
                inodes.add(int(target[8:-1]))
    return inodes


def _all_traffic() -> dict[int, Traffic]:
    found: dict[int, Traffic] = {}
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, SOCK_DIAG) as asked:
        asked.settimeout(SECONDS_TO_ANSWER)
        for family in (socket.AF_INET, socket.AF_INET6):
            request = REQUEST.pack(family, socket.IPPROTO_TCP, 1 << (INFO - 1), 0, ESTABLISHED)
            asked.send(HEADER.pack(HEADER.size + len(request), BY_FAMILY, DUMP, 0, 0) + request)
            while _read_messages(asked.recv(2**18), found):
                pass
    return found


def _read_messages(data: bytes, found: dict[int, Traffic]) -> bool:
    """Add what some messages of the kernel say; return whether more will come."""
    while data:
        length, kind, *_ = HEADER.unpack_from(data)
        if kind == MESSAGE_DONE:
            return False
        if kind == MESSAGE_ERROR:
            raise OSError("The kernel does not say what TCP connections have carried.")
        body, data = data[HEADER.size : length], data[(length + 3) & ~3 :]
        info = _attribute(body[ANSWER.size :])
        if len(info) >= TCP_INFO.size:
            found[ANSWER.unpack_from(body)[0]] = Traffic(*TCP_INFO.unpack_from(info))
    return True


def _attribute(data: bytes) -> bytes:
    """Return the `struct tcp_info` among a message's attributes; empty if it is not there."""
    while len(data) >= 4:
        length, kind = struct.unpack_from("=HH", data)
        if kind == INFO:
            return data[4:length]
        data = data[(max(length, 4) + 3) & ~3 :]
    return b""
