"""What one account or address may have of the admission service: never what others need."""

import asyncio

import httpx2
import pytest
from admission_material import body_of, request_for
from huggingface_hub import HfApi

from pipelines.core.admission.settings import network_of
from pipelines.core.signing.publisher_keys import PublisherKey
from pipelines.features.admission_service import service as admission_service
from pipelines.features.admission_service.lists import ListsOnHub
from pipelines.features.admission_service.service import (
    AdmissionService,
    Confirmed,
    LivePeers,
    ServiceOptions,
    build_application,
)


@pytest.fixture
def application(tmp_path):
    api = HfApi(endpoint="http://127.0.0.1:9", token=False)
    service = AdmissionService(
        repository="org/run",
        run_id="run",
        key=PublisherKey.generate(),
        api=api,
        lists=ListsOnHub("org/run", api, tmp_path),
        options=ServiceOptions(requests_per_minute=2),
    )
    return build_application(service, clock=lambda: 1000.0)


async def ask(application, host, **content):
    transport = httpx2.ASGITransport(application, client=(host, 1))
    async with httpx2.AsyncClient(transport=transport, base_url="http://service") as client:
        return (await client.post("/token", **content)).status_code


def test_one_network_of_ipv6_asks_as_often_as_one_address(application):
    """Seen before: each of its 2^80 addresses had a count of its own, and 10,000 of them took everybody's."""
    hosts = ["2001:db8:1:1::1", "2001:db8:1:2::1", "2001:db8:1:3::1", "2001:db8:2::1"]
    wrong = request_for(run_id="other")

    async def ask_in_turn():
        return [await ask(application, host, json=body_of(wrong)) for host in hosts]

    assert asyncio.run(ask_in_turn()) == [404, 404, 429, 404]


def test_a_request_that_never_ends_is_ended(application, monkeypatch):
    monkeypatch.setattr(admission_service, "MAX_SECONDS_TO_SEND", 0.01)

    async def endless():
        yield b"{"
        await asyncio.Event().wait()

    assert asyncio.run(ask(application, "203.0.113.7", content=endless())) == 408


def test_one_account_makes_the_service_forget_what_it_has_shown_itself_alone():
    """Seen before: 10,000 proofs of one account, and who shares an address with a flood could not renew."""
    confirmed = Confirmed(2)
    confirmed.note("of ann", "ann")
    for number in range(5):
        confirmed.note(f"of bob {number}", "bob")
    assert [shown for shown in ("of ann", *(f"of bob {n}" for n in range(5))) if shown in confirmed] == [
        "of ann", "of bob 3", "of bob 4"
    ]  # fmt: skip


def test_of_all_accounts_the_newest_are_remembered(monkeypatch):
    monkeypatch.setattr(admission_service, "MAX_TOKENS_REMEMBERED", 2)
    confirmed = Confirmed(2)
    for name in ("ann", "bob", "ann", "carl"):
        confirmed.note(f"of {name}", name)
    assert "of ann" in confirmed and "of carl" in confirmed and "of bob" not in confirmed


def test_users_whose_peers_have_all_left_take_no_memory():
    book = LivePeers(2)
    for number in range(100):
        assert book.admit(f"user {number}", "a", float(number), number + 1.0) == 0.0
    assert book.num_users == 1


@pytest.mark.parametrize(
    ("host", "customer"),
    [
        ("203.0.113.7", "203.0.113.7"),
        ("::ffff:203.0.113.7", "203.0.113.7"),
        ("2001:db8:1:2::3", "2001:db8:1::/48"),
        ("2001:db8:1:ffff::", "2001:db8:1::/48"),
        ("Example.org", "example.org"),
    ],
)
def test_a_customer_has_an_ipv4_address_or_a_network_of_ipv6(host, customer):
    assert network_of(host) == customer
