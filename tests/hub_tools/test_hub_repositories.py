"""Repositories, commits, branches and listings of the embedded Hub, through the real client."""

import httpx
import pytest
from huggingface_hub import CommitOperationAdd, CommitOperationCopy, CommitOperationDelete, HfFileSystem, ModelCard
from huggingface_hub.errors import (
    BadRequestError,
    EntryNotFoundError,
    HfHubHTTPError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

# huggingface_hub passes open files to httpx2 in a way that httpx2 no longer likes.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")


def add(path, content=b"text"):
    return CommitOperationAdd(path_in_repo=path, path_or_fileobj=content)


def commit(api, repo, *operations, message="change", **options):
    return api.create_commit(repo, operations, commit_message=message, **options)


def read(hub, repo, path, revision="main"):
    return httpx.get(f"{hub.endpoint}/{repo}/resolve/{revision}/{path}").raise_for_status().content


def test_whoami_names_the_organizations_and_the_role_of_the_token(api, client, tokens):
    described = api.whoami()
    assert described["name"] == "alice"
    assert [(org["name"], org["roleInOrg"]) for org in described["orgs"]] == [("org", "admin")]
    assert described["auth"]["accessToken"]["role"] == "write"
    assert client(tokens.alice_read).whoami()["auth"]["accessToken"]["role"] == "read"


def test_members_of_an_organization_and_organizations_of_a_user_are_listed(api):
    names = {user.username for user in api.list_organization_members("org")}
    assert {"alice", "writer-bob", "reader-carol"} <= names
    assert [org.name for org in api.get_user_overview("alice").orgs] == ["org"]


@pytest.mark.parametrize("repo_type", ["model", "dataset", "space"])
def test_a_new_repository_of_each_type_has_one_commit_and_a_url(api, hub, repo_id, repo_type):
    sdk = "gradio" if repo_type == "space" else None
    url = api.create_repo(repo_id, repo_type=repo_type, space_sdk=sdk)
    prefix = {"model": "", "dataset": "datasets/", "space": "spaces/"}[repo_type]
    assert url == f"{hub.endpoint}/{prefix}{repo_id}"
    assert url.repo_type == repo_type
    assert len(api.list_repo_commits(repo_id, repo_type=repo_type)) == 1
    assert api.list_repo_files(repo_id, repo_type=repo_type) == [".gitattributes"]
    assert api.repo_info(repo_id, repo_type=repo_type).private is False


def test_creating_a_repository_again_is_refused_unless_allowed(api, repo):
    with pytest.raises(HfHubHTTPError, match="already created"):
        api.create_repo(repo)
    assert api.create_repo(repo, exist_ok=True).repo_id == repo


@pytest.mark.parametrize("name", ["-x", "a..b", "x.git", "a b", "x--y", "x" * 97, ""])
def test_repository_names_that_are_no_names_are_refused(hub, tokens, name):
    answer = httpx.post(
        f"{hub.endpoint}/api/repos/create",
        json={"name": name, "organization": "org"},
        headers={"Authorization": f"Bearer {tokens.alice}"},
    )
    assert answer.status_code == 400
    assert "name" in answer.json()["error"]


def test_a_commit_adds_replaces_copies_and_deletes_at_once(api, hub, repo):
    commit(api, repo, add("old.txt"), add("kept.txt", b"kept"), add("folder/a.txt"), add("folder/b.txt"))
    made = commit(
        api,
        repo,
        add("kept.txt", b"replaced"),
        CommitOperationCopy("old.txt", "copies/new.txt"),
        CommitOperationDelete("old.txt"),
        CommitOperationDelete("folder/"),
    )
    assert sorted(api.list_repo_files(repo)) == [".gitattributes", "copies/new.txt", "kept.txt"]
    assert read(hub, repo, "kept.txt") == b"replaced"
    assert read(hub, repo, "copies/new.txt") == b"text"
    assert made.commit_url == f"{hub.endpoint}/{repo}/commit/{made.oid}"
    assert api.model_info(repo).sha == made.oid


def test_old_revisions_stay_readable_by_id_prefix_branch_and_tag(api, hub, repo):
    first = commit(api, repo, add("a.txt", b"one"))
    commit(api, repo, add("a.txt", b"two"))
    api.create_branch(repo, branch="feature/old", revision=first.oid)
    api.create_tag(repo, tag="v1.0", revision=first.oid, tag_message="first")
    for revision in (first.oid, first.oid[:8], "feature%2Fold", "v1.0", "refs%2Fheads%2Ffeature%2Fold"):
        assert read(hub, repo, "a.txt", revision) == b"one"
    refs = api.list_repo_refs(repo)
    assert {branch.name: branch.target_commit for branch in refs.branches}["feature/old"] == first.oid
    assert [(tag.name, tag.ref, tag.target_commit) for tag in refs.tags] == [("v1.0", "refs/tags/v1.0", first.oid)]
    api.delete_branch(repo, branch="feature/old")
    api.delete_tag(repo, tag="v1.0")
    with pytest.raises(RevisionNotFoundError):
        api.model_info(repo, revision="v1.0")


def test_a_commit_goes_to_its_branch_alone(api, repo):
    api.create_branch(repo, branch="side/a")
    commit(api, repo, add("side.txt"), revision="side/a")
    assert "side.txt" in api.list_repo_files(repo, revision="side/a")
    assert "side.txt" not in api.list_repo_files(repo)
    with pytest.raises(RevisionNotFoundError):
        commit(api, repo, add("x.txt"), revision="missing")


def test_a_second_branch_or_tag_of_a_name_is_refused_unless_allowed(api, repo):
    api.create_branch(repo, branch="twice")
    api.create_branch(repo, branch="twice", exist_ok=True)
    with pytest.raises(HfHubHTTPError, match="already exists"):
        api.create_branch(repo, branch="twice")
    api.create_tag(repo, tag="twice")
    with pytest.raises(HfHubHTTPError, match="already exists"):
        api.create_tag(repo, tag="twice")
    with pytest.raises(BadRequestError, match="main cannot be deleted"):
        api.delete_branch(repo, branch="main")


def test_history_lists_commits_newest_first_over_several_pages(api, repo):
    for number in range(103):
        commit(api, repo, add("count.txt", str(number).encode()), message=f"commit {number}")
    titles = [item.title for item in api.list_repo_commits(repo)]
    assert titles == [f"commit {number}" for number in reversed(range(103))] + ["initial commit"]


def test_a_commit_for_a_stale_parent_is_refused_with_412(api, repo):
    parent = api.model_info(repo).sha
    commit(api, repo, add("first.txt"), parent_commit=parent)
    with pytest.raises(HfHubHTTPError, match="has moved") as refused:
        commit(api, repo, add("second.txt"), parent_commit=parent)
    assert refused.value.response.status_code == 412
    assert "second.txt" not in api.list_repo_files(repo)
    commit(api, repo, add("second.txt"), parent_commit=api.model_info(repo).sha[:7])
    assert "second.txt" in api.list_repo_files(repo)


def test_an_unchanged_upload_makes_no_commit(api, repo):
    first = api.upload_file(path_or_fileobj=b"same", path_in_repo="a.txt", repo_id=repo)
    large = api.upload_file(path_or_fileobj=b"\0" * 4096, path_in_repo="a.bin", repo_id=repo)
    assert api.upload_file(path_or_fileobj=b"same", path_in_repo="a.txt", repo_id=repo).oid == large.oid
    assert api.upload_file(path_or_fileobj=b"\0" * 4096, path_in_repo="a.bin", repo_id=repo).oid == large.oid
    assert first.oid != large.oid
    assert len(api.list_repo_commits(repo)) == 3


def test_upload_folder_respects_gitignore_and_delete_patterns(api, repo, tmp_path):
    for name in ("keep.txt", "skip.tmp", "logs/run.log", "deep/er/x.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / ".gitignore").write_text("# no rubbish\n*.tmp\nlogs/\n")
    commit(api, repo, add("stale.txt"))
    api.upload_folder(folder_path=tmp_path, repo_id=repo, delete_patterns="*.txt")
    assert sorted(api.list_repo_files(repo)) == [".gitattributes", ".gitignore", "deep/er/x.py", "keep.txt"]


def test_a_tree_lists_files_and_folders_with_their_last_commits(api, repo):
    first = commit(api, repo, add("data/x/a.txt"), add("data/b.txt"), add("data.txt"), message="first")
    commit(api, repo, add("data/b.txt", b"new"), message="second")
    top = {item.path: item for item in api.list_repo_tree(repo, expand=True)}
    assert sorted(top) == [".gitattributes", "data", "data.txt"]
    assert top["data"].last_commit.title == "second"
    assert top["data.txt"].last_commit.oid == first.oid
    assert [item.path for item in api.list_repo_tree(repo, path_in_repo="data")] == ["data/b.txt", "data/x"]
    everything = [item.path for item in api.list_repo_tree(repo, recursive=True)]
    assert everything == [".gitattributes", "data", "data.txt", "data/b.txt", "data/x", "data/x/a.txt"]
    with pytest.raises(EntryNotFoundError):
        list(api.list_repo_tree(repo, path_in_repo="missing"))
    infos = api.get_paths_info(repo, ["data", "data.txt", "nothing"])
    assert [type(info).__name__ for info in infos] == ["RepoFolder", "RepoFile"]


def test_a_large_tree_comes_in_pages(api, repo):
    commit(api, repo, *(add(f"n/{number:04}.txt", b"x") for number in range(1205)))
    files = api.list_repo_files(repo)
    assert len(files) == len(set(files)) == 1206


def test_git_digests_of_small_files_are_those_of_git(api, repo):
    commit(api, repo, add("hello.txt", b"hello\n"))
    (info,) = api.get_paths_info(repo, ["hello.txt"])
    assert info.blob_id == "ce013625030ba8dba906f756967f9e9ca394464a"  # git hash-object of "hello\n"
    sibling = next(it for it in api.model_info(repo, files_metadata=True).siblings if it.rfilename == "hello.txt")
    assert (sibling.size, sibling.blob_id) == (6, info.blob_id)


@pytest.mark.parametrize(
    "path",
    ["../up.txt", "/etc/passwd", "a/../../b", "a//b", "./a", "a\\b", ".git/config", "x/.GIT/y", "a\0b", "", "é" * 600],
)
def test_paths_that_leave_the_repository_are_refused(hub, tokens, repo, path):
    lines = [{"key": "header", "value": {"summary": "x"}}]
    lines.append({"key": "file", "value": {"path": path, "content": "", "encoding": "base64"}})
    answer = send_commit(hub, tokens, repo, lines)
    assert answer.status_code == 400
    assert "Invalid path" in answer.json()["error"]
    for key in ("deletedFile", "deletedFolder"):
        assert send_commit(hub, tokens, repo, [lines[0], {"key": key, "value": {"path": path}}]).status_code == 400


def send_commit(hub, tokens, repo, lines):
    import json

    body = "\n".join(json.dumps(line) for line in lines)
    headers = {"Authorization": f"Bearer {tokens.alice}"}
    return httpx.post(f"{hub.endpoint}/api/models/{repo}/commit/main", content=body, headers=headers)


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([], "needs a summary"),
        (["nonsense"], "newline-delimited JSON"),
        ([{"key": "header", "value": 3}], "is not an object"),
        ([{"key": "rename", "value": {}}], "Unknown commit operation"),
        ([{"key": "file", "value": {"path": "a", "content": "?", "encoding": "base64"}}], "not valid base64"),
        ([{"key": "lfsFile", "value": {"path": "a", "oid": "../../hub.sqlite3"}}], "not a sha256"),
        ([{"key": "lfsFile", "value": {"path": "a", "oid": "0" * 64}}], "was not uploaded"),
    ],
)
def test_commit_bodies_that_make_no_sense_are_refused(hub, tokens, repo, lines, words):
    answer = send_commit(hub, tokens, repo, lines)
    assert answer.status_code == 400
    assert words in answer.json()["error"]


def test_a_path_cannot_be_file_and_folder_at_once(api, repo):
    commit(api, repo, add("a", b"file"), add("b/c", b"file"))
    with pytest.raises(BadRequestError, match="a is a file"):
        commit(api, repo, add("a/x"))
    with pytest.raises(BadRequestError, match="it is a folder"):
        commit(api, repo, add("b"))
    commit(api, repo, CommitOperationDelete("a"), add("a/x"))
    assert "a/x" in api.list_repo_files(repo)


def test_deleting_a_missing_file_changes_nothing(api, repo):
    head = api.model_info(repo).sha
    with pytest.raises(EntryNotFoundError):
        commit(api, repo, add("new.txt"), CommitOperationDelete("missing.txt"))
    assert api.model_info(repo).sha == head
    assert api.list_repo_files(repo) == [".gitattributes"]


def test_repositories_are_listed_by_author_search_tag_and_page(api, repo_id):
    names = [f"{repo_id}-{number}" for number in range(3)]
    for name in names:
        api.create_repo(name)
    card = b"---\ntags: [only-here]\nlicense: mit\npipeline_tag: text-to-image\nlibrary_name: transformers\n---\n# Hi"
    commit(api, names[1], add("README.md", card))
    search = repo_id.partition("/")[2]
    assert [model.id for model in api.list_models(author="org", search=search)] == names[::-1]
    assert [model.id for model in api.list_models(author="alice", search=search)] == []
    (found,) = api.list_models(filter="only-here")
    assert found.id == names[1]
    assert len(list(api.list_models(search=search, limit=2))) == 2
    info = api.model_info(names[1])
    assert (info.pipeline_tag, info.library_name) == ("text-to-image", "transformers")
    assert info.card_data.license == "mit"


def test_cards_are_validated_pushed_and_loaded(api, hub, tokens, repo):
    with pytest.raises(ValueError, match="must be a mapping"):
        commit(api, repo, add("README.md", b"---\n- a list\n---\n"))
    with pytest.raises(ValueError, match="cannot be read"):
        commit(api, repo, add("README.md", b"---\na: [\n---\n"))
    commit(api, repo, add("README.md", b"---\nlicense: mit\nwhen: 2021-01-01\nnan: .nan\n---\n# Card"))
    assert api.model_info(repo).card_data.to_dict()["license"] == "mit"
    path = api.hf_hub_download(repo, "README.md")
    assert ModelCard.load(path).data.license == "mit"


def test_repositories_vanish(api, repo):
    commit(api, repo, add("a.txt"))
    api.delete_repo(repo)
    assert not api.repo_exists(repo)
    api.delete_repo(repo, missing_ok=True)
    with pytest.raises(RepositoryNotFoundError):
        api.delete_repo(repo)


def test_space_settings_are_kept_and_removed(api, repo_id):
    api.create_repo(repo_id, repo_type="space", space_sdk="static")
    api.add_space_secret(repo_id, "TOKEN", "value-1", description="for the model")
    api.add_space_variable(repo_id, "COLOR", "red")
    assert api.get_space_secrets(repo_id)["TOKEN"].description == "for the model"
    api.delete_space_secret(repo_id, "TOKEN")
    api.delete_space_variable(repo_id, "COLOR")
    assert api.get_space_secrets(repo_id) == {} == api.get_space_variables(repo_id)
    assert api.request_space_hardware(repo_id, "cpu-upgrade", sleep_time=60).sleep_time == 60
    with pytest.raises(HfHubHTTPError, match="dev-mode"):
        api.enable_space_dev_mode(repo_id)


def test_what_the_embedded_hub_has_not_is_said_clearly(api, hub, repo):
    with pytest.raises(HfHubHTTPError, match="no discussions"):
        api.create_discussion(repo, "a question")
    with pytest.raises(HfHubHTTPError, match="no gated"):
        api.update_repo_settings(repo, gated="auto")
    answer = httpx.get(f"{hub.endpoint}/api/models/{repo}/xet-write-token/main")
    assert answer.status_code == 501
    assert "HF_HUB_DISABLE_XET=1" in answer.json()["error"]
    assert httpx.get(f"{hub.endpoint}/api/agent-harnesses").status_code == 404


def test_the_file_system_lists_globs_reads_and_writes(hub, tokens, repo):
    files = HfFileSystem(endpoint=hub.endpoint, token=tokens.alice, skip_instance_cache=True)
    with files.open(f"{repo}/notes/a.txt", "w") as file:
        file.write("0123456789")
    assert files.glob(f"{repo}/notes/*.txt") == [f"{repo}/notes/a.txt"]
    with files.open(f"{repo}/notes/a.txt", "rb", block_size=4) as file:
        file.seek(6)
        assert file.read(3) == b"678"
    assert files.ls(f"{repo}/notes", detail=False) == [f"{repo}/notes/a.txt"]
    files.rm(f"{repo}/notes/a.txt")
    assert not files.exists(f"{repo}/notes/a.txt")


def test_checks_of_existence_answer_truly(api, repo):
    assert api.repo_exists(repo)
    assert api.file_exists(repo, ".gitattributes")
    assert api.revision_exists(repo, "main")
    assert not api.repo_exists(f"{repo}-missing")
    assert not api.file_exists(repo, "missing.txt")
    assert not api.revision_exists(repo, "missing")


def test_a_card_is_a_page_with_the_repositorys_pictures_and_nothing_foreign(api, hub, repo):
    card = (
        "---\nlicense: mit\n---\n# Birds & <b>bees</b>\n\n![drawn](reel/newest.jpg) ![spy](//evil.example/x.png) "
        "![spy](https://evil.example/y.png)\n\n[code](model.py) [data](/datasets/org/x) [bad](javascript:alert(1))\n\n"
        "<script>alert(1)</script>\n\n| | |\n| --- | --- |\n| loss | 0.2713 |\n\n```python\nprint('<3')\n```\n"
    )
    commit(api, repo, add("README.md", card.encode()))
    answer = httpx.get(f"{hub.endpoint}/{repo}").raise_for_status()
    page = answer.text
    assert "<h1>Birds &amp; &lt;b&gt;bees&lt;/b&gt;</h1>" in page and "license: mit" in page
    assert f'<img src="/{repo}/resolve/main/reel/newest.jpg" alt="drawn">' in page and page.count("<img") == 1
    assert f'href="/{repo}/resolve/main/model.py"' in page and 'href="/datasets/org/x"' in page
    assert "<script" not in page and 'href="javascript' not in page and 'src="//' not in page
    assert "<td>0.2713</td>" in page and "print('&lt;3')" in page.replace("&#x27;", "'") and " UTC</td>" in page
    assert "default-src 'none'" in answer.headers["content-security-policy"]


def test_a_browser_is_told_on_a_page_what_a_client_is_told_in_json(hub):
    for address in ("/org/<b>missing</b>", "/no/such/page/here"):
        told = httpx.get(hub.endpoint + address)
        shown = httpx.get(hub.endpoint + address, headers={"Accept": "text/html,*/*;q=0.8"})
        assert told.status_code == shown.status_code in (401, 404) and told.json()["error"]
        assert "<b>missing" not in shown.text and "<h1>Not found</h1>" in shown.text
        assert shown.headers.get("x-error-code") == told.headers.get("x-error-code")
