"""Commits to a Hub that is busy, down, or loses its answers: made once, and on top of what others have committed."""

import itertools
import os
import signal
import subprocess
import sys

import pytest
from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi
from huggingface_hub.errors import HfHubHTTPError
from stopping_proxy import StoppingProxy, Trouble

from hub_tools.endpoint import prepare_hub_client
from hub_tools.hub_client import NotTheHubError
from hub_tools.one_line_errors import explain_error
from hub_tools.publishing import commits
from hub_tools.publishing.commits import HeadMovedError, commit_on, commit_over

prepare_hub_client()

pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")

SHARD = bytes(range(256)) * 50
"""With zeros in it: stored as a large file."""


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr(commits, "PAUSES_SECONDS", (0.01,))


def added(**files):
    return [CommitOperationAdd(path_in_repo=name, path_or_fileobj=content) for name, content in files.items()]


def through(hub, trouble, commit, head, repo, operations, **options):
    """What a commit does of which the Hub's proxy makes trouble."""
    with StoppingProxy(hub.endpoint, trouble=trouble) as proxy:
        api = HfApi(endpoint=proxy.endpoint, token=hub.alice_token)
        made = commit(head, repo, operations, "Publish", api=api, **options)
    assert trouble.times == 0
    return made


def titles(api, repo):
    return [commit.title for commit in api.list_repo_commits(repo)][:-1]


@pytest.mark.parametrize("lands", [False, True], ids=["refused", "made"])
@pytest.mark.parametrize(
    "trouble",
    [
        dict(status=409, text='{"error": "Another commit operation is in progress for this repository."}'),
        dict(status=412, text='{"error": "A commit has happened since. Please refresh and try again."}'),
        dict(status=429, headers={"Retry-After": "0"}),
        dict(status=500, text="<html>Internal Server Error</html>"),
        dict(status=502, text=""),
        dict(status=504),
        dict(status=0),
        dict(status=200, text='{"success": true}'),
    ],
    ids=lambda trouble: str(trouble["status"]),
)
def test_a_commit_is_made_once_whatever_its_first_answer_was(hub, api, repo, trouble, lands):
    head = api.model_info(repo).sha
    operations = [*added(small=b"text", large=SHARD), CommitOperationDelete(path_in_repo=".gitattributes")]
    made = through(hub, Trouble(**trouble, lands=lands), commit_on, head, repo, operations)
    assert made.oid == api.model_info(repo).sha
    assert made.url.endswith(f"/{repo}/commit/{made.oid}")
    assert titles(api, repo) == ["Publish"]
    assert api.list_repo_files(repo) == ["large", "small"]


@pytest.mark.parametrize("path", ["/preupload/", "info/lfs/objects/batch", "/validate-yaml"])
def test_what_precedes_a_commit_is_tried_again_too(hub, api, repo, path):
    operations = [*added(large=SHARD), CommitOperationAdd(path_in_repo="README.md", path_or_fileobj=b"# A model\n")]
    trouble = Trouble(status=409, path=path)
    through(hub, trouble, commit_on, api.model_info(repo).sha, repo, operations)
    assert titles(api, repo) == ["Publish"]


@pytest.mark.parametrize("status", [0, 412, 503])
@pytest.mark.parametrize("lands", [False, True], ids=["before", "after"])
def test_what_others_commit_meanwhile_stays(hub, api, repo, status, lands):
    head = api.model_info(repo).sha
    other = lambda: api.create_commit(repo, added(theirs=b"theirs"), commit_message="Theirs")  # noqa: E731
    made = through(hub, Trouble(status=status, lands=lands, before=other), commit_over, head, repo, added(ours=b"ours"))
    assert titles(api, repo) == (["Theirs", "Publish"] if lands else ["Publish", "Theirs"])
    assert api.list_repo_files(repo, revision=made.oid) == [".gitattributes", "ours", *([] if lands else ["theirs"])]
    assert api.list_repo_files(repo) == [".gitattributes", "ours", "theirs"]


def test_a_file_that_others_change_meanwhile_is_not_replaced(hub, api, repo):
    head = api.create_commit(repo, added(card=b"first", old=b"old"), commit_message="First").oid
    number = itertools.count()
    other = lambda: api.create_commit(repo, added(card=b"%d" % next(number)), commit_message="Theirs")  # noqa: E731
    with pytest.raises(ValueError, match=r"card of .* was changed by somebody else while this was published: look at"):
        through(hub, Trouble(before=other), commit_over, head, repo, added(card=b"ours"))
    # What they have changed to the same, or deleted as well, is no conflict.
    head = api.model_info(repo).sha
    change = lambda: api.create_commit(  # noqa: E731
        repo, [*added(card=b"ours"), CommitOperationDelete(path_in_repo="old")], commit_message="The same"
    )
    operations = [*added(card=b"ours", more=b"more"), CommitOperationDelete(path_in_repo="old")]
    through(hub, Trouble(status=412, before=change), commit_over, head, repo, operations)
    assert titles(api, repo) == ["Publish", "The same", "Theirs", "First"]
    assert api.list_repo_files(repo) == [".gitattributes", "card", "more"]


def test_a_commit_on_exactly_one_head_is_not_made_on_another(hub, api, repo):
    head = api.model_info(repo).sha
    other = lambda: api.create_commit(repo, added(ours=b"else"), commit_message="Publish")  # noqa: E731
    with pytest.raises(HeadMovedError, match=f"{repo} has moved on from {head}"):
        through(hub, Trouble(before=other), commit_on, head, repo, added(ours=b"ours"))
    assert titles(api, repo) == ["Publish"]


def test_a_hub_that_stays_busy_is_given_up_and_one_that_asks_for_an_hour_at_once(hub, api, repo, caplog):
    head = api.model_info(repo).sha
    always = Trouble(times=float("inf"))
    with StoppingProxy(hub.endpoint, trouble=always) as proxy:
        client = HfApi(endpoint=proxy.endpoint, token=hub.alice_token)
        with pytest.raises(HfHubHTTPError) as raised:
            commit_on(head, repo, added(a=b"a"), "Publish", api=client, limit_seconds=0.2)
        assert "answers 503: busy. Try again in a few minutes" in explain_error(raised.value)
        assert 0 < caplog.text.count(f"{repo} took no commit (The Hub at ") < 21
        always.status, always.headers = 429, {"Retry-After": "3600"}
        with pytest.raises(HfHubHTTPError) as raised:
            commit_on(head, repo, added(a=b"a"), "Publish", api=client)
        assert "answers 429: busy. Try again in 3600 s" in explain_error(raised.value)
    assert titles(api, repo) == []


@pytest.mark.parametrize(
    ("trouble", "error"),
    [
        (dict(status=403, text='{"error": "read only"}'), HfHubHTTPError),
        (dict(status=400, text='{"error": "no"}'), HfHubHTTPError),
        (dict(status=507, text='{"error": "full"}'), HfHubHTTPError),
        (dict(status=200, text="<html>log in</html>"), NotTheHubError),
    ],
    ids=lambda it: str(it.get("status")) if isinstance(it, dict) else "",
)
def test_a_refusal_is_final(hub, api, repo, trouble, error):
    with pytest.raises(error):
        through(hub, Trouble(**trouble), commit_on, api.model_info(repo).sha, repo, added(a=b"a"))
    assert titles(api, repo) == []


PUBLISH = "from hub_tools.command_line import main; main()"


def test_ctrl_c_ends_the_waiting_and_a_line_says_what_for(hub, api, repo_id, tmp_path):
    (tmp_path / "file.txt").write_text("content")
    with StoppingProxy(hub.endpoint, trouble=Trouble(headers={"Retry-After": "100"}, times=float("inf"))) as proxy:
        program = subprocess.Popen(
            [sys.executable, "-c", PUBLISH, "publish", "folder", str(tmp_path), repo_id],
            env={**os.environ, **hub.environment(hub.alice_token), "HF_ENDPOINT": proxy.endpoint},
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        with program:
            line = next(line for line in program.stderr if "Retrying" in line)
            program.send_signal(signal.SIGINT)
            assert program.wait(30) == 130
            rest = program.stderr.read()
    assert f"{repo_id} took no commit (The Hub at {proxy.endpoint} answers 503: busy" in line
    assert line.strip().endswith("Retrying in 100 s.")
    assert "Traceback" not in rest and "stopped by Ctrl-C" in rest


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/api/repos/create", 409),
        ("/api/repos/create", 0),
        ("/api/models/", 503),
        ("/preupload/", 429),
        ("/commit/", 0),
    ],
)
def test_a_whole_publication_outlives_trouble_with_any_request(hub, api, repo_id, run_client, tmp_path, path, status):
    (tmp_path / "README.md").write_text("# A model\n")
    (tmp_path / "weights.safetensors").write_bytes(SHARD)
    with StoppingProxy(hub.endpoint, trouble=Trouble(path=path, status=status)) as proxy:
        said = run_client(
            "hub-tools", "publish", "folder", tmp_path, repo_id, token=hub.alice_token, HF_ENDPOINT=proxy.endpoint
        )
    assert said.stdout.strip().endswith(api.model_info(repo_id).sha)
    assert api.list_repo_files(repo_id) == [".gitattributes", "README.md", "weights.safetensors"]
