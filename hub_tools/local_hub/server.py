"""Running the embedded Hub as this process, until it is told to stop."""

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import uvicorn

from .application import build_application
from .request_parts import HubSettings
from .storage import HubStorage

PARENT_CHECK_SECONDS = 0.5
GRACEFUL_SHUTDOWN_SECONDS = 1
LOOPBACK_HOSTS = frozenset({"127.0.0.1", "localhost", "::1"})


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """How to serve a Hub."""

    root: Path
    """Folder that holds everything the Hub keeps; made if missing."""

    host: str = "127.0.0.1"
    """Address to listen on. Other machines reach the Hub only if this is not a loopback address."""

    port: int = 8300
    """TCP port; 0 takes a free one."""

    part_mebibytes: int = 256
    """Larger contents are uploaded in parts of this size. Decrease if uploads over a bad link keep starting again."""

    exit_with_parent: bool = False
    """End when the process that started this one has ended."""

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ValueError(f"The port is {self.port}, expected 0 to 65535 (0 takes a free one): --port 8300")
        if self.part_mebibytes < 1:
            raise ValueError(f"The part size is {self.part_mebibytes} MiB, expected at least 1: --part-mebibytes 256")


def serve(options: ServerOptions, on_ready: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM; calls `on_ready(endpoint)` once connections are accepted.

    Raises ValueError when the port or the root is in use.
    """
    storage = HubStorage(options.root.resolve()).prepare()
    with storage.sole_server(), contextlib.closing(_listen(options.host, options.port)) as listener:
        settings = HubSettings(signing_key=storage.signing_key(), part_bytes=options.part_mebibytes << 20)
        config = uvicorn.Config(
            build_application(storage, settings),
            access_log=False,
            log_level="warning",
            lifespan="off",
            timeout_graceful_shutdown=GRACEFUL_SHUTDOWN_SECONDS,
        )
        server = _QuietServer(config)
        if options.exit_with_parent:
            threading.Thread(target=_stop_with_parent, args=(server, os.getppid()), daemon=True).start()
        # Before anybody knows the address: a signal that comes now must already end it well.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, server.handle_exit)
        on_ready(_endpoint(options.host, listener.getsockname()[1]))
        server.run(sockets=[listener])


class _QuietServer(uvicorn.Server):
    """Leaves signals alone: uvicorn's own handling would raise them again after a clean end."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(512)
    except OSError as error:
        listener.close()
        raise ValueError(
            f"Cannot listen on {host}:{port}: {error.strerror or error}. "
            f"Stop what uses it, or choose another port: hub-tools serve --root FOLDER --port {port + 1}"
        ) from error
    return listener


def _endpoint(host: str, port: int) -> str:
    shown = {"0.0.0.0": socket.gethostname(), "::": socket.gethostname()}.get(host, host)
    return f"http://[{shown}]:{port}" if ":" in shown else f"http://{shown}:{port}"


def _stop_with_parent(server: uvicorn.Server, parent: int) -> None:
    waiting = threading.Event()
    while os.getppid() == parent:
        waiting.wait(PARENT_CHECK_SECONDS)
    server.should_exit = True
