"""The role of those who create in an organisation and change only what is theirs, and tokens that can do no more."""

import contextlib
import sqlite3

import pytest
from huggingface_hub.errors import HfHubHTTPError

from hub_tools.local_hub import LocalHub


@pytest.fixture(scope="module")
def contributor(hub):
    """A token of a contributor of the organization."""
    token = hub.create_user("contributor-dan")
    hub.add_member("org", "contributor-dan", "contributor")
    return token


def add(api, bucket):
    api.batch_bucket_files(bucket, add=[(b"text", "a.txt")])


def upload(api, repo):
    api.upload_file(path_or_fileobj=b"text", path_in_repo="a.txt", repo_id=repo)


def assert_changes_nothing(api, bucket, repo):
    """Fail unless all that would change these is refused."""
    for change in (
        lambda: api.batch_bucket_files(bucket, delete=["a.txt"]),
        lambda: api.delete_bucket(bucket),
        lambda: upload(api, repo),
        lambda: api.update_repo_settings(repo, private=True),
        lambda: api.delete_repo(repo),
    ):
        with pytest.raises(HfHubHTTPError) as refused:
            change()
        assert refused.value.response.status_code == 403
    with pytest.raises(OSError):
        add(api, bucket)


def test_a_contributor_changes_what_he_created_and_only_reads_the_rest(client, tokens, contributor, api, repo_id):
    dan, own, others = client(contributor), f"{repo_id[:80]}-1", f"{repo_id[:80]}-2"
    for owner, name in ((dan, own), (api, others)):
        owner.create_bucket(name, private=True)
        owner.create_repo(name, private=True)
        add(owner, name)
        upload(owner, name)
    assert [it.path for it in dan.list_bucket_tree(others)] == ["a.txt"]
    assert "a.txt" in dan.list_repo_files(others)
    assert_changes_nothing(dan, others, others)
    assert_changes_nothing(client(tokens.carol), own, own)
    add(client(tokens.bob), own)
    with pytest.raises(HfHubHTTPError, match="write is needed"):
        dan.run_job(image="python:3.12", command=["true"], namespace="org")
    dan.batch_bucket_files(own, delete=["a.txt"])
    dan.delete_bucket(own)
    dan.delete_repo(own)


def test_a_name_that_another_took_over_is_not_the_first_ones(client, contributor, api, repo_id):
    client(contributor).create_bucket(repo_id)
    api.delete_bucket(repo_id)
    api.create_bucket(repo_id)
    with pytest.raises(HfHubHTTPError, match="contributor-dan has role contributor in org, write is needed"):
        client(contributor).batch_bucket_files(repo_id, delete=["a.txt"])


def test_who_is_no_longer_a_contributor_may_no_longer_write(hub, client, repo_id):
    former = client(hub.create_user("former-fay"))
    hub.add_member("org", "former-fay", "contributor")
    former.create_bucket(repo_id)
    hub.add_member("org", "former-fay", "read")
    with pytest.raises(HfHubHTTPError, match="contributor is needed"):
        former.batch_bucket_files(repo_id, delete=["a.txt"])


@pytest.mark.parametrize("namespace", ["org", "alice"])
def test_a_contributors_token_changes_only_what_it_has_created_itself(hub, client, api, repo_id, namespace):
    name = repo_id.partition("/")[2][:80]
    first, second = (client(hub.create_token("alice", role="contributor", name=it)) for it in ("first", "second"))
    own, owners = f"{namespace}/{name}-1", f"{namespace}/{name}-2"
    for creator, created in ((first, own), (api, owners)):
        creator.create_bucket(created)
        creator.create_repo(created)
        add(creator, created)
        upload(creator, created)
    assert_changes_nothing(first, owners, owners)
    assert_changes_nothing(second, own, own)
    assert first.whoami()["auth"]["accessToken"]["role"] == "fineGrained"
    add(api, own)
    first.delete_bucket(own)


def test_a_root_from_before_contributors_takes_them(tmp_path):
    hub = LocalHub(tmp_path)
    hub.create_user("alice")
    hub.create_organization("org", members={"alice": "admin"})
    with contextlib.closing(sqlite3.connect(tmp_path / "hub.sqlite3", isolation_level=None)) as former:
        former.execute("PRAGMA writable_schema=ON")
        former.execute("UPDATE sqlite_master SET sql = replace(sql, ?, '')", ("'contributor', ",))
        former.execute("DROP TABLE creators")
        former.execute("PRAGMA writable_schema=RESET")
        with pytest.raises(sqlite3.IntegrityError, match="CHECK"):
            former.execute("UPDATE members SET role = 'contributor'")
    hub.create_user("dan")
    hub.add_member("org", "dan", "contributor")
    hub.create_token("dan", role="contributor")
    with contextlib.closing(sqlite3.connect(tmp_path / "hub.sqlite3")) as now:
        members = now.execute("SELECT * FROM members ORDER BY user").fetchall()
    assert members == [("org", "alice", "admin"), ("org", "dan", "contributor")]
