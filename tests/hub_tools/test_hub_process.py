"""The embedded Hub as a process: how it starts, how it ends, and what it says when it cannot start."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time

import httpx
import psutil
import pytest

from hub_tools.local_hub import LocalHub


def serve(root, *arguments):
    """Start `hub-tools serve` and return the process and its first line."""
    process = subprocess.Popen(
        [sys.executable, "-m", "hub_tools.command_line", "serve", "--root", str(root), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    return process, process.stdout.readline()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_serve_prints_how_to_use_it_and_ends_well_on_signals(tmp_path, number):
    process, first_line = serve(tmp_path / "hub", "--port", "0")
    with process:
        endpoint = first_line.split()[3].rstrip(",")
        exports = [process.stdout.readline() for _ in range(7)]
        assert f"export HF_ENDPOINT={endpoint}\n" in exports
        assert "export HF_HUB_DISABLE_XET=1\n" in exports
        assert httpx.get(f"{endpoint}/api/models").json() == []
        # An open connection must not hold the server back.
        with httpx.Client() as waiting:
            waiting.get(endpoint)
            begin = time.monotonic()
            process.send_signal(number)
            assert process.wait(10) == 0
            assert time.monotonic() - begin < 2
        assert process.stderr.read() == ""


def test_a_port_in_use_gives_one_line_with_the_cure(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        process, _ = serve(tmp_path / "hub", "--port", str(port))
        with process:
            assert process.wait(30) == 1
            (line,) = process.stderr.read().strip().splitlines()
    assert f"Cannot listen on 127.0.0.1:{port}" in line
    assert f"--port {port + 1}" in line


def test_a_root_has_one_server_at_a_time(tmp_path):
    with LocalHub(tmp_path / "hub") as hub:
        with pytest.raises(RuntimeError, match="Another Hub already serves"), LocalHub(hub.root):
            pass
        assert httpx.get(hub.endpoint).status_code == 200
    with LocalHub(hub.root) as again:
        assert httpx.get(again.endpoint).status_code == 200


def test_other_addresses_than_loopback_are_warned_about(tmp_path):
    process, _ = serve(tmp_path / "hub", "--port", "0", "--host", "0.0.0.0")
    with process:
        process.terminate()
        assert process.wait(10) == 0
        assert "TRUSTED NETWORKS ONLY" in process.stderr.read()


def test_the_default_address_is_loopback_alone(hub):
    (listening,) = [
        it for it in psutil.Process(hub.process.pid).net_connections(kind="tcp") if it.status == psutil.CONN_LISTEN
    ]
    assert listening.laddr.ip == "127.0.0.1"


def test_the_server_ends_with_the_process_that_started_it(tmp_path):
    code = (
        "import os, sys\n"
        "from hub_tools.local_hub import LocalHub\n"
        "hub = LocalHub(sys.argv[1])\n"
        "hub.start()\n"
        "print(hub.process.pid, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=60)
    assert done.returncode == -signal.SIGKILL
    server = int(done.stdout)
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(server).wait(timeout=10)
    assert not psutil.pid_exists(server)


def test_leaving_the_block_leaves_no_process(tmp_path):
    with LocalHub(tmp_path) as hub:
        pid = hub.process.pid
        assert os.getpgid(pid) == pid != os.getpgid(0)
    assert not psutil.pid_exists(pid)


def test_a_restart_keeps_port_and_contents(tmp_path):
    with LocalHub(tmp_path) as hub:
        hub.create_user("alice")
        endpoint = hub.endpoint
        hub.kill()
        with pytest.raises(httpx.ConnectError):
            httpx.get(endpoint)
        hub.start()
        assert hub.endpoint == endpoint
        assert httpx.get(f"{endpoint}/api/users/alice/overview").status_code == 200


def test_the_environment_leads_clients_here_with_a_cache_of_their_own(hub):
    environment = hub.environment("hf_token")
    assert environment["HF_ENDPOINT"] == hub.endpoint
    assert environment["HF_TOKEN"] == "hf_token"
    assert environment["HF_HUB_DISABLE_XET"] == "1"
    assert all(environment[name].startswith(str(hub.root)) for name in ("HF_HOME", "XDG_CONFIG_HOME"))


def test_a_root_of_a_newer_format_is_refused(tmp_path):
    import sqlite3

    with contextlib.closing(sqlite3.connect(tmp_path / "hub.sqlite3")) as connection:
        connection.execute("PRAGMA user_version=99")
    with pytest.raises(ValueError, match="has format 99, this Hub knows 1"):
        LocalHub(tmp_path).create_user("alice")
