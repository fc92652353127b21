"""Who may do what on the embedded Hub."""

import httpx
import pytest
from huggingface_hub import CommitOperationAdd
from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError

pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")


@pytest.fixture
def private_repo(api, repo_id):
    """A private model repository with one file."""
    api.create_repo(repo_id, private=True)
    api.upload_file(path_or_fileobj=b"secret", path_in_repo="a.txt", repo_id=repo_id)
    return repo_id


def write(api, repo):
    addition = CommitOperationAdd(path_in_repo="b.txt", path_or_fileobj=b"text")
    return api.create_commit(repo, [addition], commit_message="write")


def test_a_private_repository_looks_missing_to_strangers(hub, client, tokens, private_repo):
    for stranger, status in ((client(False), 401), (client(tokens.eve), 404)):
        with pytest.raises(RepositoryNotFoundError) as hidden:
            stranger.model_info(private_repo)
        with pytest.raises(RepositoryNotFoundError) as missing:
            stranger.model_info(f"{private_repo}-missing")
        assert hidden.value.response.status_code == missing.value.response.status_code == status
        hidden_body, missing_body = hidden.value.response.text, missing.value.response.text
        assert hidden_body.replace(private_repo, "") == missing_body.replace(f"{private_repo}-missing", "")
        with pytest.raises(RepositoryNotFoundError):
            stranger.hf_hub_download(private_repo, "a.txt")
        with pytest.raises(RepositoryNotFoundError):
            list(stranger.list_repo_tree(private_repo))
        assert private_repo not in [model.id for model in stranger.list_models(author="org")]
    assert private_repo not in httpx.get(hub.endpoint).text
    assert httpx.get(f"{hub.endpoint}/{private_repo}").status_code == 401
    assert httpx.get(f"{hub.endpoint}/{private_repo}/resolve/main/a.txt").status_code == 401


def test_every_member_reads_a_private_repository(client, tokens, private_repo):
    for token in (tokens.alice, tokens.alice_read, tokens.bob, tokens.carol):
        assert client(token).model_info(private_repo).private is True
        assert private_repo in [model.id for model in client(token).list_models(author="org")]


def test_write_needs_a_token_a_role_and_a_write_token(client, tokens, repo):
    with pytest.raises(HfHubHTTPError) as anonymous:
        write(client(False), repo)
    assert anonymous.value.response.status_code == 401
    for token, words in (
        (tokens.carol, "has role read"),
        (tokens.eve, "has role none"),
        (tokens.alice_read, "may only read"),
    ):
        with pytest.raises(HfHubHTTPError, match=words) as refused:
            write(client(token), repo)
        assert refused.value.response.status_code == 403
    assert write(client(tokens.bob), repo).oid


def test_only_admins_delete_and_publish(client, tokens, private_repo):
    bob = client(tokens.bob)
    for forbidden in (
        lambda: bob.delete_repo(private_repo),
        lambda: bob.update_repo_settings(private_repo, private=False),
    ):
        with pytest.raises(HfHubHTTPError, match="admin is needed"):
            forbidden()
    client(tokens.alice).update_repo_settings(private_repo, private=False)
    assert client(False).model_info(private_repo).private is False


def test_nobody_creates_in_a_foreign_or_missing_namespace(client, tokens):
    for name in ("org/mine", "alice/mine", "nobody-there/mine"):
        with pytest.raises(HfHubHTTPError, match="contributor is needed"):
            client(tokens.eve).create_repo(name)
    with pytest.raises(HfHubHTTPError) as anonymous:
        client(False).create_repo("org/mine")
    assert anonymous.value.response.status_code == 401


def test_every_changing_request_is_refused_to_anonymous_callers(hub, repo):
    model, space = f"/api/models/{repo}", f"/api/spaces/{repo}"
    requests = [
        ("POST", "/api/repos/create", {"name": "x", "organization": "org"}),
        ("DELETE", "/api/repos/delete", {"name": repo}),
        ("PUT", f"{model}/settings", {"private": True}),
        ("POST", f"{model}/preupload/main", {"files": []}),
        ("POST", f"{model}/commit/main", {}),
        ("POST", f"{model}/branch/x", {}),
        ("DELETE", f"{model}/branch/x", {}),
        ("POST", f"{model}/tag/main", {"tag": "x"}),
        ("DELETE", f"{model}/tag/x", {}),
        ("POST", f"/{repo}.git/info/lfs/objects/batch", {"operation": "upload", "objects": []}),
        ("POST", f"{space}/secrets", {"key": "a", "value": "b"}),
        ("POST", f"{space}/variables", {"key": "a", "value": "b"}),
        ("DELETE", f"{space}/secrets", {"key": "a"}),
        ("POST", f"{space}/hardware", {"flavor": "t4-small"}),
    ]
    for method, path, body in requests:
        answer = httpx.request(method, hub.endpoint + path, json=body)
        assert answer.status_code == 401, (method, path, answer.text)


def test_an_unknown_token_is_refused_everywhere(hub, client, repo):
    for header in ("Bearer hf_wrong", "Bearer", "Basic YWxpY2U6eA==", "nonsense"):
        answer = httpx.get(f"{hub.endpoint}/api/models/{repo}", headers={"Authorization": header})
        assert answer.status_code == 401
        assert answer.headers["x-error-message"] == "Invalid credentials in Authorization header"
    with pytest.raises(HfHubHTTPError, match="Invalid user token"):
        client("hf_wrong").whoami()


def test_secrets_of_a_space_cannot_be_read_and_members_alone_see_their_names(hub, api, client, tokens, repo_id):
    api.create_repo(repo_id, repo_type="space", space_sdk="static")
    api.add_space_secret(repo_id, "KEY", "value-nobody-may-read")
    headers = {"Authorization": f"Bearer {tokens.alice}"}
    for path in ("/secrets", "/variables", "", "/runtime"):
        answer = httpx.get(f"{hub.endpoint}/api/spaces/{repo_id}{path}", headers=headers)
        assert answer.status_code == 200
        assert "value-nobody-may-read" not in answer.text
    for stranger in (False, tokens.eve, tokens.carol):
        with pytest.raises(HfHubHTTPError):
            client(stranger).get_space_secrets(repo_id)


def test_tokens_and_secret_values_are_nowhere_in_clear(hub, api, tokens, repo_id):
    api.create_repo(repo_id, repo_type="space", space_sdk="static")
    api.add_space_secret(repo_id, "KEY", "value-of-the-secret")
    kept = {path: path.read_bytes() for path in hub.root.rglob("*") if path.is_file()}
    assert any(path.name == "hub.sqlite3" for path in kept)
    for token in (tokens.alice, tokens.alice_read, tokens.eve):
        assert [path for path, content in kept.items() if token.encode() in content] == []
    holders = [path for path, content in kept.items() if b"value-of-the-secret" in content]
    assert [path.parent.name for path in holders] == ["space_secrets"]
    assert holders[0].stat().st_mode & 0o077 == 0
    assert hub.root.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda hub: hub.create_user("alice"), "taken by a user"),
        (lambda hub: hub.create_user("ORG"), "taken by an org"),
        (lambda hub: hub.create_user("a/b"), "Invalid user name"),
        (lambda hub: hub.create_user("datasets"), "reserved"),
        (lambda hub: hub.create_user("zoe", token_role="root"), "token role 'root'"),
        (lambda hub: hub.create_organization("org"), "taken by an org"),
        (lambda hub: hub.create_token("nobody-there"), "hub-tools user create nobody-there"),
        (lambda hub: hub.add_member("nowhere", "alice"), "hub-tools org create nowhere"),
        (lambda hub: hub.add_member("org", "alice", "owner"), "Invalid role 'owner'"),
    ],
)
def test_accounts_that_cannot_be_are_refused_with_the_cure(hub, make, words):
    with pytest.raises(ValueError, match=words):
        make(hub)
