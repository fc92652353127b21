"""Downloads from the embedded Hub: whole, in ranges, cached, and by pages that a browser can show."""

import contextlib
import hashlib
import http.client
from pathlib import Path

import httpx
import pytest
from huggingface_hub import hf_hub_download, snapshot_download
from huggingface_hub.errors import EntryNotFoundError, RevisionNotFoundError

pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")

CONTENT = bytes(range(256)) * 16


@pytest.fixture
def large(api, repo):
    """A repository with one LFS file and one small text file."""
    api.upload_file(path_or_fileobj=CONTENT, path_in_repo="folder/data.bin", repo_id=repo)
    api.upload_file(path_or_fileobj=b"hello\n", path_in_repo="hello.txt", repo_id=repo)
    return repo


def fetch(hub, repo, path, method="GET", **headers):
    return httpx.request(method, f"{hub.endpoint}/{repo}/resolve/main/{path}", headers=headers)


def test_a_file_comes_with_its_digest_and_its_commit(hub, api, large):
    answer = fetch(hub, large, "folder/data.bin")
    assert answer.content == CONTENT
    assert answer.headers["etag"] == f'"{hashlib.sha256(CONTENT).hexdigest()}"'
    assert answer.headers["x-repo-commit"] == api.model_info(large).sha
    assert answer.headers["accept-ranges"] == "bytes"
    assert "x-xet-hash" not in answer.headers
    small = fetch(hub, large, "hello.txt")
    assert small.headers["etag"] == '"ce013625030ba8dba906f756967f9e9ca394464a"'


def test_head_says_the_same_as_get_without_the_body(hub, large):
    got, head = fetch(hub, large, "folder/data.bin"), fetch(hub, large, "folder/data.bin", "HEAD")
    assert head.content == b""
    for name in ("content-length", "etag", "x-repo-commit", "content-type"):
        assert head.headers[name] == got.headers[name]


@pytest.mark.parametrize(
    ("wanted", "start", "stop"), [("bytes=0-9", 0, 10), ("bytes=4000-", 4000, 4096), ("bytes=-7", 4089, 4096)]
)
def test_a_range_gives_exactly_those_bytes(hub, large, wanted, start, stop):
    answer = fetch(hub, large, "folder/data.bin", Range=wanted)
    assert answer.status_code == 206
    assert answer.content == CONTENT[start:stop]
    assert answer.headers["content-range"] == f"bytes {start}-{stop - 1}/4096"
    assert answer.headers["content-length"] == str(stop - start)


def test_a_range_behind_the_end_is_refused_with_416(hub, large):
    answer = fetch(hub, large, "folder/data.bin", Range="bytes=5000-")
    assert answer.status_code == 416
    assert answer.headers["content-range"] == "bytes */4096"


def test_what_is_missing_has_the_code_that_clients_steer_by(hub, api, large, tmp_path):
    missing = fetch(hub, large, "missing.txt", "HEAD")
    assert (missing.status_code, missing.headers["x-error-code"]) == (404, "EntryNotFound")
    # The client keeps the commit of a missing file: a later offline look-up then fails at once.
    assert missing.headers["x-repo-commit"] == api.model_info(large).sha
    with pytest.raises(EntryNotFoundError):
        hf_hub_download(large, "missing.txt", endpoint=hub.endpoint, cache_dir=tmp_path)
    with pytest.raises(RevisionNotFoundError):
        hf_hub_download(large, "hello.txt", revision="nowhere", endpoint=hub.endpoint, cache_dir=tmp_path)


@pytest.mark.parametrize(
    "path", ["../../../hub.sqlite3", "%2e%2e/%2e%2e/hub.sqlite3", "..%2f..%2fsigning_key", "/etc/passwd"]
)
def test_a_download_cannot_leave_the_repository(hub, large, path):
    # httpx would tidy the path up before it is sent.
    connection = http.client.HTTPConnection("127.0.0.1", hub.port)
    with contextlib.closing(connection):
        connection.request("GET", f"/{large}/resolve/main/{path}")
        answer = connection.getresponse()
        assert answer.status == 404
        assert answer.headers["x-error-code"] == "EntryNotFound"


def test_snapshots_are_complete_and_cached(hub, api, large, tmp_path):
    folder = snapshot_download(large, endpoint=hub.endpoint, cache_dir=tmp_path)
    found = sorted(str(path.relative_to(folder)) for path in Path(folder).rglob("*") if path.is_file())
    assert found == [".gitattributes", "folder/data.bin", "hello.txt"]
    first, second = (
        Path(hf_hub_download(large, "folder/data.bin", endpoint=hub.endpoint, cache_dir=tmp_path)).stat()
        for _ in range(2)
    )
    assert first.st_ino == second.st_ino
    api.upload_file(path_or_fileobj=b"new", path_in_repo="hello.txt", repo_id=large)
    newer = snapshot_download(large, endpoint=hub.endpoint, cache_dir=tmp_path, allow_patterns="*.txt")
    assert newer != folder
    assert Path(newer, "hello.txt").read_text() == "new"


def test_file_names_of_every_kind_come_back(hub, api, repo, tmp_path):
    names = ["a b.txt", "50%.txt", "ü/ñ.txt", "plus+and&.txt", "q?x=1#y.txt", "100%25.txt", "a;b.txt"]
    for name in names:
        api.upload_file(path_or_fileobj=name.encode(), path_in_repo=name, repo_id=repo)
    assert sorted(api.list_repo_files(repo)) == sorted([".gitattributes", *names])
    for name in names:
        downloaded = hf_hub_download(repo, name, endpoint=hub.endpoint, cache_dir=tmp_path)
        assert Path(downloaded).read_bytes() == name.encode()


def test_pages_show_repositories_and_files_without_running_anything(hub, api, repo):
    nasty = "<script>alert(1)</script>"
    api.upload_file(path_or_fileobj=f"# {nasty}".encode(), path_in_repo="README.md", repo_id=repo, commit_message=nasty)
    api.upload_file(path_or_fileobj=nasty.encode(), path_in_repo="<img src=x>.html", repo_id=repo)
    for address in ("/", f"/{repo}"):
        page = httpx.get(hub.endpoint + address)
        assert page.headers["content-type"].startswith("text/html")
        assert "default-src 'none'" in page.headers["content-security-policy"]
        assert repo in page.text
        assert "<script" not in page.text
        assert "<img src=x" not in page.text
    assert "&lt;script&gt;" in page.text
    file = fetch(hub, repo, "%3Cimg%20src=x%3E.html")
    assert file.content == nasty.encode()
    assert file.headers["content-type"].startswith("text/plain")
    assert file.headers["x-content-type-options"] == "nosniff"
    assert "sandbox" in file.headers["content-security-policy"]


def test_pages_of_datasets_and_spaces_have_their_prefix(hub, api, repo_id):
    api.create_repo(repo_id, repo_type="dataset")
    api.create_repo(repo_id, repo_type="space", space_sdk="static")
    index = httpx.get(hub.endpoint).text
    for prefix in ("datasets", "spaces"):
        assert f'href="/{prefix}/{repo_id}"' in index
        assert httpx.get(f"{hub.endpoint}/{prefix}/{repo_id}").status_code == 200
    assert httpx.get(f"{hub.endpoint}/{repo_id}").status_code == 401


def test_a_page_of_another_origin_may_read_files_and_why_it_cannot_but_nothing_else(hub, large):
    origin = {"Origin": "https://my-org-page.static.hf.space"}
    found, missing = fetch(hub, large, "hello.txt", **origin), fetch(hub, large, "nothing.txt", **origin)
    unknown = fetch(hub, "org/nobody", "hello.txt", **origin)
    assert (found.status_code, missing.status_code, unknown.status_code) == (200, 404, 401)
    for answer in (found, missing, unknown):
        assert answer.headers["access-control-allow-origin"] == "*"
        assert "X-Error-Code" in answer.headers["access-control-expose-headers"]
    listing = httpx.get(f"{hub.endpoint}/api/models/{large}", headers=origin)
    assert listing.status_code == 200 and "access-control-allow-origin" not in listing.headers


@pytest.mark.parametrize("name", ["resolve", "raw"])
def test_a_dataset_may_be_named_as_an_address_is_made(hub, api, name):
    repo = f"org/{name}"
    api.create_repo(repo, repo_type="dataset")
    api.upload_file(path_or_fileobj=b"hello", path_in_repo="hello.txt", repo_id=repo, repo_type="dataset")
    for way in ("resolve", "raw"):
        assert httpx.get(f"{hub.endpoint}/datasets/{repo}/{way}/main/hello.txt").content == b"hello"
    assert httpx.post(f"{hub.endpoint}/api/datasets/{repo}/super-squash/main").status_code == 404
