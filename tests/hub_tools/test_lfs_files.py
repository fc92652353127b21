"""Large contents across a repository's commits: listed, and deleted for good while the commits stay as they are."""

import os
from pathlib import Path

import pytest
from huggingface_hub import HfApi
from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError

from hub_tools.local_hub.store.consistency import check_consistency


@pytest.fixture
def api(hub, tokens):
    return HfApi(endpoint=hub.endpoint, token=tokens.alice)


def upload(api, repo, name, content):
    return api.upload_file(repo_id=repo, path_in_repo=name, path_or_fileobj=content).oid


def test_deleted_contents_are_gone_and_everything_else_stays(hub, api, repo, tmp_path):
    contents = [os.urandom(3000) for _ in range(3)]
    commits = [upload(api, repo, "state.safetensors", content) for content in contents]
    upload(api, repo, "weights.safetensors", contents[0])
    listed = [file for file in api.list_lfs_files(repo) if file.filename == "state.safetensors"]
    assert [file.size for file in listed] == [3000, 3000, 3000]
    assert listed == sorted(listed, key=lambda file: file.pushed_at)
    api.permanently_delete_lfs_files(repo, [listed[1]], rewrite_history=False)
    assert len(list(api.list_lfs_files(repo))) == 2
    with pytest.raises(EntryNotFoundError):
        api.hf_hub_download(repo, "state.safetensors", revision=commits[1], cache_dir=tmp_path)
    for commit, content in ((commits[0], contents[0]), (commits[2], contents[2])):
        path = api.hf_hub_download(repo, "state.safetensors", revision=commit, cache_dir=tmp_path)
        assert Path(path).read_bytes() == content
    assert [commit.commit_id for commit in api.list_repo_commits(repo)][1:4] == commits[::-1]
    assert check_consistency(hub.root).problems == ()
    again = upload(api, repo, "state.safetensors", contents[1])
    path = api.hf_hub_download(repo, "state.safetensors", revision=again, cache_dir=tmp_path)
    assert Path(path).read_bytes() == contents[1], "what is uploaded again is there again"


def test_a_content_that_another_repository_has_too_stays_there(api, repo, tmp_path):
    content = os.urandom(3000)
    other = f"{repo}-other"
    api.create_repo(other)
    for name in (repo, other):
        upload(api, name, "state.safetensors", content)
    api.permanently_delete_lfs_files(repo, list(api.list_lfs_files(repo)), rewrite_history=False)
    with pytest.raises(EntryNotFoundError):
        api.hf_hub_download(repo, "state.safetensors", cache_dir=tmp_path)
    assert Path(api.hf_hub_download(other, "state.safetensors", cache_dir=tmp_path)).read_bytes() == content


def test_only_a_writer_deletes_and_no_history_is_rewritten(hub, api, tokens, repo):
    upload(api, repo, "state.safetensors", os.urandom(3000))
    files = list(api.list_lfs_files(repo))
    with pytest.raises(HfHubHTTPError, match="rewrite_history=False"):
        api.permanently_delete_lfs_files(repo, files)
    with pytest.raises(HfHubHTTPError):
        HfApi(endpoint=hub.endpoint, token=False).permanently_delete_lfs_files(repo, files, rewrite_history=False)
    assert len(list(api.list_lfs_files(repo))) == 1
