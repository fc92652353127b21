"""What stands between a user and the Hub: proxies, login pages of networks, tokens copied badly or expired."""

import httpx2
import pytest
from datasets.exceptions import DatasetNotFoundError
from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.utils import hf_raise_for_status
from stopping_proxy import StoppingProxy, Trouble

from hub_tools.endpoint import prepare_hub_client
from hub_tools.hub_client import NETWORK_VARIABLES, HubClient, NetworkSettingsError, NotTheHubError, is_outage
from hub_tools.one_line_errors import explain_error
from hub_tools.waiting import outages
from hub_tools.waiting.retry_after import MOST_SECONDS, asked_seconds

prepare_hub_client()

PAGE = "<html><title>Welcome to our hotel</title></html>"
SECRET = "hf_abcdefghijkl"


def hub_error(status, path="/api/datasets/org/birds", token=SECRET, **headers):
    """The error of the real client for an answer of the Hub."""
    request = httpx2.Request(
        "GET", f"https://hub.example{path}", headers={"authorization": f"Bearer {token}"} if token else {}
    )
    try:
        hf_raise_for_status(httpx2.Response(status, request=request, headers=headers, json={"error": "said so"}))
    except HfHubHTTPError as error:
        return error
    raise AssertionError("no error")


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("ALL_PROXY", "socks4://127.0.0.1:1080", "ALL_PROXY cannot be used"),
        ("all_proxy", "socks://127.0.0.1:1080/", "ALL_PROXY cannot be used"),
        ("HTTPS_PROXY", "http://{}@proxy:port".format("user:secret"), "HTTPS_PROXY cannot be used"),
        ("SSL_CERT_FILE", "/nowhere/certificates.pem", r"SSL_CERT_FILE cannot be used.*No such file"),
    ],
)  # fmt: skip
def test_settings_of_the_network_that_cannot_be_used_are_named(monkeypatch, variable, value, words):
    for name in (*NETWORK_VARIABLES, *map(str.lower, NETWORK_VARIABLES)):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, value)
    with pytest.raises(NetworkSettingsError, match=words) as raised:
        HubClient(5.0)
    assert "secret" not in str(raised.value)
    assert "expected proxies such as http://HOST:PORT" in str(raised.value)


def test_a_socks_proxy_is_used_or_what_to_install_is_said(monkeypatch):
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:9")
    try:
        client = HubClient(5.0)
    except NetworkSettingsError as error:
        assert str(error).startswith("ALL_PROXY names a SOCKS proxy") and "pip install socksio" in str(error)
    else:
        with pytest.raises(httpx2.HTTPError):
            client.get("http://hub.invalid/")


@pytest.mark.parametrize(
    ("token", "seen"),
    [
        (f"{SECRET}\N{HORIZONTAL ELLIPSIS}", r"'\u2026' at place 16"),
        (f"\N{LEFT DOUBLE QUOTATION MARK}{SECRET}", r"'\u201c' at place 1;"),
        (f"{SECRET} # mine", "' ' at place 16"),
        (f"{SECRET}\n\r", r"'\n' at place 16"),
        (f"{SECRET}\udcff", r"'\udcff' at place 16"),
        (f"{SECRET}\x7f", r"'\x7f' at place 16"),
    ],
)
def test_a_token_that_was_copied_badly_is_named_and_not_shown(token, seen):
    with pytest.raises(ValueError) as raised:
        HfApi(endpoint="http://127.0.0.1:9", token=token).whoami()
    said = explain_error(raised.value)
    assert seen in said and "hf auth login" in said
    assert SECRET not in said and SECRET not in repr(raised.value.__context__)


@pytest.mark.parametrize("status", [200, 511])
@pytest.mark.parametrize(
    "ask",
    [
        lambda api, repo: api.whoami(),
        lambda api, repo: api.model_info(repo),
        lambda api, repo: api.create_repo(f"{repo}-new"),
        lambda api, repo: list(api.list_repo_tree(repo)),
        lambda api, repo: api.hf_hub_download(repo, ".gitattributes", force_download=True),
    ],
    ids=["whoami", "model_info", "create_repo", "list_repo_tree", "hf_hub_download"],
)
def test_the_page_of_a_network_is_not_taken_for_the_hub(hub, repo, ask, status):
    with StoppingProxy(hub.endpoint, trouble=Trouble(status=status, text=PAGE, path="/")) as proxy:
        with pytest.raises(NotTheHubError) as raised:
            ask(HfApi(endpoint=proxy.endpoint, token=hub.alice_token), repo)
        ask(HfApi(endpoint=proxy.endpoint, token=hub.alice_token), repo)
    assert "is not the Hub: a web page of 127.0.0.1. Open any page in a browser and log in" in explain_error(
        raised.value
    )
    assert is_outage(raised.value)


def test_a_network_that_sends_every_request_to_its_own_page_is_named(hub, repo):
    # Answers to what it forwards would be JSON; this page is on another host, as the name is another.
    with StoppingProxy(hub.endpoint, trouble=Trouble(text=PAGE, status=200, path="/login", times=9)) as login:
        address = login.endpoint.replace("127.0.0.1", "localhost") + "/login"
        trouble = Trouble(status=302, headers={"Location": address}, path="/", times=2)
        with StoppingProxy(hub.endpoint, trouble=trouble) as proxy:
            api = HfApi(endpoint=proxy.endpoint, token=hub.alice_token)
            for ask in (lambda: api.model_info(repo), lambda: api.hf_hub_download(repo, ".gitattributes")):
                with pytest.raises(NotTheHubError, match="is not the Hub: a web page of"):
                    ask()


@pytest.mark.parametrize("path", ["/api/datasets/org/birds", "/api/whoami-v2", "/datasets/org/birds/resolve/main/a"])
def test_a_token_that_has_expired_is_named_and_a_missing_repository_too(path):
    assert "refuses the token (said so), which may have expired. Set HF_TOKEN" in explain_error(hub_error(401, path))
    anonymous = explain_error(hub_error(401, token=None))
    assert "dataset repository org/birds is not on the Hub" in anonymous and "set HF_TOKEN" in anonymous


def test_a_gated_dataset_is_named_with_what_a_fine_grained_token_lacks():
    for status, token in ((403, SECRET), (401, None)):
        said = explain_error(hub_error(status, token=token, **{"X-Error-Code": "GatedRepo"}))
        assert said.startswith("The dataset repository org/birds is gated (said so). Ask for access on its page")
        assert "fine-grained token must be allowed to read gated repositories" in said
    assert "a fine-grained token that names this repository" in explain_error(hub_error(403))
    try:
        try:
            raise hub_error(403, **{"X-Error-Code": "GatedRepo"})
        except HfHubHTTPError:
            raise DatasetNotFoundError("Visit https://huggingface.co/datasets/org/birds")  # noqa: B904 - as it does
    except DatasetNotFoundError as error:
        assert "fine-grained token must be allowed to read gated repositories" in explain_error(error)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, 0.0),
        ({"Retry-After": "7"}, 7.0),
        ({"Retry-After": "Fri, 01 Jan 2100 00:00:00 GMT"}, MOST_SECONDS),
        ({"Retry-After": "Sat, 01 Jan 2000 00:00:00 GMT"}, 0.0),
        ({"Retry-After": "-5"}, 0.0),
        ({"Retry-After": "nan"}, 0.0),
        ({"Retry-After": "inf"}, MOST_SECONDS),
        ({"Retry-After": "soon"}, 0.0),
        ({"RateLimit": '"api";r=0;t=42'}, 42.0),
        ({"RateLimit": '"api";r=3;t=42'}, 0.0),
        ({"RateLimit": '"api";r=0;t=' + "9" * 400}, 0.0),
        ({"RateLimit": '"api";r=0;t=4', "Retry-After": "6"}, 6.0),
    ],
)
def test_the_hub_says_how_long_to_wait(headers, seconds):
    assert asked_seconds(hub_error(429, **headers)) == seconds


def test_what_passes_is_an_outage_and_what_a_user_must_mend_is_not():
    assert all(is_outage(hub_error(status)) for status in (408, 409, 429, 500, 502, 503, 504, 524))
    assert not any(is_outage(hub_error(status)) for status in (400, 401, 403, 404, 501, 507))
    upload = RuntimeError("Error while uploading")
    assert not is_outage(upload)
    upload.__cause__ = hub_error(503)
    assert is_outage(upload)
    assert is_outage(httpx2.ReadError("reset by peer"))
    assert not is_outage(httpx2.ConnectError("[SSL: CERTIFICATE_VERIFY_FAILED] self-signed certificate"))


def test_after_its_limit_no_pause_begins_and_none_that_would_end_far_behind_it():
    def busy(**headers):
        raise hub_error(429, **headers)

    for limit, headers in ((0.05, {}), (10.0, {"Retry-After": "21"})):
        with pytest.raises(HfHubHTTPError):
            outages.through_outages(lambda headers=headers: busy(**headers), (0.02,), limit_seconds=limit)
