"""The log of a peer: one event is one line, for people."""

import io
import logging
import multiprocessing
import time
from contextlib import contextmanager

import pytest
from swarm_of_processes import tiny_run

from pipelines.command_line.terminal.consoles import MOST_CHARACTERS, LogLines, OneLineFormatter
from pipelines.command_line.terminal.peer_names import LONGEST_NAME, NUM_BYTES, PeerNames, users_by_peer
from pipelines.command_line.terminal.training_peer import duration_words, standing_words, traffic_words
from pipelines.core.peer.entering import admitted
from pipelines.core.swarm.network_options import NetworkOptions
from pipelines.core.swarm.node import open_dht
from pipelines.core.swarm.peer_records import PeerIntroduction
from pipelines.core.swarm.records import SwarmRecords
from pipelines.features.publishing.metrics.credit.standing import Standing

DIAL_ERRORS = """failed to dial 12D3KooW: all dials failed
  * [/ip4/127.0.0.1/tcp/1] dial tcp4 127.0.0.1:1: connect: connection refused
  * [/ip4/10.0.0.1/tcp/2] dial backoff"""


ALICE, BOB = "QmYwAPJzv5CZsnA625s3Xf2nemtYgPpHdWEz79ojWnPbdG", "12D3KooWQYhTNQdmr3ArTeUHRYzFg94BKyTkoWBDWez9kSCVe2Xo"


@contextmanager
def written_log(formatter):
    written, handler = io.StringIO(), logging.StreamHandler()
    handler.setStream(written)
    handler.setFormatter(formatter)
    logger = logging.getLogger("pipelines")
    level = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    yield written
    logger.removeHandler(handler)
    logger.setLevel(level)


@pytest.fixture
def log():
    with written_log(OneLineFormatter()) as written:
        yield written


def test_what_is_printed_for_people_becomes_lines_with_time_and_level(log):
    console = LogLines.console()
    with console.status("training"):
        console.print("Published [bold]epoch 3[/] as commit abc.", "x" * 300, markup=True)
        for line in ("one\ntwo", "", "three"):
            console.print(line)
    lines = log.getvalue().splitlines()
    assert [line.split(" ", 3)[2] for line in lines] == ["INFO"] * 3
    published = f"Published epoch 3 as commit abc. {'x' * 300}"
    assert [line.split(" ", 3)[3] for line in lines] == [published, "one two", "three"]


@pytest.mark.parametrize("shows_tracebacks", [False, True])
def test_errors_of_many_lines_are_one_line_within_a_limit(shows_tracebacks):
    logger = logging.getLogger("pipelines.core.swarm")
    with written_log(OneLineFormatter(shows_tracebacks=shows_tracebacks)) as log:
        try:
            raise ConnectionError(DIAL_ERRORS)
        except ConnectionError as error:
            logger.exception("A peer is gone: %s", error)
            logger.exception("A peer is gone.")
        logger.warning("x" * 10 * MOST_CHARACTERS)
    told, untold, last = log.getvalue().splitlines()
    assert "A peer is gone: failed to dial 12D3KooW: all dials failed (2 addresses tried)" in told
    assert told.count("all dials failed") == 1 + shows_tracebacks
    assert ("A peer is gone. " in untold and "ConnectionError(" in untold) or shows_tracebacks
    assert all(("Traceback" in line) == shows_tracebacks for line in (told, untold))
    assert "dial tcp4" not in told
    assert len(last) == MOST_CHARACTERS and last.endswith("...")


def test_a_user_who_is_known_is_named_with_the_end_of_the_peers_id_in_every_process():
    names = PeerNames()
    with written_log(OneLineFormatter("%(message)s", name_peers=names.put_into)) as log:
        logger = logging.getLogger("pipelines.core.swarm")
        logger.warning("Peer %s sent nothing.", ALICE)
        fork = multiprocessing.get_context("fork")
        said, known = fork.Queue(), fork.Event()
        child = fork.Process(target=lambda: known.wait(60) and said.put(names.put_into(f"Peer {ALICE} is late.")))
        child.start()
        names.write({ALICE: "alice"})
        known.set()
        assert said.get(timeout=60) == "Peer alice (…PbdG) is late."
        child.join()
        logger.warning("Peers %s, %s and /ip4/127.0.0.1/tcp/1/p2p/%s.", ALICE, BOB, ALICE)
    assert log.getvalue().splitlines() == [
        f"Peer {ALICE} sent nothing.",
        f"Peers alice (…PbdG), {BOB} and /ip4/127.0.0.1/tcp/1/p2p/{ALICE}.",
    ]


def test_a_name_that_somebody_made_up_cannot_become_two_lines_or_a_long_one_and_many_fit():
    names = PeerNames()
    names.write({ALICE: "a\n\x1b[31mb" + 90 * "c"})
    assert names.put_into(ALICE) == ("a \ufffd[31mb" + 90 * "c")[: LONGEST_NAME - 4] + " ..." + " (…PbdG)"
    names.write({ALICE: "first"} | {f"{BOB[:-6]}{number:06}": 90 * "n" for number in range(2 * NUM_BYTES // 90)})
    assert names.put_into(ALICE) == "first (…PbdG)"


@pytest.mark.slow
def test_a_swarms_records_say_which_user_is_behind_a_peer():
    options = NetworkOptions(host_addresses=("/ip4/127.0.0.1/tcp/0",))
    who = PeerIntroduction(username="alice", device="CPU", client_mode=False, package_version="0")
    with (
        admitted(tiny_run(run_id="named"), "org/named", options) as (network, admission),
        open_dht("org/named", (), network, admission=admission, reply_seconds=5.0) as dht,
    ):
        records = SwarmRecords(dht, "named", admission=admission).open()
        records.introduce(who)
        deadline = time.monotonic() + 30
        while not (named := users_by_peer(records)) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert named == {dht.peer_id.to_base58(): "alice"}


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "about 1 min"), (5_400, "about 90 min"), (9_000, "about 2 h"), (400_000, "about 5 days")],
)
def test_a_length_of_time_is_said_roughly(seconds, words):
    assert duration_words(seconds) == words


def test_a_volunteer_is_told_the_bytes_of_the_session_and_what_all_sessions_have_come_to():
    assert traffic_words(1_230_000_000, 40_000_000, 0.01) == "sent 1.2 GB; received 40 MB"
    expected = "sent 3 GB, 1.5 GB an hour; received 600 MB, 300 MB an hour"
    assert traffic_words(3_000_000_000, 600_000_000, 2.0) == expected
    standing = Standing(place=3, num_contributors=1_200, samples=45_000, share=0.0423)
    expected = "45,000 samples credited in all sessions: place 3 of 1,200, 4.2% of all"
    assert standing_words(standing, "samples") == expected
