"""Serving a web application from this process until it is told to stop, with a clear error when the port is taken."""

import contextlib
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn
from starlette.types import ASGIApp

GRACEFUL_SHUTDOWN_SECONDS = 1
LOOPBACK_HOSTS = frozenset({"127.0.0.1", "localhost", "::1"})


def serve_application(
    application: ASGIApp,
    host: str,
    port: int,
    on_ready: Callable[[str], None],
    *,
    command: str,
    on_server: Callable[[uvicorn.Server], None] = lambda server: None,
    trusted_proxies: str | None = None,
    dates_answers: bool = True,
) -> None:
    """Serve until SIGINT or SIGTERM; calls `on_ready(address)` once connections are accepted.

    `command` is what to type with another `--port`; `on_server` is given the server before it runs;
    `trusted_proxies` are trusted for the client's address (`*`: all of them); without `dates_answers` the application
    gives its answers the header Date. Raises ValueError when the port is in use.
    """
    with contextlib.closing(_listen(host, port, command)) as listener:
        server = _quiet_server(application, forwarded_allow_ips=trusted_proxies, date_header=dates_answers)
        on_server(server)
        # Before the address is announced: from here on a signal must already shut it down cleanly.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, server.handle_exit)
        on_ready(_address(host, listener.getsockname()[1]))
        server.run(sockets=[listener])


@contextlib.contextmanager
def application_in_background(application: ASGIApp, host: str, port: int, *, command: str) -> Iterator[str]:
    """Serve from a thread for the length of the block; yield the address.

    `command` is what to type with another `--http`. Raises ValueError when the port is in use.
    """
    with contextlib.closing(_listen(host, port, command, "--http")) as listener:
        server = _quiet_server(application)
        thread = threading.Thread(target=server.run, kwargs=dict(sockets=[listener]), name="http", daemon=True)
        thread.start()
        try:
            yield _address(host, listener.getsockname()[1])
        finally:
            server.should_exit = True
            thread.join()


class _QuietServer(uvicorn.Server):
    """Leaves signals alone: uvicorn's own handling would raise them again after a clean shutdown."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _quiet_server(application: ASGIApp, **options: Any) -> _QuietServer:
    config = uvicorn.Config(
        application,
        access_log=False,
        log_level="warning",
        lifespan="off",
        timeout_graceful_shutdown=GRACEFUL_SHUTDOWN_SECONDS,
        **options,
    )
    return _QuietServer(config)


def _listen(host: str, port: int, command: str, option: str = "--port") -> socket.socket:
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
            f"Stop what uses it, or choose another port: {command} {option} {port + 1}"
        ) from error
    return listener


def _address(host: str, port: int) -> str:
    shown = {"0.0.0.0": socket.gethostname(), "::": socket.gethostname()}.get(host, host)
    return f"http://[{shown}]:{port}" if ":" in shown else f"http://{shown}:{port}"
