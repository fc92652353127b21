"""The embedded Hub fails, limits and counts as a test tells it, with the real client on the other side."""

import contextlib
import json
import random
import time
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

import httpx
import httpx2
import pytest
from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.utils import parse_ratelimit_headers

from hub_tools.local_hub import HubControls, HubFault, LocalHub, RateLimits

pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")


@pytest.fixture(scope="module")
def controlled(tmp_path_factory):
    """A Hub that fails when it is told to, with its user alice."""
    with LocalHub(tmp_path_factory.mktemp("controlled"), controlled=True) as hub:
        hub.alice_token = hub.create_user("alice")
        yield hub


@pytest.fixture
def uncontrolled(tmp_path):
    """A Hub that nobody tells to fail."""
    with LocalHub(tmp_path) as hub:
        yield hub


@pytest.fixture
def controls(controlled):
    """What makes it fail; after the test it is well again."""
    yield controlled.controls
    controlled.controls.clear()


@pytest.fixture
def alice(controlled):
    """A client of that Hub."""
    return HfApi(endpoint=controlled.endpoint, token=controlled.alice_token)


@pytest.fixture
def shelf(alice, repo_id):
    """A fresh bucket on it."""
    return alice.create_bucket(repo_id.replace("org/", "alice/")).bucket_id


def add(api, bucket, content=b"text"):
    api.batch_bucket_files(bucket, add=[(content, "a.txt")])


def paths(api, bucket):
    return [it.path for it in api.list_bucket_tree(bucket)]


def test_a_refusal_strikes_as_many_requests_as_it_is_to_and_no_others(controlled, controls, shelf):
    def ask(token, path=f"/api/buckets/{shelf}"):
        return httpx.get(controlled.endpoint + path, headers={"Authorization": f"Bearer {token}"} if token else {})

    bob = controlled.token_of("bob")
    controls.refuse(503, 2, path="/api/buckets/alice/*", user="alice", retry_after=6.5)
    assert ask(bob).status_code == ask(None).status_code == 200
    assert ask(controlled.alice_token, "/api/models").status_code == 200
    refused = ask(controlled.alice_token)
    assert refused.status_code == 503 and refused.headers["retry-after"] == "7" and "told to" in refused.json()["error"]
    assert [ask(controlled.alice_token).status_code for _ in range(2)] == [503, 200]
    controls.refuse(500, 1, user="")
    assert [ask(bob).status_code, ask(None).status_code, ask(None).status_code] == [200, 500, 200]


def test_the_client_waits_out_a_refusal(controls, alice, shelf):
    controls.refuse(429, 1, path=f"/api/buckets/{shelf}/batch")
    add(alice, shelf)
    assert paths(alice, shelf) == ["a.txt"]


def test_an_answer_comes_late(controls, alice):
    controls.answer_late(0.3, path="/api/whoami-v2")
    controls.answer_late(0.2, user="alice")
    began = time.monotonic()
    alice.whoami()
    assert time.monotonic() - began >= 0.5


@pytest.mark.parametrize("path", ["/xet/v1/xorbs/*", "/xet/v1/shards", "/api/buckets/*/batch"])
def test_the_client_sends_again_what_broke_in_the_middle(controlled, controls, alice, shelf, path):
    controls.break_uploads(1, path=path, user="alice")
    add(alice, shelf, content := path.encode() * 1000)
    read = httpx.get(f"{controlled.endpoint}/buckets/{shelf}/resolve/a.txt")
    assert read.content == content


def test_nothing_is_seen_of_an_upload_that_breaks_and_all_of_one_whose_answer_is_lost(controls, alice, shelf):
    add(alice, shelf)
    (file,) = alice.list_bucket_tree(shelf)
    url, headers = f"{alice.endpoint}/api/buckets/{shelf}/batch", {"Authorization": f"Bearer {alice.token}"}

    def upload(path, length):
        one = dict(type="addFile", path=path, xetHash=file.xet_hash, mtime=1)
        with pytest.raises(httpx.TransportError):
            httpx.post(url, content=json.dumps(one).ljust(length), headers=headers)

    for length in (0, 5_000_000):
        controls.break_uploads(1, path="/api/buckets/*")
        upload("broken.txt", length)
        assert paths(alice, shelf) == ["a.txt"]
    controls.lose_answers(1, path="*/batch")
    upload("lost.txt", 0)
    assert paths(alice, shelf) == ["a.txt", "lost.txt"]


def test_a_broken_upload_to_a_repository_is_sent_again(controls, alice, repo_id):
    repo = alice.create_repo(repo_id.replace("org/", "alice/")).repo_id
    controls.break_uploads(1, path="/lfs/*")
    alice.upload_file(path_or_fileobj=bytes(100_000), path_in_repo="a.bin", repo_id=repo)
    assert "a.bin" in alice.list_repo_files(repo)


def test_a_hub_that_is_away_is_back_after_that_time(controlled, controls, alice):
    began = time.monotonic()
    controls.go_away(0.5)
    with pytest.raises(httpx.TransportError):
        httpx.get(controlled.endpoint)
    answers = set()
    while not answers:
        with contextlib.suppress(httpx.TransportError):
            answers.add(httpx.get(controlled.endpoint).status_code)
    assert time.monotonic() - began >= 0.5 and answers == {200}
    controls.go_away(3600.0, status=503)
    assert httpx.get(controlled.endpoint).status_code == 503
    controls.clear()
    assert alice.whoami()["name"] == "alice"


def test_a_clock_that_is_off_dates_answers_and_files(controlled, controls, alice, shelf):
    controls.set_clock(-7200.0)
    add(alice, shelf)
    controls.set_clock(3600.0)
    url, now = f"{controlled.endpoint}/buckets/{shelf}/resolve/a.txt", datetime.now(UTC)
    answer = httpx.get(url)
    (date,) = answer.headers.get_list("date")
    dated, modified = (parsedate_to_datetime(it) for it in (date, answer.headers["last-modified"]))
    assert abs(dated - now - timedelta(hours=1)) < timedelta(minutes=2)
    assert abs(modified - now + timedelta(hours=2)) < timedelta(minutes=2)
    (file,) = alice.list_bucket_tree(shelf)
    assert file.uploaded_at.replace(microsecond=0) == modified
    controls.clear()
    assert abs(parsedate_to_datetime(httpx.head(url).headers["date"]) - now) < timedelta(minutes=2)


def test_a_full_bucket_takes_no_file_and_gives_them_up(controls, alice, shelf):
    add(alice, shelf)
    controls.fill_bucket(shelf)
    with pytest.raises(HfHubHTTPError, match="Storage limit reached") as refused:
        alice.batch_bucket_files(shelf, add=[(b"more", "b.txt")])
    assert refused.value.response.status_code == 403
    alice.batch_bucket_files(shelf, delete=["a.txt"])
    assert paths(alice, shelf) == []


def test_requests_are_counted_by_user_and_kind(controlled, controls, shelf):
    gail = HfApi(endpoint=controlled.endpoint, token=controlled.token_of("gail"))
    own = gail.create_bucket("gail/counted").bucket_id
    controls.reset_request_counts()
    add(gail, own, random.Random(0).randbytes(100))
    for token in (gail.token, None):
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        httpx.get(f"{controlled.endpoint}/buckets/{own}/resolve/a.txt", headers=headers)
    httpx.get(f"{controlled.endpoint}/api/models", headers={"Authorization": "Bearer hf_forged"})
    counted = controls.request_counts()
    anonymous = counted.pop("")
    assert (anonymous["resolvers"], anonymous["api"]) == (1, 1)
    xet = counted["gail"].pop("xet")
    assert counted == {"gail": {"api": 2, "resolvers": 1}} and xet >= 2
    assert controls.reset_request_counts()["gail"]["api"] == 2 and controls.request_counts() == {}


def test_only_the_control_token_controls_and_only_a_controlled_hub(uncontrolled, controlled, controls):
    for endpoint, token, status in (
        (controlled.endpoint, controlled.alice_token, 403),
        (controlled.endpoint, "x", 403),
        (uncontrolled.endpoint, controlled.control_token, 404),
    ):
        with pytest.raises(httpx2.HTTPStatusError) as refused:
            HubControls(endpoint, token).request_counts()
        assert refused.value.response.status_code == status
    with pytest.raises(ValueError, match="controlled=True"):
        uncontrolled.controls  # noqa: B018
    url, headers = f"{controlled.endpoint}/api/hub-controls", {"Authorization": f"Bearer {controlled.control_token}"}
    for body in (
        dict(kind="explode"), dict(kind="late", seconds=-1), dict(kind="refuse", status=200),
        dict(kind="refuse", num_requests=0), dict(kind="away", lasts_seconds=1e12), dict(path="*"), [],
    ):  # fmt: skip
        assert httpx.post(f"{url}/faults", json=body, headers=headers).status_code == 400, body
    assert httpx.put(f"{url}/clock", json=dict(offset_seconds=1e12), headers=headers).status_code == 400
    for _ in range(100):
        controls.add(HubFault(kind="late", path="/nowhere"))
    with pytest.raises(httpx2.HTTPStatusError, match="400"):
        controls.answer_late(1.0)


def test_who_asks_too_often_is_told_when_to_ask_again(tmp_path):
    limits = RateLimits(api_requests=4, resolver_requests=6, anonymous_api_requests=2, window_seconds=5)
    with LocalHub(tmp_path, rate_limits=limits) as hub:
        alice, bob = (HfApi(endpoint=hub.endpoint, token=hub.create_user(name)) for name in ("alice", "bob"))

        def ask(token=None, path="/api/models"):
            return httpx.get(hub.endpoint + path, headers={"Authorization": f"Bearer {token}"} if token else {})

        for remaining in (3, 2, 1, 0):
            answer = ask(alice.token)
            found = parse_ratelimit_headers(answer.headers)
            assert (answer.status_code, found.resource_type, found.remaining, found.limit) == (200, "api", remaining, 4)
            assert found.window_seconds == 5 and 1 <= found.reset_in_seconds <= 5
        over = ask(alice.token)
        assert over.status_code == 429 and over.headers["ratelimit"].startswith('"api";r=0;t=')
        assert 1 <= int(over.headers["retry-after"]) <= 5 and "Too many requests" in over.json()["error"]
        assert ask(alice.token, "/a/b/resolve/main/c").headers["ratelimit"].startswith('"resolvers";r=5;t=')
        assert ask(bob.token).status_code == 200
        assert [ask().status_code for _ in range(3)] == [200, 200, 429]
        assert "date" in over.headers and "ratelimit" not in ask(path="/").headers
        began = time.monotonic()
        assert list(alice.list_buckets("alice")) == [], "the client has waited for the next window"
        assert time.monotonic() - began >= 1
        assert ask(alice.token).status_code == 200


def test_limits_are_those_of_the_public_hub_unless_others_are_given():
    limits = RateLimits()
    assert [limits.limit(kind, anonymous=False) for kind in ("api", "resolvers", "xet")] == [1000, 5000, None]
    assert [limits.limit(kind, anonymous=True) for kind in ("api", "resolvers")] == [500, 3000]
    with pytest.raises(ValueError, match="api_requests is 0, expected at least 1"):
        RateLimits(api_requests=0)
