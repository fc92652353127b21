"""Who has answered falsely is avoided for longer each time, by all processes, and so are other peers of its user."""

import json

import pytest
from clocks import Clock
from huggingface_hub import constants

from pipelines.core.averaging.group import blocklist as peer_blocklist
from pipelines.features.servers.server_record import ServerRecord
from pipelines.features.serving import server_blocklist as avoided_servers
from pipelines.features.serving.blocks.discovery import served_spans
from pipelines.features.serving.draw.drawing_client import drawing_servers
from pipelines.features.serving.server_blocklist import (
    LONGEST_SECONDS,
    MOST_NAME_CHARACTERS,
    MOST_NAMED,
    ServerBlocklist,
)


@pytest.fixture
def clock():
    return Clock(1000.0)


@pytest.fixture
def file(tmp_path):
    return tmp_path / "folder" / "avoided.json"


def test_each_process_goes_on_from_what_the_ones_before_have_found(file, clock):
    lengths = []
    for _ in range(14):
        blocklist = ServerBlocklist(file, clock)
        assert not blocklist.avoids("liar")
        until = blocklist.avoid("liar")
        lengths.append(until - clock.now)
        clock.now = until - 1
        assert ServerBlocklist(file, clock).avoids("liar") and not ServerBlocklist(file, clock).avoids("honest")
        clock.now = until
    assert lengths[:3] == [600, 1200, 2400] and lengths[-1] == LONGEST_SECONDS
    assert ServerBlocklist().until("liar") == 0.0


def test_processes_of_the_same_time_forget_nothing_that_the_others_found(file, clock):
    first, second = ServerBlocklist(file, clock), ServerBlocklist(file, clock)
    first.avoid("a")
    second.avoid("b")
    first.avoid("c")
    assert all(ServerBlocklist(file, clock).avoids(peer) for peer in "abc")
    assert second.avoid("a") - clock.now == 600, "the same finding of two processes is one"


def test_a_new_peer_id_does_not_help_an_admitted_user(clock):
    blocklist = ServerBlocklist(clock=clock)
    clock.now = blocklist.avoid("first id", "mallory") - 1
    assert blocklist.avoids("second id", "mallory") and blocklist.avoids("first id", "another name")
    assert (
        not blocklist.avoids("second id")
        and not blocklist.avoids("mallory")
        and not blocklist.avoids("third", "first id")
    )
    assert blocklist.avoid("second id", "mallory") - clock.now == 600, "this one was not yet avoided, its user was"
    clock.now += 600
    assert blocklist.avoid("third id", "mallory") - clock.now == 1200


def test_names_of_an_open_run_are_anybodys_own_word():
    record = ServerRecord(
        peer_id="a", username="alice", state="online", revision="0" * 64, epoch=1, precision="float32",
        package_version="1", draw_rate=1.0, end_layer=2, layer_rate=1.0,
    )  # fmt: skip
    for read in (served_spans, drawing_servers):
        assert [one.user for one in read({b"key": record})] == [""]
        assert [one.user for one in read({b"key": record}, names_users=True)] == ["alice"]


def test_those_that_are_avoided_are_named_up_to_a_number(clock):
    blocklist = ServerBlocklist(clock=clock)
    servers = [(f"peer number {number:02}", "") for number in range(MOST_NAMED + 2)]
    assert blocklist.named(servers) == ""
    blocklist.avoid(*servers[1])
    said = "Avoided, since they have answered falsely: umber 01 until 1970-01-01 00:26:40 UTC."
    assert blocklist.named(servers) == said
    for server in servers:
        blocklist.avoid(*server)
    assert blocklist.named(servers).endswith("umber 07 until 1970-01-01 00:26:40 UTC, 2 others.")


@pytest.mark.parametrize(
    "content",
    [
        b"", b"\xff", b"[]", b"null", b"[" * 100_000, b'{"peer a": 5}', b'{"peer a": ["x", 1]}', b'{"a": [1, 1]}',
        b'{"peer a": [NaN, 1]}', b'{"peer a": [600, NaN]}', b'{"peer a": [-1, 5000]}', b'{"peer a": [1, 5000, 1]}',
        b'{"peer a": [Infinity, Infinity]}', b'{"peer %s": [600, 5000]}' % (b"a" * MOST_NAME_CHARACTERS),
        b'{"peer b": [600, 5000], "peer a": 5}',
    ],
    ids=lambda content: str(content[:30]),
)  # fmt: skip
def test_a_broken_file_is_ignored_with_one_line_and_replaced(file, clock, caplog, content):
    file.parent.mkdir()
    file.write_bytes(content)
    blocklist = ServerBlocklist(file, clock)
    assert not blocklist.avoids("a") and not blocklist.avoids("b")
    (record,) = caplog.records
    assert f"cannot be read from {file}, which is ignored: " in record.getMessage()
    blocklist.avoid("c")
    assert ServerBlocklist(file, clock).avoids("c")


def test_a_file_cannot_say_longer_than_could_be_written_nor_more_than_is_remembered(file, clock, caplog, monkeypatch):
    file.parent.mkdir()
    file.write_text('{"peer a": [1e300, 1e300], "peer b": [1e3, 1e18]}')
    blocklist = ServerBlocklist(file, clock)
    assert (blocklist.until("a"), blocklist.until("b")) == (clock.now + LONGEST_SECONDS, clock.now + 1000)
    for module in (peer_blocklist, avoided_servers):
        monkeypatch.setattr(module, "MOST_REMEMBERED", 3)
    for number in range(5):
        clock.now += 1
        ServerBlocklist(file, clock).avoid(f"{number}")
    assert len(json.loads(file.read_text())) == 3 and ServerBlocklist(file, clock).avoids("a")
    file.write_text(json.dumps({f"peer {number}": [600, 5000] for number in range(4)}))
    assert not ServerBlocklist(file, clock).avoids("0") and "4 servers and users; expected at most 3" in caplog.text


def test_where_the_file_cannot_be_written_it_is_avoided_in_this_process(tmp_path, clock, caplog):
    (tmp_path / "folder").write_text("no folder")
    blocklist = ServerBlocklist(tmp_path / "folder" / "avoided.json", clock)
    blocklist.avoid("a")
    assert blocklist.avoids("a") and "is forgotten with this process" in caplog.text


def test_each_run_has_a_file_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "HF_HOME", str(tmp_path))
    ServerBlocklist.of_run("org/birds").avoid("a")
    (file,) = tmp_path.rglob("avoided_servers.json")
    assert file.parts[-4:-2] == ("dalle-collab", "serving") and file.parent.name.endswith("--org-birds")
    assert ServerBlocklist.of_run("org/birds").avoids("a") and not ServerBlocklist.of_run("org/cats").avoids("a")
