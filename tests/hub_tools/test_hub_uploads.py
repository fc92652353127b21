"""Large files on the embedded Hub: in one piece, in parts, verified, and never by knowing a digest alone."""

import hashlib
import os
from http import HTTPStatus
from pathlib import Path

import httpx
import pytest

from hub_tools.local_hub import LocalHub
from hub_tools.local_hub.store.consistency import check_consistency

pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")


def digest(content):
    return hashlib.sha256(content).hexdigest()


def ask_for_addresses(endpoint, token, repo, content, size=None):
    """Do what git LFS does first, and return the described object."""
    objects = [{"oid": digest(content), "size": len(content) if size is None else size}]
    answer = httpx.post(
        f"{endpoint}/{repo}.git/info/lfs/objects/batch",
        json={"operation": "upload", "objects": objects},
        headers={"Authorization": f"Bearer {token}"},
    )
    answer.raise_for_status()
    return answer.json()["objects"][0]


def commit_lfs(endpoint, token, repo, path, content):
    import json

    lines = [
        {"key": "header", "value": {"summary": "add"}},
        {"key": "lfsFile", "value": {"path": path, "algo": "sha256", "oid": digest(content), "size": len(content)}},
    ]
    body = "\n".join(map(json.dumps, lines))
    headers = {"Authorization": f"Bearer {token}"}
    return httpx.post(f"{endpoint}/api/models/{repo}/commit/main", content=body, headers=headers)


def test_a_content_of_another_digest_or_size_is_not_kept(hub, tokens, repo):
    content = os.urandom(5000)
    upload = ask_for_addresses(hub.endpoint, tokens.alice, repo, content)["actions"]["upload"]["href"]
    for wrong in (content[:-1], content[:-1] + bytes([content[-1] ^ 1]), content + b"!"):
        assert httpx.put(upload, content=wrong).status_code in (400, 413)
    refused = commit_lfs(hub.endpoint, tokens.alice, repo, "a.bin", content)
    assert "was not uploaded" in refused.json()["error"]
    assert httpx.put(upload, content=content).status_code == 200
    assert commit_lfs(hub.endpoint, tokens.alice, repo, "a.bin", content).status_code == 200


def test_verify_tells_an_arrived_content_from_a_missing_one(hub, tokens, repo):
    content = os.urandom(100)
    actions = ask_for_addresses(hub.endpoint, tokens.alice, repo, content)["actions"]
    asked = {"oid": digest(content), "size": len(content)}
    assert httpx.post(actions["verify"]["href"], json=asked).status_code == 404
    httpx.put(actions["upload"]["href"], content=content).raise_for_status()
    assert httpx.post(actions["verify"]["href"], json=asked).status_code == 200
    assert "actions" not in ask_for_addresses(hub.endpoint, tokens.alice, repo, content)


def test_an_upload_address_cannot_be_forged_or_bent(hub, tokens, repo):
    content = os.urandom(100)
    upload = ask_for_addresses(hub.endpoint, tokens.alice, repo, content)["actions"]["upload"]["href"]
    assert tokens.alice not in upload
    for bent in (
        upload.replace(digest(content), digest(b"other")),
        upload.replace("size=100", "size=100000"),
        upload.replace("repository=", "repository=1"),
        upload.replace("expires=", "expires=9"),
        upload.partition("&signature")[0],
        upload.partition("?")[0],
    ):
        answer = httpx.put(bent, content=content)
        assert answer.status_code == HTTPStatus.FORBIDDEN
        assert "not signed by this Hub" in answer.json()["error"]


def test_knowing_a_digest_does_not_give_a_private_content(hub, api, client, tokens, repo_id):
    content = os.urandom(3000)
    api.create_repo(repo_id, private=True)
    api.upload_file(path_or_fileobj=content, path_in_repo="private.bin", repo_id=repo_id)
    stranger = f"stranger-eve/{repo_id.partition('/')[2]}"
    client(tokens.eve).create_repo(stranger)
    refused = commit_lfs(hub.endpoint, tokens.eve, stranger, "stolen.bin", content)
    assert refused.status_code == 400
    assert "was not uploaded to this repository" in refused.json()["error"]
    # Neither does the upload protocol say that the content is here already.
    assert "actions" in ask_for_addresses(hub.endpoint, tokens.eve, stranger, content)


def test_a_content_of_a_readable_repository_need_not_be_sent_again(hub, api, client, tokens, repo):
    content = os.urandom(3000)
    api.upload_file(path_or_fileobj=content, path_in_repo="public.bin", repo_id=repo)
    other = f"stranger-eve/{repo.partition('/')[2]}"
    client(tokens.eve).create_repo(other)
    assert "actions" not in ask_for_addresses(hub.endpoint, tokens.eve, other, content)
    assert commit_lfs(hub.endpoint, tokens.eve, other, "same.bin", content).status_code == 200


def test_large_contents_go_up_in_parts(tmp_path):
    content = os.urandom((2 << 20) + 12345)
    with LocalHub(tmp_path / "hub", part_mebibytes=1) as hub:
        token = hub.create_user("alice")
        import huggingface_hub

        api = huggingface_hub.HfApi(endpoint=hub.endpoint, token=token)
        api.create_repo("alice/run")
        action = ask_for_addresses(hub.endpoint, token, "alice/run", content)["actions"]["upload"]
        assert sorted(name for name in action["header"] if name.isdigit()) == ["1", "2", "3"]
        api.upload_file(path_or_fileobj=content, path_in_repo="model.safetensors", repo_id="alice/run")
        downloaded = api.hf_hub_download("alice/run", "model.safetensors", cache_dir=tmp_path)
        assert Path(downloaded).read_bytes() == content

        other = content[::-1]
        action = ask_for_addresses(hub.endpoint, token, "alice/run", other)["actions"]["upload"]
        parts = action["header"]
        assert httpx.put(parts["1"], content=other[: 1 << 20]).headers["etag"]
        assert httpx.put(parts["2"], content=b"too short").status_code == 400
        assert httpx.put(parts["1"].replace("/part/1", "/part/4"), content=b"x").status_code == 400
        incomplete = httpx.post(action["href"], json={"oid": digest(other), "parts": []})
        assert incomplete.status_code == 400
        assert "send it again" in incomplete.json()["error"]
        assert list((tmp_path / "hub" / "incoming").iterdir()) == []
    assert check_consistency(tmp_path / "hub").problems == ()
