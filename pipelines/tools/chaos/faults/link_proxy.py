"""Links between peers that can be slowed, delayed and cut: a TCP proxy before every peer's real address.

A peer listens on one port and announces another one, the proxy's. All connections therefore pass here, and the kernel's
socket tables tell whose they are: the dialling port belongs to a process of the dialling peer.
"""

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from pipelines.tools.process_table import connected_inodes, group_members, socket_inodes

CHUNK_BYTES = 2**16
MAX_BYTES_IN_FLIGHT = 2**22
"""Most data in flight on a delayed link: more than bandwidth times delay of any link shaped here."""

QUEUE_SECONDS = 0.1
"""How long bytes wait for a link of limited bandwidth, as in a router, before their writer blocks."""

SEGMENT_BYTES = 1460
RECEIVE_BUFFER_BYTES = 2**17
"""Segments as on Ethernet, and a small window. With loopback's own the kernel takes megabytes from a writer at once;
anything sent behind them, including flow control of the other direction, would wait for seconds on a slow link."""


@dataclass(frozen=True, kw_only=True)
class LinkLimits:
    """Limits of a peer's link, in each direction."""

    bytes_per_second: float = float("inf")
    delay_seconds: float = 0.0
    """One way; the round trip of two peers, one of them limited, takes twice as long."""

    is_cut: bool = False
    """Nothing passes, but connections stay open."""


FREE = LinkLimits()


@dataclass
class _Direction:
    """One direction of a peer's link: bytes of all its connections queue for the same bandwidth."""

    free_at: float = 0.0

    def time_to_pass(self, num_bytes: int, limits: LinkLimits, now: float) -> float:
        """Reserve the link for some bytes; return when the last of them has left it."""
        if limits.bytes_per_second == float("inf"):
            return now
        self.free_at = max(self.free_at, now) + num_bytes / limits.bytes_per_second
        return self.free_at


@dataclass
class PeerLink:
    """The link of one peer: its real port, its proxy's port, and what passes."""

    name: str
    real_port: int
    proxy_port: int = 0
    limits: LinkLimits = FREE
    bytes_passed: int = 0
    """Bytes sent by this peer."""

    up: _Direction = field(default_factory=_Direction)
    down: _Direction = field(default_factory=_Direction)


class _BytesOnTheWay:
    """A queue of delayed bytes whose length is bounded by their number."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        self._num_bytes, self._has_room = 0, asyncio.Event()

    async def put(self, arrives_at: float, data: bytes) -> None:
        """Add bytes, once there is room."""
        while self._num_bytes > MAX_BYTES_IN_FLIGHT:
            self._has_room.clear()
            await self._has_room.wait()
        self._num_bytes += len(data)
        self._queue.put_nowait((arrives_at, data))

    async def get(self) -> tuple[float, bytes]:
        """Return the next bytes and when they arrive."""
        arrives_at, data = await self._queue.get()
        self._num_bytes -= len(data)
        self._has_room.set()
        return arrives_at, data


class LinkProxy:
    """Runs the proxies of all peers in a thread. Use as a context manager; `limit` may be called from any thread.

    `owner_of` tells the name of the peer to which a local TCP port belongs, or None for anybody else; see
    `PortOwners`.
    """

    def __init__(self, owner_of: Callable[[int], str | None]) -> None:
        self._owner_of = owner_of
        self.links: dict[str, PeerLink] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="link-proxy", daemon=True)
        self._servers: list[asyncio.Server] = []
        self._changed = asyncio.Event()

    def __enter__(self) -> "LinkProxy":
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def add(self, name: str, real_port: int) -> PeerLink:
        """Open a proxy before a peer's real port; the link says on which port."""
        link = PeerLink(name, real_port)
        self.links[name] = link
        asyncio.run_coroutine_threadsafe(self._listen(link), self._loop).result(10)
        return link

    def limit(self, name: str, limits: LinkLimits) -> None:
        """Change a peer's limits, at once and also for open connections."""

        def change() -> None:
            self.links[name].limits = limits
            self._changed.set()
            self._changed = asyncio.Event()

        self._loop.call_soon_threadsafe(change)

    async def _listen(self, link: PeerLink) -> None:
        listener = _small_socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", 0))
        server = await asyncio.start_server(
            lambda reader, writer: self._serve(link, reader, writer), sock=listener, limit=CHUNK_BYTES
        )
        link.proxy_port = server.sockets[0].getsockname()[1]
        self._servers.append(server)

    async def _serve(self, link: PeerLink, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        dialler_port = writer.get_extra_info("peername")[1]
        with contextlib.suppress(OSError, asyncio.CancelledError):
            owner = await asyncio.to_thread(self._owner_of, dialler_port)
            other = self.links.get(owner) if owner is not None else None
            await self._while_cut(link, other)
            real_reader, real_writer = await _open_connection(link.real_port)
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._pass(reader, real_writer, other, link))
                    group.create_task(self._pass(real_reader, writer, link, other))
            except* (OSError, EOFError):
                pass
            finally:
                real_writer.close()
        writer.close()

    async def _pass(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        source: PeerLink | None,
        target: PeerLink | None,
    ) -> None:
        """Forward bytes from one peer to the other; both links limit and delay them."""
        on_the_way = _BytesOnTheWay()
        delivery = asyncio.ensure_future(self._deliver(on_the_way, writer, source, target))
        try:
            while data := await reader.read(CHUNK_BYTES):
                leaves_at, delay = self._passage(len(data), source, target)
                await on_the_way.put(leaves_at + delay, data)
                await asyncio.sleep(leaves_at - QUEUE_SECONDS - time.monotonic())
            await on_the_way.put(0.0, b"")
            await delivery
        finally:
            delivery.cancel()

    @staticmethod
    def _passage(num_bytes: int, source: PeerLink | None, target: PeerLink | None) -> tuple[float, float]:
        """Return when the last of some bytes, sent now, leaves the links, and how late it arrives."""
        now = leaves_at = time.monotonic()
        delay = 0.0
        if source is not None:
            source.bytes_passed += num_bytes
            leaves_at = max(leaves_at, source.up.time_to_pass(num_bytes, source.limits, now))
            delay += source.limits.delay_seconds
        if target is not None:
            leaves_at = max(leaves_at, target.down.time_to_pass(num_bytes, target.limits, now))
            delay += target.limits.delay_seconds
        return leaves_at, delay

    async def _deliver(
        self,
        on_the_way: "_BytesOnTheWay",
        writer: asyncio.StreamWriter,
        source: PeerLink | None,
        target: PeerLink | None,
    ) -> None:
        while True:
            arrives_at, data = await on_the_way.get()
            if (seconds := arrives_at - time.monotonic()) > 0:
                await asyncio.sleep(seconds)
            await self._while_cut(source, target)
            if not data:
                raise EOFError
            writer.write(data)
            await writer.drain()

    async def _while_cut(self, *links: PeerLink | None) -> None:
        while any(link is not None and link.limits.is_cut for link in links):
            await self._changed.wait()

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        own = asyncio.current_task()
        tasks = [task for task in asyncio.all_tasks() if task is not own]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _small_socket() -> socket.socket:
    small = socket.socket()
    small.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, SEGMENT_BYTES)
    small.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
    return small


async def _open_connection(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    small = _small_socket()
    small.setblocking(False)
    try:
        await asyncio.get_running_loop().sock_connect(small, ("127.0.0.1", port))
    except BaseException:
        small.close()
        raise
    return await asyncio.open_connection(sock=small, limit=CHUNK_BYTES)


class PortOwners:
    """Tells which peer a local TCP port belongs to, by its process group, from /proc."""

    def __init__(self) -> None:
        self._groups: dict[int, str] = {}

    def register(self, group: int, name: str) -> None:
        """Register a process group as a peer's; a restarted peer registers again."""
        self._groups[group] = name

    def __call__(self, port: int) -> str | None:
        """Return the peer whose process has a socket on this port, or None."""
        inodes = connected_inodes(port)
        for group, name in tuple(self._groups.items()):
            if any(inodes & socket_inodes(pid) for pid in group_members(group)):
                return name
        return None
