"""Pull requests on the embedded Hub, as the Hub's own client opens, reads, closes and merges them."""

import pytest
from huggingface_hub import CommitOperationAdd, CommitOperationDelete
from huggingface_hub.errors import HfHubHTTPError

from hub_tools.local_hub.store.pull_requests import PER_PAGE


def proposed(api, repo, path="a.txt", content=b"one\n"):
    addition = CommitOperationAdd(path, content)
    return api.create_commit(repo, [addition], commit_message=f"Add {path}", create_pr=True).pr_num


def test_a_stranger_s_pull_request_changes_nothing_until_a_writer_merges_it(api, client, tokens, repo):
    stranger = client(tokens.eve)
    num = proposed(stranger, repo)
    (listed,) = api.get_repo_discussions(repo, discussion_type="pull_request", discussion_status="open")
    assert (listed.num, listed.author, listed.status) == (num, "stranger-eve", "open")
    details = api.get_discussion_details(repo, num)
    assert (
        details.diff
        == "diff --git a/a.txt b/a.txt\nnew file mode 100644\n--- /dev/null\n+++ b/a.txt\n@@ -0,0 +1 @@\n+one\n"
    )
    assert not api.file_exists(repo, "a.txt") and api.file_exists(repo, "a.txt", revision=f"refs/pr/{num}")
    assert [one.name for one in api.list_repo_refs(repo).branches] == ["main"]
    with pytest.raises(HfHubHTTPError, match="write is needed"):
        stranger.merge_pull_request(repo, num)
    with pytest.raises(HfHubHTTPError, match="may only read"):
        proposed(client(tokens.alice_read), repo)
    api.comment_discussion(repo, num, "thanks")
    api.upload_file(path_or_fileobj=b"", path_in_repo="other.txt", repo_id=repo)
    api.merge_pull_request(repo, num)
    merged = api.get_discussion_details(repo, num)
    assert (merged.status, merged.merge_commit_oid) == ("merged", api.repo_info(repo).sha)
    assert [event.type for event in merged.events] == ["comment", "commit", "comment", "status-change"]
    assert api.file_exists(repo, "a.txt") and api.file_exists(repo, "other.txt")


def test_pull_requests_are_listed_a_page_at_a_time_and_closed_by_author_or_writer(api, client, tokens, repo):
    stranger = client(tokens.eve)
    numbers = [proposed(stranger, repo, f"{number}.txt") for number in range(PER_PAGE + 2)]
    assert [one.num for one in stranger.get_repo_discussions(repo)] == numbers[::-1]
    stranger.change_discussion_status(repo, numbers[0], "closed")
    api.change_discussion_status(repo, numbers[1], "closed", comment="no")
    open_ones = api.get_repo_discussions(repo, author="stranger-eve", discussion_status="open")
    assert [one.num for one in open_ones] == numbers[:1:-1]
    with pytest.raises(HfHubHTTPError, match="write is needed"):
        client(tokens.carol).change_discussion_status(repo, numbers[2], "closed")


def test_a_pull_request_whose_file_main_has_changed_conflicts(api, client, tokens, repo):
    num = proposed(client(tokens.eve), repo)
    api.create_commit(repo, [CommitOperationAdd("a.txt", b"two\n")], commit_message="Add a file")
    assert api.get_discussion_details(repo, num).conflicting_files == ["a.txt"]
    with pytest.raises(HfHubHTTPError, match="other changes of a"):
        api.merge_pull_request(repo, num)
    api.create_commit(repo, [CommitOperationDelete("a.txt")], commit_message="Delete it")
    api.merge_pull_request(repo, num)
    assert api.file_exists(repo, "a.txt")
