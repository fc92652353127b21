"""What a peer has moved over its links, and how long the run will still take."""

import os
import socket

import pytest

from pipelines.features.bandwidth.session_totals import SessionTraffic, processes_of, seconds_left
from pipelines.features.bandwidth.tcp_counters import Traffic


def test_the_bytes_of_all_connections_add_up_also_of_those_that_have_ended_or_have_their_number():
    traffic = SessionTraffic()
    traffic.note({1: Traffic(100, 10, 0)})
    traffic.note({1: Traffic(150, 10, 7), 2: Traffic(5, 5, 0)})
    traffic.note({2: Traffic(6, 9, 0)})
    traffic.note({2: Traffic(4, 1, 0), 1: Traffic(1, 0, 0)})
    assert (traffic.sent, traffic.received) == (150 + 6 + 4 + 1, 10 + 9 + 1 + 0)


def test_the_kernel_says_what_the_processes_of_a_group_have_moved():
    assert os.getpid() in processes_of(os.getpgrp())
    traffic, number = SessionTraffic(), 100_000
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as one:
        other, _ = server.accept()
        with other:
            one.sendall(b"x" * number)
            read = 0
            while read < number:
                read += len(other.recv(2**16))
            traffic.look(os.getpgrp())
    assert traffic.sent >= number and traffic.received >= number


@pytest.mark.parametrize(
    ("epoch", "pace", "expected"),
    [
        (10, 8.0, 90 * 32 / 8.0),  # from the pace, for no epoch has ended here yet
        (10, 0.0, None),
        (15, 8.0, 85 * 50.0 / 5),
        (100, 8.0, 0.0),
    ],
)
def test_the_rest_of_a_run_takes_as_long_as_its_last_epochs_did(epoch, pace, expected):
    left = seconds_left(10, epoch, 100, seconds=50.0, batch_size=32, samples_per_second=pace)
    assert left == (None if expected is None else pytest.approx(expected))
