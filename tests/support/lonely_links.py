"""Network namespaces from which only one port of this machine can be reached: no peer reaches another."""

import contextlib
import select
import socket
import subprocess
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def lonely_links(name: str, number: int, port: int) -> Iterator[list[tuple[tuple[str, ...], str]]]:
    """Yield, for each namespace, what precedes a command in it, and the address at which it finds the port.

    Needs the rights to make namespaces. `port` is one of this machine's loopback.
    """
    namespaces = [f"{name}-{place}" for place in range(number)]
    ended, links = threading.Event(), []
    try:
        for place, namespace in enumerate(namespaces):
            here, there = f"10.78.{place}.1", f"10.78.{place}.2"
            _ip("netns", "add", namespace)
            _ip("link", "add", f"{name}{place}", "type", "veth", "peer", "link0", "netns", namespace)
            _ip("addr", "add", f"{here}/30", "dev", f"{name}{place}")
            _ip("link", "set", f"{name}{place}", "up")
            _ip("-n", namespace, "addr", "add", f"{there}/30", "dev", "link0")
            for device in ("lo", "link0"):
                _ip("-n", namespace, "link", "set", device, "up")
            listener = socket.create_server((here, 0))
            threading.Thread(target=_forward, args=(listener, port, ended), daemon=True).start()
            links.append((("ip", "netns", "exec", namespace), f"http://{here}:{listener.getsockname()[1]}"))
        yield links
    finally:
        ended.set()
        for namespace in namespaces:
            subprocess.run(["ip", "netns", "del", namespace], check=False, capture_output=True)


def _forward(listener: socket.socket, port: int, ended: threading.Event) -> None:
    listener.settimeout(0.5)
    while not ended.is_set():
        with contextlib.suppress(TimeoutError):
            near, _ = listener.accept()
            far = socket.create_connection(("127.0.0.1", port))
            threading.Thread(target=_pass_on, args=(near, far, ended), daemon=True).start()
    listener.close()


def _pass_on(near: socket.socket, far: socket.socket, ended: threading.Event) -> None:
    with near, far, contextlib.suppress(OSError):
        while not ended.is_set():
            for ready in select.select([near, far], [], [], 0.5)[0]:
                content = ready.recv(65536)
                if not content:
                    return
                (far if ready is near else near).sendall(content)


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"ip {' '.join(arguments)} failed: {done.stderr.strip()}")
