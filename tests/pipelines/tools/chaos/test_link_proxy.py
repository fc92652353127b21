"""A peer's link through the proxy: what passes, how fast, and what a cut holds back."""

import os
import socket
import subprocess
import sys
import threading
import time

import pytest

from pipelines.tools.chaos.faults.link_proxy import FREE, LinkLimits, LinkProxy, PortOwners


@pytest.fixture
def peers():
    """Yield a proxy with the links of two peers of this process, `a` and `b`; `a` dials from ports that it names."""
    ports_of_a = set()
    with LinkProxy(lambda port: "a" if port in ports_of_a else None) as proxy, Echo() as echo:
        proxy.add("a", 1)
        proxy.add("b", echo.port)
        yield proxy, ports_of_a


class Echo:
    """A server that sends everything back."""

    def __enter__(self):
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *exception):
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self):
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection):
        with connection:
            while data := connection.recv(2**16):
                connection.sendall(data)


def dial(proxy, ports_of_a=None):
    """Connect to `b` through its proxy, as `a` if its ports are given."""
    connection = socket.socket()
    connection.settimeout(30)
    connection.bind(("127.0.0.1", 0))
    if ports_of_a is not None:
        ports_of_a.add(connection.getsockname()[1])
    connection.connect(("127.0.0.1", proxy.links["b"].proxy_port))
    return connection


def echoed(connection, data):
    """Send bytes and return the seconds until all of them are back."""
    started = time.monotonic()
    threading.Thread(target=connection.sendall, args=(data,), daemon=True).start()
    received = b""
    while len(received) < len(data):
        part = connection.recv(2**16)
        assert part, "the connection ended"
        received += part
    assert received == data
    return time.monotonic() - started


def test_a_free_link_passes_everything_and_counts_what_left_the_peer(peers):
    proxy, _ = peers
    data = os.urandom(3_000_000)
    with dial(proxy) as connection:
        echoed(connection, data)
    assert proxy.links["b"].bytes_passed == len(data)


def test_bandwidth_and_delay_of_a_link_are_kept_in_both_directions(peers):
    proxy, _ = peers
    proxy.limit("b", LinkLimits(bytes_per_second=1_000_000, delay_seconds=0.1))
    with dial(proxy) as connection:
        assert echoed(connection, b"x") >= 0.2
        # Both directions pass a megabyte a second at the same time: a second for the bytes, two delays.
        assert 1.2 <= echoed(connection, bytes(1_000_000)) < 5


def test_all_connections_of_a_peer_share_its_bandwidth(peers):
    proxy, ports_of_a = peers
    proxy.limit("a", LinkLimits(bytes_per_second=1_000_000))
    seconds = []
    with dial(proxy, ports_of_a) as first, dial(proxy, ports_of_a) as second, dial(proxy) as of_nobody:
        threads = [
            threading.Thread(target=lambda c=connection: seconds.append(echoed(c, bytes(500_000))))
            for connection in (first, second)
        ]
        for thread in threads:
            thread.start()
        echoed(of_nobody, bytes(500_000))
        assert len(seconds) < 2, "another peer's connection does not wait for it"
        for thread in threads:
            thread.join()
    assert max(seconds) >= 0.95


@pytest.mark.parametrize("cut", ["a", "b"])
def test_a_cut_holds_bytes_and_new_connections_back_until_it_is_mended(peers, cut):
    proxy, ports_of_a = peers
    with dial(proxy, ports_of_a) as connection:
        echoed(connection, b"before")
        proxy.limit(cut, LinkLimits(is_cut=True))
        connection.sendall(b"during")
        connection.settimeout(0.4)
        with pytest.raises(TimeoutError):
            connection.recv(10)
        connection.settimeout(30)
        with dial(proxy, ports_of_a) as newcomer:
            newcomer.sendall(b"hello")
            proxy.limit(cut, FREE)
            assert connection.recv(10) == b"during"
            assert newcomer.recv(10) == b"hello"


def test_a_cut_of_one_peer_is_none_of_the_others(peers):
    proxy, _ = peers
    proxy.limit("a", LinkLimits(is_cut=True))
    with dial(proxy) as connection:
        echoed(connection, b"from somebody else")


def test_a_connection_ends_on_both_sides(peers):
    proxy, _ = peers
    with dial(proxy) as connection:
        echoed(connection, b"x")
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(1) == b""


DIALLER = """
import socket, sys
connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
print(connection.getsockname()[1], flush=True)
connection.recv(1)
"""


def test_the_owner_of_a_port_is_found_by_its_process_group():
    owners = PortOwners()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        command = [sys.executable, "-c", DIALLER, str(listener.getsockname()[1])]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as dialler:
            connection, _ = listener.accept()
            with connection:
                port = int(dialler.stdout.readline())
                assert owners(port) is None
                owners.register(dialler.pid, "dialler")
                assert owners(port) == "dialler"
        assert owners(port) is None
