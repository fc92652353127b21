"""The log of a peer: one event is one line, for people."""

import io
import logging
import multiprocessing
import time
from contextlib import contextmanager
from datetime import datetime
from types import SimpleNamespace

import httpx2
import pytest
from swarm_of_processes import tiny_run

from hub_tools.one_line_errors import explain_error, note_run, with_run_named
from pipelines.command_line.terminal.consoles import (
    FOLD_SECONDS,
    MOST_CHARACTERS,
    FoldsRepetitions,
    LogLines,
    OneLineFormatter,
)
from pipelines.command_line.terminal.peer_names import LONGEST_NAME, NUM_BYTES, PeerNames, users_by_peer
from pipelines.command_line.terminal.training_peer import (
    Session,
    duration_words,
    standing_words,
    traffic_words,
)
from pipelines.core.peer.entering import admitted
from pipelines.core.swarm.network_options import NetworkOptions
from pipelines.core.swarm.node import open_dht
from pipelines.core.swarm.peer_records import INTRODUCTION_SECONDS, PeerIntroduction
from pipelines.core.swarm.records import INTRODUCTIONS, SwarmRecords
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
    times, levels, said = zip(*(line.split(" ", 2) for line in lines), strict=True)
    assert all(abs(datetime.fromisoformat(when).timestamp() - time.time()) < 60 for when in times)
    assert levels == ("INFO",) * 3
    published = f"Published epoch 3 as commit abc. {'x' * 300}"
    assert list(said) == [published, "one two", "three"]


@pytest.fixture
def folded():
    """Yield a clock that a test sets, how to warn through a filter, and what came through."""
    written, now = io.StringIO(), [1_000.0]
    handler = logging.StreamHandler(written)
    handler.addFilter(FoldsRepetitions(lambda: now[0]))

    def say(text, *args, name="pipelines.features", level=logging.WARNING):
        handler.handle(logging.LogRecord(name, level, "", 0, text, args, None))

    return SimpleNamespace(now=now, say=say, lines=lambda: written.getvalue().splitlines(), handler=handler)


def test_a_line_that_differs_in_figures_alone_is_said_once_and_then_how_often_it_came(folded):
    for number in range(13):
        folded.now[0] += 10
        folded.say("Not published (%d), next try in %.0f s: no answer", number, 2.0**number)
        folded.say("Epoch %d has ended.", number, level=logging.INFO)
    folded.say("Another matter.")
    assert [line for line in folded.lines() if "Epoch" not in line] == [
        "Not published (0), next try in 1 s: no answer", "Another matter."
    ]  # fmt: skip
    assert len(folded.lines()) == 15
    folded.now[0] = 1_010.0 + FOLD_SECONDS
    folded.say("Not published (%d), next try in %.0f s: no answer", 14, 60)
    assert folded.lines()[-1] == "Not published (14), next try in 60 s: no answer (… 12 more times in 3 min)"
    folded.now[0] += FOLD_SECONDS + 1  # what does not end is said ever more rarely
    folded.say("Not published (%d), next try in %.0f s: no answer", 15, 60)
    assert len(folded.lines()) == 16
    folded.now[0] += 100 * FOLD_SECONDS  # and what comes back is new
    folded.say("Not published (%d), next try in %.0f s: no answer", 16, 60)
    assert folded.lines()[-1] == "Not published (16), next try in 60 s: no answer"


def test_all_steps_of_a_round_that_fails_are_one_line_in_all_processes_but_an_error_is_said(folded):
    def fail():
        folded.say("Peer bob stopped sending.", name="pipelines.core.averaging.averager")
        folded.say("A round of averaging failed.", name="pipelines.core.epoch.epoch_end")

    child = multiprocessing.get_context("fork").Process(target=fail)
    folded.say("Peer bob did not answer.", name="pipelines.core.averaging.averager")
    child.start()
    child.join()
    folded.say("Values are not finite.", name="pipelines.core.averaging.averager", level=logging.ERROR)
    assert folded.lines() == ["Peer bob did not answer.", "Values are not finite."]
    folded.now[0] += FOLD_SECONDS
    fail()
    assert folded.lines()[2:] == ["Peer bob stopped sending. (… 2 more warnings of a round in 3 min)"]
    folded.say("A local gradient was not finite and was dropped.", name="pipelines.core.epoch.optimizer")
    assert len(folded.lines()) == 4, "that is no fault of a round"


def test_a_hub_that_cannot_be_reached_is_one_line_whoever_says_it(folded):
    lost = httpx2.ConnectError("refused")
    folded.say("Keys cannot be read: %s", explain_error(lost))
    folded.say("Metrics cannot be read: %s", lost)
    folded.say("Waiting: %s", caused_by(lost), name="pipelines.features.hub_rounds.exchange")
    folded.say("The Hub answers 403: not allowed")
    assert len(folded.lines()) == 2 and folded.lines()[0].startswith("Keys cannot be read: Cannot reach the Hub at")


def caused_by(error):
    outer = OSError("away")
    outer.__cause__ = error
    return outer


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
        "Peer …PbdG sent nothing.",
        f"Peers alice (…PbdG), …{BOB[-4:]} and /ip4/127.0.0.1/tcp/1/p2p/{ALICE}.",
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
        records.publish(INTRODUCTIONS, who, INTRODUCTION_SECONDS)
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


def test_the_progress_of_a_large_run_fits_a_terminal_of_80_columns_and_says_how_long_it_takes():
    report = SimpleNamespace(
        epoch=12_345, epoch_loss=5.4321, num_peers=123, swarm_samples_per_second=1_234.5, num_samples=1_234_567,
        samples_per_second=123.4, share_averaged=1.0, bytes_per_sample=123_456.0,
    )  # fmt: skip
    session = Session("org/run", "alice", tiny_run(num_epochs=30_000))
    lines = session.progress(report), session.own_part(report), session.totals()
    assert all(len(line) <= 78 for line in lines), lines
    assert "epoch 12,345/30,000" in lines[0] and lines[0].endswith("about 8 min left")


def test_a_command_in_a_message_names_the_run_that_this_command_is_for():
    said = "No list. Start one: dalle-collab run assist ORG/RUN --stay. Expected a Hub repository ORG/RUN."
    assert with_run_named(said) == said
    try:
        assert note_run("my-org/birds") == "my-org/birds"
        assert with_run_named(said) == said.replace("assist ORG/RUN", "assist my-org/birds")
    finally:
        note_run("a folder")
    assert with_run_named(said) == said
