"""What a link carries, by what passed in a round, and the kernel's counters that say what passed."""

import asyncio
import os
import socket
import threading
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from hivemind.averaging.allreduce import AveragingMode
from hivemind.utils import MSGPackSerializer

from pipelines.core.averaging.division import Link
from pipelines.core.run.training_run import TrainingRun
from pipelines.features.bandwidth.claims import read_statement
from pipelines.features.bandwidth.estimate import round_line, sparse_bytes
from pipelines.features.bandwidth.link_meter import HEADROOM, PACE, PROBE, LinkMeter, Look, measured
from pipelines.features.bandwidth.measured_division import MeasuredDivision, gain_of_help
from pipelines.features.bandwidth.shares import Member
from pipelines.features.bandwidth.tcp_counters import Traffic, daemon_of, traffic_of
from pipelines.features.sparse.codec import SparseCodec
from pipelines.tools.doctor.link_checks import check_round, remember_link, remembered_link

MEGABIT = 125_000


def looks_at(rates: list[tuple[float, float]], *, waiting: Collection[int] = ()) -> list[Look]:
    """Looks every tenth of a second at a link that runs at these rates up and down in Mbit/s, one for each second."""
    looks, sent, received = [Look(0.0, 0, 0, waiting)], 0.0, 0.0
    for up, down in rates:
        for _ in range(10):
            sent, received = sent + up * MEGABIT / 10, received + down * MEGABIT / 10
            looks.append(Look(len(looks) / 10, int(sent), int(received), waiting))
    return looks


CONNECTIONS = {1: 10**6, 2: 10**6, 3: 10**6, 4: 10**6}


def test_a_link_for_which_all_connections_wait_carries_what_it_does():
    up, down = measured(looks_at([(10, 9)] * 5, waiting=CONNECTIONS), CONNECTIONS)
    assert up == pytest.approx(10, rel=0.01)
    assert down == pytest.approx(9, rel=0.01)


def test_waiting_for_others_does_not_count():
    looks = looks_at([(10, 8)] * 3 + [(0, 0)] * 2, waiting=CONNECTIONS)
    up, down = measured(looks, CONNECTIONS)
    assert up == pytest.approx(10, rel=0.01)
    assert down == pytest.approx(8, rel=0.01)


@pytest.mark.parametrize("waiting", [(), (3,), (1, 2)], ids=["none", "one slow peer", "two slow peers"])
def test_a_link_that_was_never_full_is_taken_for_more_than_its_fastest_stretch(waiting):
    up, down = measured(looks_at([(60, 50), (6, 5), (6, 5), (6, 5)], waiting=waiting), CONNECTIONS)
    assert up == pytest.approx(60 * HEADROOM, rel=0.01)
    assert down == pytest.approx(50 * HEADROOM, rel=0.01)


def test_a_full_link_is_paced_and_one_full_by_its_pace_alone_tries_a_little_more():
    meter = LinkMeter(count=dict)
    assert meter.pacer.book(10**9, now=0.0) == meter.pacer.book(1, now=0.0) == 0
    meter.note_round(looks_at([(10, 10)] * 4, waiting=CONNECTIONS), CONNECTIONS)
    meter.pacer.book(10 * MEGABIT, now=100.0)
    assert meter.pacer.book(1, now=100.0) == pytest.approx(1 / PACE, rel=0.01)
    paced = [replace(look, is_paced=True) for look in looks_at([(10, 10)] * 4)]
    assert measured(paced, CONNECTIONS)[0] == pytest.approx(10 * PROBE, rel=0.01)
    meter.note_round(looks_at([(10, 10)] * 4), CONNECTIONS)
    meter.pacer.book(10**9, now=1000.0)
    assert meter.pacer.book(1, now=1000.0) == 0


def test_hardly_any_bytes_or_no_time_say_nothing():
    assert measured(looks_at([(0.5, 30)] * 4), CONNECTIONS)[0] is None
    assert measured([], {}) == (None, None)
    assert measured(looks_at([(100, 100)])[:3], CONNECTIONS) == (None, None)


def test_the_median_of_the_last_rounds_counts_and_an_unused_direction_counts_like_the_other():
    meter = LinkMeter(count=dict)
    assert meter.link is None
    for rate in (10, 50, 20, 30):
        meter.note_round(looks_at([(rate, 0.1)] * 4, waiting=CONNECTIONS), CONNECTIONS)
    assert meter.link == Link(up=pytest.approx(30, rel=0.01), down=pytest.approx(30, rel=0.01))


def test_a_connection_that_carries_next_to_nothing_is_not_asked_whether_it_waits():
    meter = LinkMeter(count=dict)
    meter.note_round(looks_at([(10, 10)] * 4, waiting=CONNECTIONS), CONNECTIONS | dict.fromkeys(range(5, 8), 20_000))
    assert meter.link == Link(up=pytest.approx(10, rel=0.01), down=pytest.approx(10, rel=0.01))


def test_a_meter_that_watches_counts_connections_that_open_and_close():
    counts = [
        {1: Traffic(5_000_000, 0, 0)},  # before the round
        {1: Traffic(5_000_000, 0, 99_999), 2: Traffic(400_000, 0, 0)},
        {2: Traffic(2_400_000, 0, 99_999)},
    ]
    seen, enough = 0, asyncio.Event()

    def count() -> dict[int, Traffic]:
        nonlocal seen
        seen += 1
        if seen == 14:
            enough.set()
        return counts[min(seen, len(counts)) - 1]

    meter = LinkMeter(count=count)

    async def watch() -> None:
        watching = asyncio.create_task(meter.watch())
        await enough.wait()
        watching.cancel()
        await asyncio.wait([watching])

    asyncio.run(watch())
    assert meter.link is not None
    assert 0 < meter.link.up <= HEADROOM * 2.4 * 8  # Mbit in a second: those of the round, not those before it


def test_where_the_kernel_does_not_tell_nothing_is_measured():
    def count() -> dict[int, Traffic]:
        raise PermissionError("no")

    meter = LinkMeter(count=count)
    asyncio.run(meter.watch())
    assert meter.link is None


def test_the_kernel_tells_what_a_connection_has_carried_and_what_waits():
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as sender:
        receiver, _ = server.accept()
        with receiver:
            thread = threading.Thread(target=sender.sendall, args=(b"x" * 2_000_000,))
            thread.start()
            number = 0
            while number < 2_000_000:
                number += len(receiver.recv(2**16))
            thread.join()
            receiver.sendall(b"y" * 1000)
            assert sender.recv(1000)
            traffic = traffic_of(os.getpid())
            sent, got = (traffic[os.fstat(end.fileno()).st_ino] for end in (sender, receiver))
            assert sent.received == got.sent == 1000 or sent.received == 1000
            assert got.received == 2_000_000
            assert sent.sent in (2_000_000, 2_000_001)  # the opening counts on some kernels
            sender.setblocking(False)
            with pytest.raises(BlockingIOError):
                while True:
                    sender.send(b"x" * 2**16)
            assert traffic_of(os.getpid())[os.fstat(sender.fileno()).st_ino].waiting > 0


def test_a_process_that_has_ended_has_no_traffic_and_one_without_a_daemon_none():
    with pytest.raises(OSError):
        traffic_of(2**22 + 1)
    assert daemon_of(os.getpid()) is None


def node(rate: float) -> Member:
    return Member(sends=True, reduces=True, link=Link(up=rate, down=rate))


LISTENER = Member(sends=False, reduces=False, link=Link(up=1, down=1))
CLIENT = Member(sends=True, reduces=False, link=Link(up=15, down=15))


def test_a_fast_helper_gains_where_links_are_slow_and_a_slow_one_nowhere():
    group = (node(15), node(15), LISTENER, node(15), node(15))
    assert gain_of_help(group, 2, Link(up=1000, down=1000)) == pytest.approx(1.75, rel=0.01)
    assert gain_of_help(group, 2, Link(up=3, down=3)) == pytest.approx(1.0)
    assert gain_of_help((CLIENT, LISTENER, CLIENT), 1, Link(up=3, down=3)) == float("inf")


def test_an_upload_limit_bounds_what_is_claimed_and_is_claimed_before_anything_is_measured():
    division = MeasuredDivision(None, 20.0, may_help=False)
    assert division.link == Link(up=20.0, down=20.0)
    division._meter.note_round(looks_at([(10, 40)] * 4, waiting=CONNECTIONS), CONNECTIONS)
    assert division.link == Link(up=pytest.approx(10, rel=0.01), down=pytest.approx(40, rel=0.01))
    division._meter.note_round(looks_at([(60, 80)] * 4, waiting=CONNECTIONS), CONNECTIONS)
    division._meter.note_round(looks_at([(60, 80)] * 4, waiting=CONNECTIONS), CONNECTIONS)
    # What is said, told and written down is never more than the limit, whatever the meter makes of a round.
    assert division._meter.link.up > 50
    assert division.measured.up == division.link.up == 20.0
    gathered = MSGPackSerializer.dumps((20.0, AveragingMode.NODE.value, b""))
    assert read_statement(division.told(gathered)).up == 20.0


def test_peers_of_one_machine_with_different_limits_do_not_take_each_others_link_for_theirs(tmp_path):
    file = tmp_path / "link.json"
    remember_link(file, Link(up=20.8, down=90.0), 10.0)
    assert remembered_link(file, 10.0) == Link(up=10.0, down=90.0)
    assert remembered_link(file) is None is remembered_link(file, 30.0)
    remember_link(file, Link(up=40.0, down=80.0))
    assert remembered_link(file) == Link(up=40.0, down=80.0)
    assert remembered_link(file, 10.0) == Link(up=10.0, down=90.0)
    assert remembered_link(file, 30.0) == Link(up=30.0, down=80.0)
    for limit in range(100):
        remember_link(file, Link(up=1.0, down=1.0), float(limit + 1))
    assert len(file.read_text(encoding="utf-8")) < 1000


def test_a_link_is_remembered_and_a_damaged_file_is_not_believed(tmp_path):
    file = tmp_path / "folder" / "link.json"
    assert remembered_link(file) is None
    remember_link(file, Link(up=10.5, down=20.0))
    assert remembered_link(file) == Link(up=10.5, down=20.0)
    for text in ("", "[]", '{"up": 1}', '{"up": -1, "down": 5}', '{"up": NaN, "down": 5}', '{"up": "a", "down": 5}'):
        file.write_text(text, encoding="utf-8")
        assert remembered_link(file) is None


def test_peers_of_one_machine_may_remember_their_link_at_the_same_time(tmp_path):
    file, go = tmp_path / "link.json", threading.Barrier(8)

    def remember(number):
        go.wait()
        for _ in range(200):
            remember_link(file, Link(up=number + 1.0, down=1.0))
        return number

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(remember, range(8))) == list(range(8))
    assert remembered_link(file).down == 1.0
    assert [path.name for path in tmp_path.iterdir()] == ["link.json"]


def test_a_link_that_cannot_be_remembered_ends_no_training(tmp_path, caplog):
    (tmp_path / "folder").write_text("a file", encoding="utf-8")
    remember_link(tmp_path / "folder" / "link.json", Link(up=1.0, down=1.0))
    assert "cannot be remembered" in caplog.text


@pytest.mark.parametrize(
    ("compression", "seconds"), [("none", "32 to 64 s for 40 MB"), ("blockwise_8bit", "8 to 16 s for 10 MB")]
)
def test_a_round_takes_as_long_as_its_bytes_on_the_slower_direction(compression, seconds):
    run = TrainingRun(
        run_id="r", model_config={}, dataset_repository="a/b", dataset_revision="c", averaging_compression=compression
    )
    line = round_line(run, 10_000_000, Link(up=10, down=50), "measured")
    assert line == f"{seconds} at 10 Mbit/s up, 50 down (measured)"


@pytest.mark.parametrize("values_per_chunk", [16, 64, 256])
def test_a_sparse_round_is_told_by_the_bytes_of_contributions(values_per_chunk):
    shapes = [(1024, 1024), (512, 2048), (1024,)]
    codec = SparseCodec(shapes, k=values_per_chunk)
    expected = sparse_bytes(codec.layout.num_values, values_per_chunk)
    payload = codec.encode([torch.randn(shape, generator=torch.Generator().manual_seed(0)) for shape in shapes], 1)
    assert expected == pytest.approx(len(payload), rel=0.05)
    assert codec.least_bytes <= expected <= codec.most_bytes
    run = TrainingRun(
        run_id="r", model_config={}, dataset_repository="a/b", dataset_revision="c", local_steps=30,
        synchronisation="sparse", aggregation_rule="mean",
    )  # fmt: skip
    line = round_line(run, 10_000_000, Link(up=10, down=50), "measured")
    assert line == "0.15 s to give 186 kB and 0.03 s for each other peer's at 10 Mbit/s up, 50 down (measured)"


@pytest.mark.parametrize(("others_mbit", "factor"), [(100.0, 1), (15.0, HEADROOM), (0.0, HEADROOM)])
def test_a_link_that_sends_what_all_others_can_receive_may_carry_more(others_mbit, factor):
    looks = looks_at([(10, 9)] * 5, waiting=CONNECTIONS)
    assert measured(looks, CONNECTIONS, others_mbit)[0] == pytest.approx(10 * factor, rel=0.01)
    meter = LinkMeter(count=dict, others_mbit=others_mbit)
    meter.note_round(looks, CONNECTIONS)
    meter.pacer.book(10**6, now=0.0)
    assert meter.pacer.is_full(0.0) == (factor == 1), "only a full link is paced"


@pytest.mark.parametrize(("up", "status"), [(5, "warn"), (6, "warn"), (7, "ok"), (15, "ok")])
def test_the_doctor_says_when_a_run_would_leave_a_link_out(up, status):
    run = TrainingRun(run_id="r", model_config={}, dataset_repository="a/b", dataset_revision="c")
    for link, limit in [(Link(up=up, down=100), None), (None, up), (Link(up=100, down=100), up)]:
        result = check_round(run, 125_000_000, link, limit)
        assert result.status == status
        # 125 MB in 8 bits within half of the 300 s that a round may take.
        assert ("at least 6.7 Mbit/s up" in result.line()) == (status == "warn")
