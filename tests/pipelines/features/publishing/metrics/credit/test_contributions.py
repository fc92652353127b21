"""Contributions: who takes part is counted to the sample; who only claims takes nothing from anybody."""

import datetime
import json
import random

import pytest

from pipelines.features.publishing.metrics.credit.claims import ROUNDS_REMEMBERED, Claim, RoundLog, fit_into
from pipelines.features.publishing.metrics.credit.contribution_files import read_contributions, write_contributions
from pipelines.features.publishing.metrics.credit.contributions import Contribution, ContributionLedger, leaderboard

BATCH = 4096
RATIO = 8.0
START = datetime.datetime(2026, 11, 20, 12, tzinfo=datetime.UTC).timestamp()


def claim(num_samples, epoch, username="ann", speed=100.0, user=None, sender=None):
    user = user or username
    return Claim(username=username, epoch=epoch, num_samples=num_samples, samples_per_second=speed, user=user,
                 sender=sender or user)  # fmt: skip


def log_of(rounds):
    """The log of rounds, {epoch: the senders' names}."""
    log = RoundLog()
    for epoch, senders in rounds.items():
        log.note(epoch, senders)
    return log


def observed(*looks, ledger=None, rounds=None):
    """A ledger after looks at a swarm, each (seconds, swarm epoch, {key: claim})."""
    ledger = ledger or ContributionLedger()
    for seconds, epoch, claims in looks:
        ledger.observe(
            claims, rounds or RoundLog(), now=START + seconds, swarm_epoch=epoch, batch_size=BATCH, max_ratio=RATIO
        )
    return ledger


def reports(members, epoch, *, per_epoch=1000, since=0, **values):
    """The claims of peers that say that they have trained since an epoch."""
    return {name: claim(per_epoch * (epoch - since), epoch, username=name, **values) for name in members}


def trained(epochs, *makers, ledger=None, senders=None):
    """A ledger after each of these epochs, with the claims that all the functions of the epoch make.

    In the rounds are the `senders`, by default the honest.
    """
    for epoch in epochs:
        claims = {key: made for make in makers for key, made in make(epoch).items()}
        rounds = log_of({epoch: HONEST if senders is None else senders})
        ledger = observed((60 * epoch, epoch, claims), ledger=ledger, rounds=rounds)
    return ledger


def samples(ledger):
    return {user: total.samples for user, total in ledger.total().items()}


HONEST = ("ann", "bob", "cid", "dot")


def honest(epoch):
    return reports(HONEST, epoch)


def test_500_honest_peers_of_250_users_are_counted_to_the_sample_whenever_they_are_looked_at():
    generator, counts, claims, ledger, rounds = random.Random(1), {}, {}, ContributionLedger(), RoundLog()
    for epoch in range(1, 201):
        members = generator.sample(range(500), 400)
        rounds.note(epoch, map(str, members))
        for number in members:
            count = counts[number] = counts.get(number, 0) + generator.randrange(0, 2 * BATCH // 400)
            claims[f"key-{number}"] = claim(
                count, epoch, username=f"user-{number % 250}", speed=1.0, sender=str(number)
            )
        if epoch % 3 == 0 or epoch == 200:
            observed((60 * epoch, epoch, claims), ledger=ledger, rounds=rounds)
    expected = {}
    for number, count in counts.items():
        expected[f"user-{number % 250}"] = expected.get(f"user-{number % 250}", 0) + count
    counted = samples(ledger)
    assert all(counted[user] <= count for user, count in expected.items())
    assert sum(counted.values()) >= 0.99 * sum(expected.values())


@pytest.mark.parametrize("num_keys", [8, 50, 500])
@pytest.mark.parametrize("each", [1, BATCH // 50, 10**9])
def test_keys_that_are_in_no_round_take_nothing_from_those_who_train(num_keys, each):
    keys = [f"sybil-{number}" for number in range(num_keys)]
    ledger = trained(range(1, 6), honest)
    ledger = trained(range(6, 60), honest, lambda epoch: reports(keys, epoch, per_epoch=each), ledger=ledger)
    counted = samples(ledger)
    assert counted == dict.fromkeys(HONEST, 59_000), "only those who train are credited"


def test_keys_that_are_there_before_anybody_else_and_in_no_round_are_credited_nothing():
    keys = [f"sybil-{number}" for number in range(100)]
    early = trained(range(1, 31), lambda epoch: reports(keys, epoch), senders=())
    assert samples(early) == {}
    later = lambda epoch: reports(keys, epoch) | reports(HONEST, epoch, since=30)  # noqa: E731
    assert samples(trained(range(31, 61), later, ledger=early)) == dict.fromkeys(HONEST, 30_000)


def test_a_peer_that_misses_some_rounds_has_its_samples_with_the_next_one():
    ledger = None
    for epoch in range(1, 22):
        present = HONEST if epoch % 3 == 1 else HONEST[1:]
        rounds = log_of({epoch - 1: (), epoch: present})
        ledger = observed((60 * epoch, epoch, honest(epoch)), ledger=ledger, rounds=rounds)
    assert samples(ledger)["ann"] in range(19_000, 21_001)


def test_a_round_log_remembers_the_last_rounds_and_their_neighbours():
    log = log_of({epoch: [f"peer-{epoch}"] for epoch in range(1, 100)})
    assert all(log.names("peer-99", epoch) for epoch in (98, 99, 100))
    assert not log.names("peer-99", 97) and not log.names("nobody", 99)
    assert not log.names(f"peer-{99 - ROUNDS_REMEMBERED}", 99 - ROUNDS_REMEMBERED)
    log.note(99, ["late"])
    assert log.names("late", 99) and log.names("peer-99", 99)


def test_a_liar_that_does_take_part_gets_what_the_ratio_and_the_epochs_leave():
    def with_liar(epoch):
        return honest(epoch) | {"liar": claim(10**12 * epoch, epoch, username="liar", speed=1e12)}

    counted = samples(trained(range(1, 41), with_liar, senders=(*HONEST, "liar")))
    assert [counted[name] for name in HONEST] == [40_000] * 4
    assert counted["liar"] <= 40 * (2 * BATCH - 4000)


def test_many_keys_of_a_user_are_one_user():
    keys = [f"key-{number}" for number in range(50)]

    def with_many(epoch):
        return honest(epoch) | {key: claim(BATCH * epoch, epoch, username="eve", sender=key) for key in keys}

    counted = samples(trained(range(1, 41), with_many, senders=(*HONEST, *keys)))
    assert [counted[name] for name in HONEST] == [40_000] * 4
    assert counted["eve"] <= 40 * RATIO * 1000


def test_a_newcomer_has_all_its_samples_after_a_few_epochs():
    def with_newcomer(epoch):
        return honest(epoch) | reports(["new"], epoch, since=20)

    ledger, senders = trained(range(1, 21), honest), (*HONEST, "new")
    counted = [
        samples(trained([epoch], with_newcomer, ledger=ledger, senders=senders))["new"] for epoch in range(21, 27)
    ]
    assert counted == [250, 750, 1750, 3750, 5000, 6000]
    assert samples(ledger)["ann"] == 26_000


def test_a_newcomer_keeps_its_samples_beside_500_keys():
    keys = [f"sybil-{number}" for number in range(500)]

    def later(epoch):
        return reports(keys, epoch, per_epoch=8) | honest(epoch) | reports(["new"], epoch, since=20)

    ledger = trained(range(1, 21), honest)
    counted = samples(trained(range(21, 31), later, ledger=ledger, senders=(*HONEST, "new")))
    assert counted == dict.fromkeys(HONEST, 30_000) | {"new": 10_000}


def test_whoever_trains_alone_needs_no_witness_until_others_train():
    ledger = trained(range(1, 6), lambda epoch: reports(["ann"], epoch), senders=())
    assert samples(ledger) == {"ann": 5000}
    sybils = lambda epoch: reports(["eve", "eva", "ann"], epoch)  # noqa: E731
    assert samples(trained(range(6, 20), sybils, ledger=ledger, senders=["ann"])) == {"ann": 19_000}


def test_the_same_report_counts_once_and_a_restarted_peer_goes_on_counting():
    looks = [(0, 1, claim(1000, 1)), (1, 1, claim(1000, 1)), (60, 2, claim(3000, 2)), (120, 3, claim(500, 3))]
    ledger = observed(*((seconds, epoch, {"key": seen}) for seconds, epoch, seen in looks))
    assert samples(ledger) == {"ann": 3500}
    ledger = observed((180, 4, {"new-key": claim(700, 4)}), ledger=ledger)
    assert samples(ledger) == {"ann": 4200}


def test_a_count_beyond_the_stated_speed_is_cut():
    ledger = observed((0, 1, {"key": claim(100, 1, speed=2.0)}), (50, 2, {"key": claim(4000, 2, speed=2.0)}))
    assert samples(ledger) == {"ann": 100 + 3 * 2 * (50 + 10)}


@pytest.mark.parametrize("epoch", [9, 10**9])
def test_a_claim_from_an_epoch_that_the_swarm_has_not_reached_counts_nothing(epoch):
    assert samples(observed((0, 5, {"key": claim(100, epoch)}))) == {}


def test_keys_that_take_part_before_all_others_get_no_more_than_the_epochs_could_hold():
    keys = [f"sybil-{number}" for number in range(100)]
    ledger = trained(range(1, 11), lambda epoch: reports(keys, epoch, per_epoch=10**9, speed=1e9), senders=keys)
    assert sum(samples(ledger).values()) <= 2 * BATCH * 10


def test_the_largest_claims_are_cut_first():
    assert fit_into(dict(a=10, b=1000, c=20), 100) == dict(a=10, b=70, c=20)
    assert fit_into(dict(a=1000, b=1000), 101) == dict(a=50, b=51)
    assert fit_into(dict(a=5), 100) == dict(a=5) and fit_into({}, 10) == {} and fit_into(dict(a=5), -1) == dict(a=0)


def test_hours_are_those_between_a_peers_reports_and_days_are_those_of_utc():
    looks = [(0, 1, claim(1000, 1, speed=10.0)), (90, 2, claim(2000, 2, speed=10.0))]
    ledger = observed(*((seconds, epoch, {"key": seen}) for seconds, epoch, seen in looks))
    assert ledger.days == {("2026-11-20", "ann"): Contribution(samples=2000, seconds=190.0)}
    ledger = observed((43_300, 3, {"key": claim(3000, 3, speed=10.0)}), ledger=ledger)
    assert ledger.days["2026-11-21", "ann"] == Contribution(samples=1000, seconds=300.0)


def test_the_leaderboard_has_today_the_week_and_all_time():
    day, week_ago, today = Contribution(samples=100, seconds=3600.0), "2026-11-14", "2026-11-20"
    days = {("2026-11-13", "ann"): day, (week_ago, "ann"): day, (today, "ann"): day, (today, "bob"): day}
    assert leaderboard(days, START, 10) == [
        dict(username="ann", samples_today=100, hours_today=1.0, samples_week=200, hours_week=2.0, samples_all=300,
             hours_all=3.0),
        dict(username="bob", samples_today=100, hours_today=1.0, samples_week=100, hours_week=1.0, samples_all=100,
             hours_all=1.0),
    ]  # fmt: skip
    assert [row["username"] for row in leaderboard(days, START, 1)] == ["ann"]


def test_counting_goes_on_from_files_without_counting_twice(tmp_path):
    ledger = observed((0, 1, {"key": claim(1000, 1)}), (12 * 86_400, 9, {"key": claim(2000, 9)}))
    write_contributions(ledger, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {
        "contributions-2026-11.parquet", "contributions-2026-12.parquet", "contribution_counters.json",
    }  # fmt: skip
    restored = read_contributions(tmp_path)
    assert restored == ledger
    again = observed((12 * 86_400 + 60, 10, {"key": claim(2500, 10)}), ledger=restored)
    assert samples(again) == {"ann": 2500}
    assert read_contributions(tmp_path / "none") == ContributionLedger()
    (tmp_path / "contribution_counters.json").write_text('{"epoch": 3}')
    with pytest.raises(ValueError, match=r"The contributions in .* are damaged|state of the contributions is damaged"):
        read_contributions(tmp_path)


def test_a_restart_of_the_publisher_neither_loses_nor_doubles_what_is_pending(tmp_path):
    def with_newcomer(epoch):
        return reports((*HONEST, "new"), epoch)

    ledger = trained(range(1, 21), honest)
    for epoch in range(21, 29):
        write_contributions(trained([epoch], with_newcomer, ledger=ledger), tmp_path)
        ledger = read_contributions(tmp_path)
        observed((60 * epoch + 1, epoch, with_newcomer(epoch)), ledger=ledger)
    assert samples(ledger)["ann"] == 28_000


def test_files_of_older_ledgers_are_read(tmp_path):
    write_contributions(trained(range(1, 6), honest), tmp_path)
    counters = tmp_path / "contribution_counters.json"
    state = json.loads(counters.read_text())
    del state["standings"]
    for counter in state["counters"].values():
        for name in ("pace", "pending", "pending_seconds"):
            del counter[name]
    counters.write_text(json.dumps(state))
    ledger = read_contributions(tmp_path)
    assert samples(ledger) == dict.fromkeys(HONEST, 5000)
    assert samples(trained(range(6, 16), honest, ledger=ledger)) == dict.fromkeys(HONEST, 15_000)
