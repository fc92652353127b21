"""The proof of an account: what its name depends on, and what the Hub shows of it."""

import time

import pytest
from admission_material import request_for
from admission_tokens import rsa_key
from huggingface_hub import HfApi

from hub_tools.publishing.account_proof import PROOF_REPOSITORY, HubAccount, NoRightsError, is_placed
from pipelines.features.admission_service.requests import (
    PROOF_SECONDS,
    proof_expiry,
    proof_name,
    proof_nonce,
    request_of,
)


@pytest.mark.parametrize(
    "change",
    [
        dict(username="mallory"),
        dict(run_id="other"),
        dict(peer="other"),
        dict(nonce="m" * 64),
        dict(proof_expires_at=1_800_000_001),
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_proof_is_worth_nothing_for_another_user_run_peer_nonce_or_time(change):
    assert proof_name(request_for(**change), "key") != proof_name(request_for(), "key")


def test_a_proof_is_for_one_authority_and_any_record_key_and_moment():
    request, keys = request_for(moment=1e9), (rsa_key("peer"), rsa_key("new record"))
    assert proof_name(request, "key") != proof_name(request, "other key")
    later = request_of("run", *keys, time=1e9 + 60, username="alice")
    assert proof_name(request, "key") == proof_name(later, "key")


@pytest.mark.parametrize("now", [0.0, PROOF_SECONDS - 0.5, PROOF_SECONDS, 1_764_240_000.7])
def test_a_proof_lasts_one_to_two_periods(now):
    assert PROOF_SECONDS < proof_expiry(now) - now <= 2 * PROOF_SECONDS


def test_the_nonce_of_a_peer_is_the_same_again_and_another_in_another_run_and_for_another_peer():
    nonce = proof_nonce(rsa_key("peer"), "run", 7)
    assert nonce == proof_nonce(rsa_key("peer"), "run", 7)
    others = [(rsa_key("other"), "run", 7), (rsa_key("peer"), "other", 7), (rsa_key("peer"), "run", 8)]
    assert nonce not in {proof_nonce(*other) for other in others}


@pytest.mark.slow
def test_a_file_is_placed_once_where_everybody_sees_it_and_nobody_else_can_put_it_there(hub):
    alone, mallory = (
        HubAccount(HfApi(endpoint=hub.endpoint, token=hub.create_user(name))) for name in ("prover", "forger")
    )
    anybody = HfApi(endpoint=hub.endpoint, token=False)
    assert not is_placed(anybody, "prover", "0" * 64)
    alone.place("0" * 64)
    alone.place("1" * 64)
    assert is_placed(anybody, "prover", "0" * 64) and is_placed(anybody, "prover", "1" * 64)
    assert not is_placed(anybody, "prover", "2" * 64)
    with pytest.raises(NoRightsError, match="may not write to prover/dalle-collab-proof"):
        mallory._described = dict(name="prover")
        mallory.place("2" * 64)
    assert not is_placed(anybody, "prover", "2" * 64)

    # What another repository or revision has is no proof, nor is what a private one has.
    alone.api.create_branch(f"prover/{PROOF_REPOSITORY}", branch="aside")
    alone.api.upload_file(
        repo_id=f"prover/{PROOF_REPOSITORY}", revision="aside", path_in_repo="3" * 64, path_or_fileobj=b"aside"
    )
    assert not is_placed(anybody, "prover", "3" * 64)
    alone.api.update_repo_settings(f"prover/{PROOF_REPOSITORY}", private=True)
    assert not is_placed(anybody, "prover", "0" * 64)


@pytest.mark.slow
def test_a_read_token_and_one_that_the_hub_does_not_know_are_told_what_is_needed(hub):
    reader = HubAccount(HfApi(endpoint=hub.endpoint, token=hub.create_user("only-reader", token_role="read")))
    with pytest.raises(NoRightsError, match=r"may not write to only-reader/dalle-collab-proof.*settings/tokens"):
        reader.place("0" * 64)
    unknown = HubAccount(HfApi(endpoint=hub.endpoint, token="hf_nobody"))
    with pytest.raises(NoRightsError, match="does not know your token") as caught:
        _ = unknown.username
    assert "hf_nobody" not in str(caught.value) and caught.value.__cause__ is None
    assert proof_expiry(time.time()) > time.time()
