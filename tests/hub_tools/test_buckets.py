"""Buckets of the embedded Hub, with the real client and its Xet transport, and against those who would misuse them."""

import itertools
import json
import random
import struct
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

import httpx
import pytest
from huggingface_hub.errors import BucketBatchError, BucketNotFoundError, HfHubHTTPError

from hub_tools.local_hub.buckets.xet_formats import SHARD_MARK, file_hash, read_xorb, xorb_hash
from hub_tools.local_hub.store.consistency import check_consistency
from hub_tools.local_hub.store.database import Database

pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")

FILES = {
    "text.txt": b"hello",
    "empty": b"",
    "folder/random.bin": random.Random(0).randbytes(3_000_000),
    "folder/zeros.bin": bytes(1_000_000),
    "folder/floats.bin": struct.pack("<70001f", *(i / 1000 for i in range(70001))),
}


@pytest.fixture
def bucket(api, repo_id):
    """A fresh bucket."""
    return api.create_bucket(repo_id).bucket_id


def add(api, bucket, files):
    api.batch_bucket_files(bucket, add=[(content, path) for path, content in files.items()])


def downloaded(api, bucket, paths, folder):
    api.download_bucket_files(bucket, [(path, folder / path) for path in paths], raise_on_missing_files=True)
    return {path: (folder / path).read_bytes() for path in paths}


def token(hub, api, bucket, access="write"):
    url = f"{hub.endpoint}/api/buckets/{bucket}/xet-{access}-token"
    return httpx.get(url, headers={"Authorization": f"Bearer {api.token}"}).json()


def post(hub, path, body, token):
    return httpx.post(f"{hub.endpoint}/xet/v1/{path}", content=body, headers={"Authorization": f"Bearer {token}"})


def one_chunk(content, length=None, scheme=0):
    packed = len(content).to_bytes(3, "little")
    return bytes([0]) + packed + bytes([scheme]) + (length or len(content)).to_bytes(3, "little") + content


def shard(*entries):
    return SHARD_MARK + bytes(16) + b"".join(struct.pack("<32s4I", *entry) for entry in entries)


def raw(text):
    """The bytes of a hash that is written as Xet writes it."""
    return b"".join(bytes.fromhex(text[i : i + 16])[::-1] for i in range(0, 64, 16))


END = (b"\xff" * 32, 0, 0, 0, 0)


def test_what_is_put_into_a_bucket_comes_out_again(hub, api, bucket, tmp_path):
    add(api, bucket, FILES)
    info = api.bucket_info(bucket)
    assert (info.total_files, info.size, info.private) == (len(FILES), sum(map(len, FILES.values())), False)
    assert sorted(file.path for file in api.list_bucket_tree(bucket, recursive=True)) == sorted(FILES)
    assert [it.path for it in api.list_bucket_tree(bucket)] == ["empty", "folder", "text.txt"]
    below = [file.path for file in api.list_bucket_tree(bucket, "folder")]
    assert below == ["folder/floats.bin", "folder/random.bin", "folder/zeros.bin"]
    assert downloaded(api, bucket, FILES, tmp_path) == FILES
    for path, content in FILES.items():  # as a web page reads it
        answer = httpx.get(f"{hub.endpoint}/buckets/{bucket}/resolve/{path}", headers={"Origin": "https://page"})
        assert answer.content == content and answer.headers["access-control-allow-origin"] == "*"
    add(api, bucket, {"text.txt": b"newer"})
    api.batch_bucket_files(bucket, delete=["folder/zeros.bin"])
    assert downloaded(api, bucket, ["text.txt"], tmp_path) == {"text.txt": b"newer"}
    assert [it.path for it in api.get_bucket_paths_info(bucket, ["folder/zeros.bin", "empty"])] == ["empty"]


def test_buckets_are_listed_a_page_at_a_time_and_private_ones_only_to_members(hub, client, tokens):
    owner = hub.create_user("shelver")
    hub.create_organization("shelf", members={"shelver": "admin", "reader-carol": "read"})
    api, names = client(owner), ["shelf/a", "shelf/B", "shelf/c-1", "shelf/c-2"]
    for name in reversed(names):
        api.create_bucket(name, private=name == "shelf/c-1")
    add(api, "shelf/a", {"1.txt": b"one", "2.txt": b"three"})
    assert [(it.id, it.private, it.size, it.total_files) for it in api.list_buckets("shelf")] == [
        (name, name == "shelf/c-1", *((8, 2) if name == "shelf/a" else (0, 0))) for name in names
    ]
    described = next(iter(api.list_buckets("shelf")))
    assert described.created_at == api.bucket_info("shelf/a").created_at
    assert [it.id for it in client(tokens.carol).list_buckets("shelf", search="C-")] == names[2:]
    for stranger in (client(False), client(tokens.eve)):
        assert [it.id for it in stranger.list_buckets("shelf")] == ["shelf/a", "shelf/B", "shelf/c-2"]
    url, found = f"{hub.endpoint}/api/buckets/SHELF?limit=2", []
    while url:
        answer = httpx.get(url, headers={"Authorization": f"Bearer {owner}"})
        assert len(answer.json()) <= 2
        found += [it["id"] for it in answer.json()]
        url = answer.links.get("next", {}).get("url")
    assert found == names
    assert len(httpx.get(f"{hub.endpoint}/api/buckets/shelf?limit=-7").json()) == 1
    mine = client(tokens.eve).create_bucket("stranger-eve/mine").bucket_id
    assert [it.id for it in client(tokens.eve).list_buckets()] == [mine]
    for asked, status in (("nobody-there", 404), ("me", 401)):
        with pytest.raises(HfHubHTTPError) as refused:
            list(client(False).list_buckets(asked))
        assert refused.value.response.status_code == status


def test_a_file_that_the_client_has_is_not_sent_again(hub, api, bucket):
    began = datetime.now(UTC)
    add(api, bucket, {"a.txt": b"text", "same.txt": b"text"})
    url = f"{hub.endpoint}/buckets/{bucket}/resolve/"
    sent = httpx.get(f"{url}a.txt")
    mark = sent.headers["etag"]
    assert mark == httpx.head(f"{url}same.txt").headers["etag"] and mark.startswith('"')
    for clock in ("last-modified", "date"):
        assert abs(parsedate_to_datetime(sent.headers[clock]) - began) < timedelta(minutes=2)
    for known in (mark, f"W/{mark}", f'"other", {mark}', "*"):
        for method in ("GET", "HEAD"):
            answer = httpx.request(method, f"{url}a.txt", headers={"If-None-Match": known})
            assert (answer.status_code, answer.content, answer.headers["etag"]) == (304, b"", mark)
            assert answer.headers["last-modified"] == sent.headers["last-modified"]
    add(api, bucket, {"a.txt": b"newer"})
    newer = httpx.get(f"{url}a.txt", headers={"If-None-Match": mark})
    assert newer.status_code == 200 and newer.content == b"newer" and newer.headers["etag"] != mark


def test_a_folder_is_synchronised_both_ways(api, bucket, tmp_path):
    for path, content in FILES.items():
        (tmp_path / "here" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "here" / path).write_bytes(content)
    api.sync_bucket(str(tmp_path / "here"), f"hf://buckets/{bucket}")
    again = api.sync_bucket(str(tmp_path / "here"), f"hf://buckets/{bucket}")
    assert again.summary()["uploads"] == 0
    api.sync_bucket(f"hf://buckets/{bucket}", str(tmp_path / "there"))
    assert {path: (tmp_path / "there" / path).read_bytes() for path in FILES} == FILES


def test_the_same_content_in_two_buckets_is_stored_once_and_belongs_to_both(hub, api, bucket, repo_id, tmp_path):
    content = random.Random(1).randbytes(500_000)
    other = api.create_bucket(f"{repo_id[:80]}-2").bucket_id
    with Database(hub.root / "hub.sqlite3").reading() as connection:
        (before,) = connection.execute("SELECT count(*) FROM xorbs").fetchone()
    add(api, bucket, {"a.bin": content})
    add(api, other, {"b.bin": content})
    with Database(hub.root / "hub.sqlite3").reading() as connection:
        (after,) = connection.execute("SELECT count(*) FROM xorbs").fetchone()
    assert after == before + 1
    api.delete_bucket(bucket)
    with pytest.raises(BucketNotFoundError):
        api.bucket_info(bucket)
    assert downloaded(api, other, ["b.bin"], tmp_path) == {"b.bin": content}


def test_who_may_do_what(client, tokens, api, repo_id):
    bucket = api.create_bucket(repo_id, private=True).bucket_id
    add(api, bucket, {"a.txt": b"secret"})
    for stranger in (client(False), client(tokens.eve)):
        for asked in (stranger.bucket_info, lambda name, it=stranger: list(it.list_bucket_tree(name))):
            with pytest.raises(BucketNotFoundError):
                asked(bucket)
    assert client(tokens.carol).bucket_info(bucket).total_files == 1
    for unable, status in ((tokens.carol, 403), (tokens.alice_read, 403)):
        with pytest.raises(HfHubHTTPError) as refused:
            client(unable).batch_bucket_files(bucket, delete=["a.txt"])
        assert refused.value.response.status_code == status
        with pytest.raises(OSError):
            add(client(unable), bucket, {"b.txt": b"text"})
    with pytest.raises(HfHubHTTPError) as refused:
        client(tokens.bob).delete_bucket(bucket)
    assert refused.value.response.status_code == 403
    with pytest.raises(HfHubHTTPError) as refused:
        client(tokens.eve).create_bucket("org/not-hers")
    assert refused.value.response.status_code == 403
    assert [it.path for it in api.list_bucket_tree(bucket)] == ["a.txt"]


def test_a_batch_with_one_bad_operation_changes_nothing(hub, api, bucket):
    add(api, bucket, {"a.txt": b"text"})
    known = next(iter(api.list_bucket_tree(bucket))).xet_hash
    with pytest.raises(BucketBatchError, match="no such file"):
        api.batch_bucket_files(bucket, delete=["a.txt", "missing.txt"])
    url, headers = f"{hub.endpoint}/api/buckets/{bucket}/batch", {"Authorization": f"Bearer {api.token}"}
    good = dict(type="addFile", path="b", xetHash=known, mtime=1)
    for change in (
        dict(path="../../etc/passwd"), dict(path="/b"), dict(path=["b"]), dict(path=None), dict(xetHash="1" * 64),
        dict(xetHash={"a": []}), dict(mtime=float("inf")), dict(mtime=-1), dict(mtime="1"), dict(type="dropTable"),
    ):  # fmt: skip
        lines = json.dumps(dict(type="deleteFile", path="a.txt")) + "\n" + json.dumps(good | change)
        answer = httpx.post(url, content=lines, headers=headers)
        assert answer.status_code == 422 and len(answer.json()["failed"]) == 1, change
    for body in (b"[" * 100_000, b"[1]", b"\xff\xfe", b'{"type"', b"x" * (17 << 20)):
        assert httpx.post(url, content=body, headers=headers).status_code in (400, 413)
    assert [it.path for it in api.list_bucket_tree(bucket)] == ["a.txt"]


def test_a_content_is_kept_only_under_its_own_hash(hub, api, bucket):
    access, body = token(hub, api, bucket)["accessToken"], one_chunk(b"some bytes")
    name = xorb_hash(read_xorb(body))
    for upload in (
        one_chunk(b"other byte"),
        body + body,
        body[:-1],
        b"",
        b"\x01" + body[1:],
        one_chunk(b"some bytes", scheme=7),
        one_chunk(b"no lz4", length=100, scheme=1),
        one_chunk(b"no lz4", length=100, scheme=2),
        one_chunk(b"", length=128 << 10),
        bytes(8) * 9000,
    ):
        refused = post(hub, f"xorbs/default/{name}", upload, access)
        assert refused.status_code == 400, upload[:40]
    assert post(hub, f"xorbs/default/{name}", bytes(66 << 20), access).status_code == 413
    assert post(hub, f"xorbs/default/{name}", body, access).json() == {"was_inserted": True}
    assert post(hub, f"xorbs/default/{name}", body, access).json() == {"was_inserted": False}


def test_a_file_is_kept_only_if_its_chunks_make_it_up(hub, api, bucket):
    access, body = token(hub, api, bucket)["accessToken"], one_chunk(b"a chunk of a file")
    chunks = read_xorb(body)
    xorb, file = raw(xorb_hash(chunks)), raw(file_hash(chunks))
    post(hub, f"xorbs/default/{xorb_hash(chunks)}", body, access)
    header, term = (file, 0, 1, 0, 0), (xorb, 0, 17, 0, 1)
    for upload in (
        b"",
        b"HFRepoMetaData",
        shard(header, term),
        shard(header),
        shard((file, 0, 2**32 - 1, 0, 0), term, END),
        shard(header, (xorb, 0, 17, 0, 2), END),
        shard(header, (xorb, 0, 17, 1, 0), END),
        shard(header, (b"x" * 32, 0, 17, 0, 1), END),
        shard((b"f" * 32, 0, 1, 0, 0), term, END),
        shard((file, 0, 2, 0, 0), term, term, END),
        shard((file, 1 << 31, 1, 0, 0), term, END),
        shard((file, 0, 1, 0, 0), (xorb, 0, 17, 0, 2**32 - 1), END),
    ):
        assert post(hub, "shards", upload, access).status_code == 400, upload[:200]
    assert post(hub, "shards", shard(header, term, END), access).json() == {"result": 1}
    api.delete_bucket(bucket)
    assert post(hub, "shards", shard(header, term, END), access).status_code == 200, "deleted while it was uploaded to"


def test_tokens_of_contents_are_bound_to_a_bucket_an_access_and_an_hour(hub, api, bucket, repo_id):
    add(api, bucket, {"a.txt": b"only in this bucket"})
    name = next(iter(api.list_bucket_tree(bucket))).xet_hash
    other = api.create_bucket(f"{repo_id[:80]}-2").bucket_id

    def ask(access):
        url = f"{hub.endpoint}/xet/v1/reconstructions/{name}"
        return httpx.get(url, headers={"Authorization": f"Bearer {access}"})

    mine, foreign = (token(hub, api, it, "read")["accessToken"] for it in (bucket, other))
    assert ask(mine).status_code == 200 and ask(foreign).status_code == 404
    user, number, access, expires, signature = mine.split(".")
    for forged in (
        "x", "...", f"{user}.{number}.write.{expires}.{signature}", mine.replace("alice", "bob"),
        f"{user}.{int(number) + 1}.{access}.{expires}.{signature}",
        f"{user}.{number}.{access}.{int(expires) + 9}.{signature}", mine[:-1],
    ):  # fmt: skip
        assert ask(forged).status_code == 401
    assert post(hub, "shards", shard(END), mine).status_code == 403
    address = next(iter(ask(mine).json()["fetch_info"].values()))[0]["url"]
    assert httpx.get(address).status_code == 200
    for false in (address[:-1], address.replace("expires=", "expires=9"), address.replace("/xorb/", "/xorb/0")):
        assert httpx.get(false).status_code == 403


def test_a_part_of_a_file_is_found_in_its_chunks(hub, api, bucket):
    content = random.Random(2).randbytes(2_000_000)
    add(api, bucket, {"a.bin": content})
    name = next(iter(api.list_bucket_tree(bucket))).xet_hash
    access = token(hub, api, bucket, "read")["accessToken"]

    def part(first, last):
        headers = {"Authorization": f"Bearer {access}", "Range": f"bytes={first}-{last}"}
        return httpx.get(f"{hub.endpoint}/xet/v1/reconstructions/{name}", headers=headers)

    for first, last in ((0, 0), (1, 700_000), (1_234_567, 1_234_568), (1_999_999, 5_000_000)):
        recipe = part(first, last).json()
        whole = b""
        for term in recipe["terms"]:
            (piece,) = recipe["fetch_info"][term["hash"]]
            spans = piece["url_range"]
            body = httpx.get(piece["url"], headers={"Range": f"bytes={spans['start']}-{spans['end']}"}).content
            chunks = read_xorb(body)
            assert len(chunks) == term["range"]["end"] - term["range"]["start"]
            starts = [0, *(chunk.end for chunk in chunks)]
            whole += b"".join(body[a + 8 : b] for a, b in itertools.pairwise(starts))
        skipped = recipe["offset_into_first_range"]
        assert whole[skipped:][: last + 1 - first] == content[first : last + 1]
        assert len(whole) <= min(last, 1_999_999) - first + 1 + 2 * (128 << 10), "whole chunks, and no others"
    assert part(2_000_000, 2_000_001).status_code == 416 and part(5, 4).status_code == 416


def test_contents_of_buckets_are_checked_and_never_removed_as_unused(hub, api, bucket):
    add(api, bucket, {"a.bin": random.Random(3).randbytes(100_000)})
    report = check_consistency(hub.root)
    assert report.problems == ()
    with Database(hub.root / "hub.sqlite3").reading() as connection:
        kept = {row["sha256"] for row in connection.execute("SELECT sha256 FROM xorbs")}
    assert kept and kept.isdisjoint(report.unused)
