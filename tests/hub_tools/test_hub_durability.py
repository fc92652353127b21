"""The embedded Hub keeps commits whole when it is killed, when the disk is full, and when two commit at once."""

import multiprocessing
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import huggingface_hub
import pytest
from huggingface_hub import CommitOperationAdd
from huggingface_hub.errors import HfHubHTTPError

from hub_tools.local_hub import LocalHub
from hub_tools.local_hub.store.consistency import check_consistency, remove_unused

pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")

LARGE_BYTES = 300_000


def state(number):
    """The whole content of the repository after commit `number`."""
    fill = number % 256
    large = {f"large/{index}.bin": bytes([fill, index, 0]) * (LARGE_BYTES // 3) for index in range(3)}
    return {**large, **{f"small/{index}.txt": f"{number} {index}".encode() for index in range(5)}}


def commit_state(endpoint, token, number):
    api = huggingface_hub.HfApi(endpoint=endpoint, token=token)
    operations = [CommitOperationAdd(path_in_repo=path, path_or_fileobj=data) for path, data in state(number).items()]
    return api.create_commit("alice/run", operations, commit_message=f"state {number}", num_threads=3)


def downloaded_state(endpoint, token):
    headers = {"Authorization": f"Bearer {token}"}
    api = huggingface_hub.HfApi(endpoint=endpoint, token=token)
    commit = api.model_info("alice/run").sha
    files = [path for path in api.list_repo_files("alice/run", revision=commit) if path != ".gitattributes"]
    with httpx.Client(headers=headers) as client:
        found = {path: client.get(f"{endpoint}/alice/run/resolve/{commit}/{path}").content for path in files}
    return found, [item.title for item in api.list_repo_commits("alice/run")]


def start_committer(hub, token, number):
    """A client in a process of its own: killed with the Hub, it cannot try again behind our back."""
    process = multiprocessing.get_context("fork").Process(target=commit_state, args=(hub.endpoint, token, number))
    process.start()
    return process


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_hub_killed_at_any_moment_of_a_commit_shows_the_old_state_or_the_new_one(tmp_path):
    moments = random.Random(0)
    with LocalHub(tmp_path / "hub") as hub:
        token = hub.create_user("alice")
        huggingface_hub.HfApi(endpoint=hub.endpoint, token=token).create_repo("alice/run")
        begin = time.monotonic()
        commit_state(hub.endpoint, token, 0)
        whole = time.monotonic() - begin
        shown, outcomes = 0, set()
        for number in range(1, 7):
            committer = start_committer(hub, token, number)
            # A moment within the commit, spread over all of its phases: uploads, commit body, transaction.
            threading.Event().wait(whole * (number - moments.random()) / 5)
            hub.kill()
            committer.kill()
            committer.join()
            hub.start()
            found, titles = downloaded_state(hub.endpoint, token)
            assert found in (state(shown), state(number)), f"a mixture after commit {number}"
            outcomes.add(found == state(number))
            shown = number if found == state(number) else shown
            assert titles[0] == f"state {shown}"
            assert check_consistency(hub.root).problems == ()
            assert list((hub.root / "incoming").iterdir()) == []
        commit_state(hub.endpoint, token, 99)
        hub.kill()
        hub.start()
        assert downloaded_state(hub.endpoint, token)[0] == state(99)
        assert False in outcomes, "no kill hit a commit in flight: the moments are too late"
    assert check_consistency(tmp_path / "hub").problems == ()


@pytest.mark.skipif(sys.platform != "linux", reason="limits the size of files of one process")
def test_a_full_disk_gives_507_and_loses_nothing(tmp_path):
    # A limit on the size of files makes writes fail as a full disk does, without needing a small disk.
    limit = 4 << 20
    code = (
        "import os, resource, sys\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))\n"
        "os.execv(sys.executable, [sys.executable, '-m', 'hub_tools.local_hub', '--root', sys.argv[1]])\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "hub")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    with process:
        endpoint = process.stdout.readline().strip()
        token = LocalHub(tmp_path / "hub").create_user("alice")
        api = huggingface_hub.HfApi(endpoint=endpoint, token=token)
        api.create_repo("alice/run")
        kept = commit_state(endpoint, token, 0)

        small = [CommitOperationAdd(path_in_repo=f"{index}.txt", path_or_fileobj=b"x" * 1000) for index in range(5000)]
        with pytest.raises(HfHubHTTPError, match="No space left") as full:
            api.create_commit("alice/run", small, commit_message="does not fit")
        assert full.value.response.status_code == 507
        assert "Nothing was changed" in full.value.response.json()["error"]

        large = os.urandom(limit + 1)
        with pytest.raises(RuntimeError) as full:
            api.upload_file(path_or_fileobj=large, path_in_repo="large.bin", repo_id="alice/run")
        assert full.value.__cause__.response.status_code == 507

        assert api.model_info("alice/run").sha == kept.oid
        assert downloaded_state(endpoint, token)[0] == state(0)
        assert commit_state(endpoint, token, 1).oid != kept.oid
        process.terminate()
    assert check_consistency(tmp_path / "hub").problems == ()
    assert list((tmp_path / "hub" / "incoming").iterdir()) == []


def test_of_two_commits_for_one_parent_exactly_one_succeeds(api, repo):
    for attempt in range(3):
        parent = api.model_info(repo).sha
        together = threading.Barrier(4)

        def commit(number, attempt=attempt, parent=parent, together=together):
            addition = CommitOperationAdd(path_in_repo=f"{attempt}.txt", path_or_fileobj=str(number).encode())
            together.wait()
            try:
                api.create_commit(repo, [addition], commit_message=str(number), parent_commit=parent)
            except HfHubHTTPError as error:
                return error.response.status_code
            return number

        with ThreadPoolExecutor(4) as pool:
            outcomes = list(pool.map(commit, range(4)))
        (winner,) = [outcome for outcome in outcomes if outcome != 412]
        assert api.list_repo_commits(repo)[0].title == str(winner)
    assert len(api.list_repo_commits(repo)) == 4


def test_concurrent_commits_without_a_parent_all_arrive(api, repo):
    def commit(number):
        addition = CommitOperationAdd(path_in_repo=f"{number}.bin", path_or_fileobj=bytes([number, 0]) * 2000)
        return api.create_commit(repo, [addition], commit_message=str(number)).oid

    with ThreadPoolExecutor(8) as pool:
        oids = set(pool.map(commit, range(16)))
    assert len(oids) == 16
    assert {f"{number}.bin" for number in range(16)} < set(api.list_repo_files(repo))


def make_hub(root):
    """A stopped Hub with one repository, and the digest of its one LFS content."""
    with LocalHub(root) as hub:
        api = huggingface_hub.HfApi(endpoint=hub.endpoint, token=hub.create_user("alice"))
        api.create_repo("alice/run")
        api.upload_file(path_or_fileobj=b"\0" * 5000, path_in_repo="a.bin", repo_id="alice/run")
        api.create_repo("alice/gone")
        api.upload_file(path_or_fileobj=b"\1" * 5000, path_in_repo="b.bin", repo_id="alice/gone")
        api.delete_repo("alice/gone")


def test_the_check_names_missing_damaged_and_unused_contents(tmp_path):
    make_hub(tmp_path / "sound")
    report = check_consistency(tmp_path / "sound")
    assert (report.problems, report.num_commits, report.num_contents, len(report.unused)) == ((), 2, 2, 1)
    (large,) = [path for path in (tmp_path / "sound/objects").glob("??/??/*") if path.stat().st_size == 5000
                and path.name not in report.unused]  # fmt: skip
    relative = large.relative_to(tmp_path / "sound")

    for name, harm, words in (
        ("missing", lambda path: path.unlink(), "is missing"),
        ("cut", lambda path: path.write_bytes(b"\0" * 4999), "has 4999 bytes, expected 5000"),
        ("bent", lambda path: path.write_bytes(b"\2" * 5000), "is damaged"),
    ):
        shutil.copytree(tmp_path / "sound", tmp_path / name)
        harm(tmp_path / name / relative)
        (problem,) = check_consistency(tmp_path / name).problems
        assert problem == f"content {large.name} {words}"

    assert remove_unused(tmp_path / "sound") == 1
    assert check_consistency(tmp_path / "sound").unused == ()
    with LocalHub(tmp_path / "sound") as hub:
        assert len(httpx.get(f"{hub.endpoint}/alice/run/resolve/main/a.bin").content) == 5000
        with pytest.raises(ValueError, match="Another Hub already serves"):
            remove_unused(tmp_path / "sound")


def test_checking_a_folder_that_is_no_hub_says_so(tmp_path):
    with pytest.raises(ValueError, match="is not the root of a Hub"):
        check_consistency(tmp_path)
    assert list(tmp_path.iterdir()) == []
