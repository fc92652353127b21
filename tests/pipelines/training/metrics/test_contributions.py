"""Contributions: honest reports are counted to the sample, implausible ones as far as they can be true."""

import datetime
import random

import pytest

from pipelines.training.metrics.contribution_files import read_contributions, write_contributions
from pipelines.training.metrics.contributions import Claim, Contribution, ContributionLedger, fit_into, leaderboard

BATCH = 4096
START = datetime.datetime(2026, 11, 20, 12, tzinfo=datetime.UTC).timestamp()


def claim(num_samples, epoch, username="ann", speed=100.0):
    return Claim(username=username, epoch=epoch, num_samples=num_samples, samples_per_second=speed)


def observed(*looks, ledger=None):
    """A ledger after looks at a swarm, each (seconds, swarm epoch, {key: claim})."""
    ledger = ledger or ContributionLedger()
    for seconds, epoch, claims in looks:
        ledger.observe(claims, now=START + seconds, swarm_epoch=epoch, batch_size=BATCH)
    return ledger


def samples(ledger):
    return {user: total.samples for user, total in ledger.total().items()}


def test_500_honest_peers_over_200_epochs_are_counted_to_the_sample_whenever_they_are_looked_at():
    generator, counts, ledger = random.Random(1), {}, ContributionLedger()
    claims = {}
    for epoch in range(1, 201):
        for number in generator.sample(range(500), 400):
            count = counts[number] = counts.get(number, 0) + generator.randrange(0, 2 * BATCH // 400)
            claims[f"key-{number}"] = claim(count, epoch, username=f"user-{number % 250}", speed=1.0)
        if epoch % 3 == 0 or epoch == 200:
            ledger.observe(claims, now=START + 60 * epoch, swarm_epoch=epoch, batch_size=BATCH)
    expected = {}
    for number, count in counts.items():
        expected[f"user-{number % 250}"] = expected.get(f"user-{number % 250}", 0) + count
    assert samples(ledger) == {user: count for user, count in expected.items() if count}


def test_the_same_report_counts_once_and_a_restarted_peer_goes_on_counting():
    looks = [(0, 1, claim(1000, 1)), (1, 1, claim(1000, 1)), (60, 2, claim(3000, 2)), (120, 3, claim(500, 3))]
    ledger = observed(*((seconds, epoch, {"key": seen}) for seconds, epoch, seen in looks))
    assert samples(ledger) == {"ann": 3500}
    ledger = observed((180, 4, {"new-key": claim(700, 4)}), ledger=ledger)
    assert samples(ledger) == {"ann": 4200}


def test_an_absurd_count_gives_no_more_than_the_epoch_could_hold_and_takes_nothing_from_the_others():
    honest = {f"key-{n}": claim(1000, 1, username=f"user-{n}") for n in range(4)}
    ledger = observed((0, 1, honest | {"liar": claim(10**12, 1, username="liar", speed=1e12)}))
    counted = samples(ledger)
    assert [counted[f"user-{n}"] for n in range(4)] == [1000] * 4
    assert counted["liar"] <= 2 * BATCH - 4000
    following = {f"key-{n}": claim(2000, 2, username=f"user-{n}") for n in range(4)}
    ledger = observed((60, 2, following | {"liar": claim(2 * 10**12, 2, username="liar", speed=1e12)}), ledger=ledger)
    assert [samples(ledger)[f"user-{n}"] for n in range(4)] == [2000] * 4
    assert samples(ledger)["liar"] <= 4 * BATCH - 8000


def test_a_count_beyond_the_stated_speed_is_cut():
    ledger = observed((0, 1, {"key": claim(100, 1, speed=2.0)}), (50, 2, {"key": claim(4000, 2, speed=2.0)}))
    assert samples(ledger) == {"ann": 100 + 3 * 2 * (50 + 10)}


@pytest.mark.parametrize("epoch", [9, 10**9])
def test_a_claim_from_an_epoch_that_the_swarm_has_not_reached_counts_nothing(epoch):
    assert samples(observed((0, 5, {"key": claim(100, epoch)}))) == {}


def test_many_liars_together_get_no_more_than_the_epochs_could_hold():
    liars = {f"key-{n}": claim(10**9, 10, username=f"liar-{n}", speed=1e9) for n in range(100)}
    assert sum(samples(observed((0, 10, liars))).values()) <= 2 * BATCH * 10


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
