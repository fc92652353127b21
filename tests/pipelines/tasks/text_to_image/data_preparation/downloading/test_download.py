"""Lists of addresses, downloaded from a server that misbehaves: every row is a picture or a failure with its reason."""

import dataclasses
import datetime
import json
import tarfile
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from captioned_files import read
from misbehaving_server import JPEG, MisbehavingServer, answer

from pipelines.tasks.text_to_image.data_preparation.downloading.download import (
    DownloadError,
    DownloadOptions,
    DownloadReport,
    download_list,
)
from pipelines.tasks.text_to_image.data_preparation.downloading.fetching import FetchingOptions
from pipelines.tasks.text_to_image.data_preparation.downloading.politeness import (
    RESERVATIONS_PATH,
    is_opted_out,
    is_reserved,
    reserved_paths,
    seconds_to_rest,
)
from pipelines.tasks.text_to_image.data_preparation.sources.finding import find_sources


@pytest.fixture
def server():
    with MisbehavingServer() as server:
        yield server


def options(part_size: int = 1000, **fetching) -> DownloadOptions:
    limits = dict(allow_private=True, timeout_seconds=1.0, largest_bytes=2**18) | fetching
    return DownloadOptions(part_size=part_size, fetching=FetchingOptions(**limits))


def write_list(path, addresses: list[str], **columns: list):
    captions = [f"caption {n}" for n in range(len(addresses))]
    pq.write_table(pa.table({"URL": addresses, "TEXT": captions, **columns}), path)
    return path


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/ok", None),
        ("/no-tdm", None),
        ("/hop", None),
        ("/busy-once", None),
        ("/broken-once", None),
        ("/noai", "opted_out"),
        ("/noimageai", "opted_out"),
        ("/one-robot", "opted_out"),
        ("/tdm", "opted_out"),
        ("/hop-to-noai", "opted_out"),
        ("/loop", "too_many_redirects"),
        ("/hop-to-file", "invalid_redirect"),
        ("/hop-nowhere", "invalid_redirect"),
        ("/html", "not_a_picture"),
        ("/empty", "empty"),
        ("/heic", "unsupported_format"),
        ("/gone", "http_410"),
        ("/broken", "http_500"),
        ("/busy", "http_429"),
        ("/huge", "too_large"),
        ("/endless", "too_large"),
        ("/cut", "cut_off"),
        ("/cut-chunk", "cut_off"),
        ("/silent-end", "cut_off"),
        ("/nonsense", "bad_answer"),
        ("/negative", "bad_answer"),
        ("/long-header", "bad_answer"),
        ("/slow-head", "timed_out"),
        ("/slow-body", "timed_out"),
    ],
)
def test_whatever_a_server_does_is_a_picture_or_a_reason(server, tmp_path, path, reason):
    rows = write_list(tmp_path / "list.parquet", [server.address(path)])
    report = download_list(rows, tmp_path / "out", options(timeout_seconds=0.4))
    assert report == DownloadReport(
        num_rows=1, num_downloaded=int(reason is None), failures={reason: 1} if reason else {}
    )
    is_temporary = reason in ("http_500", "http_429", "cut_off", "bad_answer", "timed_out")
    special = {"/loop": 6, "/busy-once": 2, "/broken-once": 2}
    if path == "/silent-end":  # the client itself repeats a request on a connection that was closed without an answer
        assert 2 <= server.asked[path] <= 4
    else:
        assert server.asked[path] == special.get(path, 1 + is_temporary)


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        *((address, "invalid_address") for address in ("ftp://a.org/a.jpg", "/etc/passwd", "file:///etc/passwd", "?")),
        *(
            (address, "invalid_address")
            for address in ("http://" + "user:word" + "@a.org/", "http://", "http://a.org:x/", "data:,")
        ),
        *((address, "invalid_address") for address in ("http://a.org/" + "x" * 5000, "http://[::1/", "javascript:1")),
        ("http://127.0.0.1:1/", "no_connection"),
        ("http://name.invalid/", "no_such_host"),
        (None, "no_address"),
        ("", "no_address"),
    ],
)
def test_addresses_that_lead_nowhere_are_failures(tmp_path, address, reason):
    rows = write_list(tmp_path / "list.parquet", pa.array([address], pa.string()))
    assert download_list(rows, tmp_path / "out", options()).failures == {reason: 1}


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "2130706433", "0.0.0.0", "[::ffff:127.0.0.1]"])
def test_private_addresses_are_refused_however_they_are_written(server, tmp_path, host):
    rows = write_list(tmp_path / "list.parquet", [f"http://{host}:{server.port}/ok"])
    report = download_list(rows, tmp_path / "out", options(allow_private=False))
    assert report.num_downloaded == 0 and sum(server.asked.values()) == 0
    assert set(report.failures) <= {"private_address", "invalid_address", "no_such_host"}


def test_networks_of_others_that_only_we_can_reach_are_refused(tmp_path):
    hosts = (
        "10.0.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "[fe80::1]",
        "[fd00::1]",
        "224.0.0.1",
        "[64:ff9b::a00:1]",
    )
    rows = write_list(tmp_path / "list.parquet", [f"http://{host}/" for host in hosts])
    report = download_list(rows, tmp_path / "out", options(allow_private=False))
    assert report.failures == {"private_address": len(hosts)}


def test_tars_are_read_by_prepare_with_their_labels(server, tmp_path):
    columns = {"NSFW": ["UNLIKELY", "NSFW", None], "similarity": [0.3, 0.31, None], "punsafe": [0.1, 0.2, 0.97]}
    rows = write_list(tmp_path / "list.parquet", [server.address(f"/ok{n}") for n in range(3)], **columns)
    download_list(rows, tmp_path / "out", options())
    samples = {sample.key: sample for source in find_sources([tmp_path / "out"]) for sample in read(source)[0]}
    assert sorted(samples) == ["0000000000", "0000000001", "0000000002"]
    first, second, third = (samples[key] for key in sorted(samples))
    assert (first.caption, first.image_bytes, first.similarity) == ("caption 0", JPEG, 0.3)
    assert (first.nsfw, second.nsfw, third.nsfw, third.unsafe_score) == ("UNLIKELY", "NSFW", None, 0.97)


def test_all_rows_are_counted_part_by_part_and_a_second_run_asks_for_nothing(server, tmp_path):
    paths = ["/ok", "/noai", "/gone", "/html", "/broken-once"] * 8 + ["/loop"]
    rows = write_list(tmp_path / "list.parquet", [server.address(path) for path in paths])
    heard = []
    report = download_list(rows, tmp_path / "out", options(part_size=10), heard.append)
    assert report.num_rows == 41 == report.num_downloaded + sum(report.failures.values())
    assert report.failures == {"http_410": 8, "not_a_picture": 8, "opted_out": 8, "too_many_redirects": 1}
    assert [done.num_rows for done in heard] == [10, 20, 30, 40, 41]
    failures = (tmp_path / "out" / "00004_failures.jsonl").read_text().splitlines()
    assert json.loads(failures[0]) == {"row": 0, "url": server.address("/loop"), "reason": "too_many_redirects"}
    before = server.asked.copy()
    assert download_list(rows, tmp_path / "out", options(part_size=10)) == report and server.asked == before


def test_only_what_is_missing_is_downloaded_again(server, tmp_path):
    rows = write_list(tmp_path / "list.parquet", [server.address(f"/ok{n}") for n in range(30)])
    report = download_list(rows, tmp_path / "out", options(part_size=10))
    (tmp_path / "out" / "00001_stats.json").unlink()
    (tmp_path / "out" / "00002.tar").unlink()
    (tmp_path / "out" / ".00002.tar.7.partial").write_bytes(b"half a tar")
    server.asked.clear()
    assert download_list(rows, tmp_path / "out", options(part_size=10)) == report
    assert sorted(server.asked - Counter({RESERVATIONS_PATH: 9})) == sorted(f"/ok{n}" for n in range(10, 30))
    assert not list((tmp_path / "out").glob(".*"))


def test_what_a_host_reserves_in_its_file_is_left_alone_and_the_file_asked_for_once(server, tmp_path):
    rules = [{"location": "/ok1*", "tdm-reservation": 0}, {"location": "/ok", "tdm-reservation": 1}]
    server.special[RESERVATIONS_PATH] = answer(body=json.dumps(rules).encode())
    rows = write_list(tmp_path / "list.parquet", [server.address(f"/ok{n}") for n in range(30)])
    report = download_list(rows, tmp_path / "out", options())
    assert (report.num_downloaded, report.failures) == (11, {"opted_out": 19})
    assert server.asked[RESERVATIONS_PATH] == 1 and sum(server.asked.values()) == 12


@pytest.mark.parametrize(
    ("content", "reserved"),
    [
        (b'[{"location": "/", "tdm-reservation": 1}]', ["/a.jpg", "/b/c.png"]),
        (b'[{"location": "/b/*.png$", "tdm-reservation": "1"}]', ["/b/c.png"]),
        (b'[{"location": "/*/c", "tdm-reservation": 1}]', ["/b/c.png"]),
        (b'[{"location": "/a$", "tdm-reservation": 1}, {"location": "/a.jpg$", "tdm-reservation": 1}]', ["/a.jpg"]),
        (b'[{"location": "/b", "tdm-reservation": 0}, {"location": "*", "tdm-reservation": 1}]', ["/a.jpg"]),
        (b'[{"location": "/" , "tdm-reservation": 0}]', []),
        (b'[{"location": 7, "tdm-reservation": 1}, 3, {"tdm-reservation": 1}]', []),
        (b'[{"location": "' + b"/*a" * 150 + b'", "tdm-reservation": 1}]', []),
        (b'{"location": "/"}', []),
        (b"[" * 10**5, []),
        (b"\xff\xd8\xff", []),
        (b"", []),
    ],
)
def test_reservation_files_are_read_as_written_or_not_at_all(content, reserved):
    rules = reserved_paths(content)
    assert [path for path in ("/a.jpg", "/b/c.png") if is_reserved(path, rules)] == reserved


def test_another_list_is_refused(server, tmp_path):
    rows = write_list(tmp_path / "list.parquet", [server.address("/ok")])
    download_list(rows, tmp_path / "out", options())
    with pytest.raises(DownloadError, match=r"was begun with another part_size. Use the first settings"):
        download_list(rows, tmp_path / "out", options(part_size=7))
    write_list(rows, [server.address("/ok")] * 3)
    with pytest.raises(DownloadError, match="was begun with another lists"):
        download_list(rows, tmp_path / "out", options())


def test_one_host_is_asked_for_few_pictures_at_once(server, tmp_path):
    rows = write_list(tmp_path / "list.parquet", [server.address(f"/ok{n}") for n in range(60)])
    report = download_list(rows, tmp_path / "out", options(num_at_once=32, num_at_once_per_host=3))
    assert report.num_downloaded == 60 and 2 <= server.most_at_once <= 3


def test_a_host_that_never_answers_is_given_up(server, tmp_path):
    rows = write_list(tmp_path / "list.parquet", [server.address("/slow-head")] * 100)
    report = download_list(rows, tmp_path / "out", options(timeout_seconds=0.2))
    assert sum(report.failures.values()) == 100 and report.failures["host_given_up"] >= 80
    assert server.asked["/slow-head"] <= 2 * (10 + 4)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("list.csv", "url,caption\n{0},a cat\n{1},a dog\n"),
        ("list.tsv", "Image_URL\tAlt Text\n{0}\ta cat\n{1}\ta dog\n"),
        ("list.jsonl", '{{"URL": "{0}", "TEXT": "a cat"}}\nnonsense\n{{"URL": "{1}", "TEXT": "a dog"}}\n'),
    ],
)
def test_lists_are_read_in_the_ways_people_write_them(server, tmp_path, name, text):
    (tmp_path / name).write_text(text.format(server.address("/ok1"), server.address("/ok2")))
    report = download_list(tmp_path / name, tmp_path / "out", options())
    assert report.num_downloaded == 2 and report.num_rows == 2 + sum(report.failures.values())
    (source,) = find_sources([tmp_path / "out"])
    assert sorted(sample.caption for sample in source.samples()) == ["a cat", "a dog"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("cc12m.tsv", "{0}\ta cat, red\n{1}\ta dog\n"),
        ("cc3m.tsv", 'a cat, red\t{0}\n"a dog\t{1}\n'),
        ("list.csv", '{0},"a cat, red"\n{1},a dog\n'),
    ],
)
def test_lists_without_names_of_columns_are_read(server, tmp_path, name, text):
    (tmp_path / name).write_text(text.format(server.address("/ok1"), server.address("/ok2")))
    report = download_list(tmp_path / name, tmp_path / "out", options())
    assert (report.num_rows, report.num_downloaded) == (2, 2)
    (source,) = find_sources([tmp_path / "out"])
    assert sorted(sample.caption.strip('"') for sample in source.samples()) == ["a cat, red", "a dog"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "https://a.org/1.jpg,7,a cat\n",
            "first line should name the columns and is https://a.org/1.jpg, 7, a cat",
        ),
        ("bild,beschreibung\nx,a cat\n", "no column of addresses; its columns are bild, beschreibung; expected one of"),
    ],
)
def test_lists_whose_addresses_are_not_found_are_named_with_their_columns(tmp_path, text, reason):
    (tmp_path / "list.csv").write_text(text)
    report = download_list(tmp_path / "list.csv", tmp_path / "out", options())
    assert report.num_rows == 0 and reason in report.damaged_lists[0]


def test_a_column_of_captions_that_no_list_has_is_refused_and_names_match_without_case(server, tmp_path):
    rows = write_list(tmp_path / "list.parquet", [server.address("/ok")], Beschreibung=["eine Katze"])
    chosen = DownloadOptions(caption_column="absent", fetching=options().fetching)
    with pytest.raises(ValueError, match=r"has no column absent; its columns are URL, TEXT, Beschreibung\. Choose"):
        download_list(rows, tmp_path / "out", chosen)
    download_list(rows, tmp_path / "other", dataclasses.replace(chosen, caption_column="BESCHREIBUNG"))
    (source,) = find_sources([tmp_path / "other"])
    assert [sample.caption for sample in source.samples()] == ["eine Katze"]


def test_every_row_is_counted_whatever_it_holds(server, tmp_path):
    captions = ['"\\ud83d"', "[1, {}]", "null", "3", '"' + "x" * 10**5 + '"', "[" * 900 + "]" * 900, "NaN"]
    address = server.address("/ok")
    lines = [f'{{"URL": "{address}{n}", "TEXT": {said}}}' for n, said in enumerate(captions)]
    lines += ['{"URL": "\\ud83d"}', '{"URL": ["a"]}', '{"URL": 3}', "[]", "{", '{"URL": "", "url": {}}']
    (tmp_path / "list.jsonl").write_text("\n".join(lines))
    report = download_list(tmp_path / "list.jsonl", tmp_path / "out", options())
    assert report.num_rows == len(lines) == report.num_downloaded + sum(report.failures.values())
    (source,) = find_sources([tmp_path / "out"])
    assert len(read(source)[0]) == report.num_downloaded >= 5


def test_lists_in_linked_folders_are_read(server, tmp_path):
    for name in ("lists", "elsewhere"):
        (tmp_path / name).mkdir()
        write_list(tmp_path / name / f"{name}.parquet", [server.address(f"/ok-{name}")])
    (tmp_path / "lists" / "more").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "back").symlink_to(tmp_path)
    assert download_list(tmp_path / "lists", tmp_path / "out", options()).num_downloaded == 2


def test_damaged_lists_are_named_and_strange_ones_refused(server, tmp_path):
    folder = tmp_path / "lists"
    folder.mkdir()
    (folder / "a.parquet").write_bytes(b"PAR1 nothing")
    write_list(folder / "b.parquet", [server.address("/ok")])
    report = download_list(folder, tmp_path / "out", options())
    assert report.num_downloaded == 1 and report.damaged_lists[0].startswith("a.parquet: damaged (")
    with pytest.raises(ValueError, match="has no list of addresses"):
        download_list(tmp_path / "out" / "00000.tar", tmp_path / "other", options())
    with pytest.raises(FileNotFoundError, match=r"There is no .*absent"):
        download_list(tmp_path / "absent", tmp_path / "other", options())


def test_strange_columns_do_not_end_the_download(server, tmp_path):
    columns = {
        "far": pa.array([2**62], pa.timestamp("us")),
        "when": [datetime.datetime(2020, 1, 1)],
        "raw": [b"\xff"],
        "nested": [{"a": [1]}],
    }
    rows = write_list(tmp_path / "list.parquet", [server.address("/ok")], **columns)
    assert download_list(rows, tmp_path / "out", options()).num_downloaded == 1
    with tarfile.open(tmp_path / "out" / "00000.tar") as tar:
        metadata = json.load(tar.extractfile("0000000000.json"))
    assert (
        metadata["when"] == "2020-01-01 00:00:00"
        and metadata["nested"] == {"a": [1]}
        and "raw" not in metadata
        and metadata["far"] is None
    )


@pytest.mark.parametrize(
    ("tags", "reservations", "is_reserved"),
    [
        ((), (), False),
        (("noai",), (), True),
        (("none, NOAI",), (), True),
        (("otherbot: noimageai",), (), True),
        (("unavailable_after: 25 Jun 2026 15:00:00 PST",), (), False),
        (("index, follow", "noimageindex"), (), True),
        ((), ("1",), True),
        ((), ("0", " 1 "), True),
        ((), ("0",), False),
    ],
)
def test_authors_who_opt_out_are_understood(tags, reservations, is_reserved):
    assert is_opted_out(tags, reservations) is is_reserved


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        *((("7", 7.0), (None, 10.0), ("-3", 0.0), ("99999999", 120.0), ("soon", 10.0), ("nan", 10.0), ("inf", 120.0))),
        *(("Wed, 01 Jan 2020 00:00:30 GMT", 30.0), ("Tue, 31 Dec 2019 00:00:00 GMT", 0.0)),
    ],
)
def test_servers_are_given_the_time_they_ask_for_within_reason(header, seconds):
    assert seconds_to_rest(header, datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)) == seconds
