"""Running the embedded Hub as this process, until it is told to stop."""

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import uvicorn

from ..http_serving import serve_application
from .application import build_application
from .controls.hub_controls import RateLimits
from .routes.request_parts import HubSettings
from .store.storage import HubStorage

PARENT_CHECK_SECONDS = 0.5


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """How to serve a Hub."""

    root: Path
    """Folder in which the Hub stores everything; created if missing."""

    host: str = "127.0.0.1"
    """Address to listen on. Other machines reach the Hub only if this is not a loopback address."""

    port: int = 8300
    """TCP port; 0 takes a free one."""

    part_mebibytes: int = 256
    """Larger contents are uploaded in parts of this size. Decrease if uploads over a bad link keep restarting."""

    exit_with_parent: bool = False
    """Exit when the parent process has exited."""

    rate_limits: RateLimits | None = None
    """How often one may ask; None for as often as one likes."""

    control_token: str = field(default="", repr=False)
    """Who has it may have this Hub fail, for tests; nobody may without one."""

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
    with storage.sole_server():
        settings = HubSettings(signing_key=storage.signing_key(), part_bytes=options.part_mebibytes << 20)
        token, limits = options.control_token, options.rate_limits
        serve_application(
            build_application(storage, settings, control_token=token, rate_limits=limits),
            options.host,
            options.port,
            on_ready,
            command="hub-tools serve --root FOLDER",
            dates_answers=not (token or limits),
            on_server=_watch_parent if options.exit_with_parent else lambda server: None,
        )


def _watch_parent(server: uvicorn.Server) -> None:
    threading.Thread(target=_stop_with_parent, args=(server, os.getppid()), daemon=True).start()


def _stop_with_parent(server: uvicorn.Server, parent: int) -> None:
    waiting = threading.Event()
    while os.getppid() == parent:
        waiting.wait(PARENT_CHECK_SECONDS)
    server.should_exit = True
