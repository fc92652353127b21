"""Which Hub tokens a peer shows to a run's admission service, and which addresses are those of its own machine."""

import pytest

from pipelines.admission.client import AdmissionRefusedError, check_shown_token
from pipelines.admission.settings import Door, is_on_this_machine

DOOR = Door(
    repository="org/run", run_id="run", service_address="https://door.example.org", authority_key="key",
)  # fmt: skip
READ = dict(role="read")
WRITE = dict(role="write")


def fine(*permissions, **more):
    return dict(role="fineGrained", fineGrained=dict(scoped=[dict(entity={}, permissions=list(permissions))], **more))


def account(token, name="volunteer", organisations=()):
    orgs = [dict(name=organisation) for organisation in organisations]
    return dict(name=name, orgs=orgs, auth=dict(type="access_token", accessToken=token))


@pytest.mark.parametrize(
    "shown",
    [
        account(READ),
        account(fine("repo.content.read", "user.billing.read")),
        account(fine()),
        account(WRITE, name="org"),
        account(WRITE, organisations=["other", "org"]),
    ],
)
def test_a_token_that_only_reads_or_goes_to_ones_own_service_is_shown(shown):
    check_shown_token(DOOR, shown)


@pytest.mark.parametrize(
    "kept",
    [
        account(WRITE),
        account(WRITE, organisations=["other"]),
        account(fine("repo.content.read", "repo.write")),
        account(fine("repo.content.read", **{"global": ["discussion.write"]})),
        account(dict(role="god")),
        account({}),
        dict(name="volunteer"),
    ],
)
def test_a_token_that_may_do_more_is_shown_to_no_stranger(kept):
    with pytest.raises(AdmissionRefusedError, match=r"of the type Read .*: hf auth login$"):
        check_shown_token(DOOR, kept)


@pytest.mark.parametrize(
    ("address", "is_own"),
    [
        ("http://127.0.0.1:80", True),
        ("http://localhost:1", True),
        ("https://[::1]", True),
        ("http://10.0.0.1", False),
        ("https://localhost.example.org", False),
        ("https://127.0.0.1.example.org", False),
    ],
)
def test_this_machine_is_known_by_its_address(address, is_own):
    assert is_on_this_machine(address) == is_own
