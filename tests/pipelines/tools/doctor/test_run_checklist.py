"""The organiser's checklist and the run's report: pure decisions about settings and history."""

import pytest
from swarm_of_processes import tiny_run

from pipelines.core.signing.publisher_keys import PublisherKey
from pipelines.features.publishing.metrics.credit.contributors import Contributor
from pipelines.features.publishing.metrics.report import peer_hours, report_markdown, total_bytes
from pipelines.features.publishing.metrics.run_archive import PublishedCheckpoint, RunArchive
from pipelines.tools.doctor.organiser_checks import (
    check_card,
    check_commit_budget,
    check_entry_places,
    check_evaluation,
    check_pinned,
    check_protection,
    check_rate,
    check_required_versions,
    check_schedule,
    check_timeouts,
    epoch_seconds,
)

AUTHORITY = PublisherKey.generate().public
FIRST, SECOND = (
    "12D3KooWQYhTNQdmr3ArTeUHRYzFg94BKyTkoWBDWez9kSCVe2Xo",
    "12D3KooWSEEX6HhxBQWyf9Y14TCQ6JxGG2eZPuEvQvryKy59D9bj",
)


def point(epoch, **values):
    usual = dict(
        epoch=epoch, loss=5.0 / epoch, num_peers=2, samples_per_second=16.0, share_averaged=0.98,
        bytes_sent=1000 * epoch, num_rounds=epoch, round_seconds=2.0, time=1_700_000_000.0 + 10 * epoch,
    )  # fmt: skip
    return usual | values


def paper_run(**changes):
    settings = dict(
        target_batch_size=4096, num_epochs=31_250, num_warmup_epochs=3_125, peak_learning_rate=2.5e-3,
        dataset_revision="a" * 40, model_config={},
    )  # fmt: skip
    return tiny_run(**(settings | changes))


@pytest.mark.parametrize(
    ("addresses", "status", "words"),
    [
        ([], "fail", "no entry address"),
        ([f"/ip4/192.168.1.2/tcp/1/p2p/{FIRST}", f"/ip4/10.0.0.2/tcp/1/p2p/{SECOND}"], "warn", "private network"),
        ([f"/ip4/8.8.4.1/tcp/1/p2p/{FIRST}", f"/ip4/8.8.4.2/tcp/1/p2p/{SECOND}"], "warn", "2 entry peers in 1 place"),
        ([f"/ip4/8.8.4.1/tcp/1/p2p/{FIRST}", f"/ip4/1.1.1.2/tcp/1/p2p/{FIRST}"], "warn", "1 entry peer in 2 places"),
        ([f"/ip4/8.8.4.1/tcp/1/p2p/{FIRST}", f"/dns4/a.org/tcp/1/p2p/{SECOND}"], "ok", "2 entry peers in 2 places"),
    ],
)
def test_entry_peers_have_to_be_in_two_places_that_others_can_reach(addresses, status, words):
    result = check_entry_places("org/run", addresses)
    assert result.status == status and words in result.seen
    assert status == "ok" or "dalle-collab run assist" in result.cure


def test_held_out_records_or_a_split_are_an_evaluation_set():
    assert check_evaluation(tiny_run(held_out_share=0.01), []).status == "ok"
    assert "validation" in check_evaluation(tiny_run(held_out_share=0.0), ["train", "validation"]).seen
    assert check_evaluation(tiny_run(held_out_share=0.0), ["train"]).status == "warn"


def statuses(results):
    return {result.name: result.status for result in results}


def test_the_papers_schedule_is_fine_and_its_extremes_are_not():
    fine = {"warm-up": "ok", "peak rate": "ok", "batch and dataset": "ok"}
    assert statuses(check_schedule(paper_run(), 100_000_000)) == fine
    assert statuses(check_schedule(paper_run(num_warmup_epochs=0), 10**8))["warm-up"] == "warn"
    assert statuses(check_schedule(paper_run(num_warmup_epochs=20_000), 10**8))["warm-up"] == "warn"
    assert statuses(check_schedule(paper_run(peak_learning_rate=0.1), 10**8))["peak rate"] == "warn"
    assert statuses(check_schedule(paper_run(peak_learning_rate=1e-5), 10**8))["peak rate"] == "warn"
    # LAMB's rate goes with the square root of the batch: a sixteenth of the batch, a quarter of the rate.
    small = paper_run(target_batch_size=256, peak_learning_rate=2.5e-3 / 4)
    assert statuses(check_schedule(small, 10**8))["peak rate"] == "ok"


@pytest.mark.parametrize(
    ("settings", "status", "usual"),
    [
        (dict(optimizer="muon"), "warn", "1.0e-04 to 2.0e-03"),
        (dict(optimizer="muon", peak_learning_rate=1e-3), "ok", "1.0e-04 to 2.0e-03"),
        (dict(optimizer="adamw"), "warn", "1.0e-04 to 2.0e-03"),
        (dict(local_steps=15, inner_optimizer="muon"), "warn", "2.5e-05 to 1.0e-03"),
        (dict(local_steps=15, inner_optimizer="muon", peak_learning_rate=4e-4), "ok", "2.5e-05 to 1.0e-03"),
    ],
)
def test_a_rate_of_another_optimizers_size_is_told_with_the_usual_ones(settings, status, usual):
    found = check_rate(paper_run(**settings))
    assert found.status == status and usual in found.expected


def test_a_rate_is_judged_by_sequences_where_tokens_are_counted():
    run = paper_run().replace(task="text-generation", target_batch_size=4096 * 511)
    assert check_rate(run).seen == "0.0025 with lamb at 4,096 samples, 1,024 wide"


@pytest.mark.parametrize(("num_records", "status"), [(4095, "fail"), (1_000_000, "warn"), (2_000_000, "ok")])
def test_the_batch_has_to_fit_the_dataset_and_passes_are_counted(num_records, status):
    *_, batch = check_schedule(paper_run(), num_records)
    assert batch.status == status
    assert f"{31_250 * 4096 / num_records:,.1f} passes" in batch.seen
    assert check_schedule(paper_run(), None)[-1].status == "unknown"


def test_time_outs_are_compared_with_measured_rounds_and_epochs():
    run = tiny_run(target_batch_size=32, averaging_timeout_seconds=20.0, matchmaking_seconds=1.5)
    quick, slow = [point(n) for n in range(1, 11)], [point(n, round_seconds=15.0) for n in range(1, 11)]
    assert epoch_seconds(run, quick) == 2.0
    assert statuses(check_timeouts(run, quick)) == {"round": "ok", "epoch": "ok"}
    assert statuses(check_timeouts(run, slow))["round"] == "warn"
    crowded = [point(n, samples_per_second=32.0) for n in range(1, 11)]
    assert statuses(check_timeouts(run, crowded))["epoch"] == "warn"
    assert statuses(check_timeouts(run, [])) == {"time-outs": "unknown"}


def test_checkpoints_have_to_fit_into_the_commit_budget():
    history = [point(n) for n in range(1, 11)]
    often = tiny_run(target_batch_size=32, checkpoint_interval_epochs=10, max_commits_per_hour=60)
    result = check_commit_budget(often, history)
    assert result.status == "warn" and "180.0 commits an hour" in result.seen
    assert check_commit_budget(often.replace(checkpoint_interval_epochs=100), history).status == "ok"
    assert check_commit_budget(often, []).status == "unknown"


def test_what_the_card_lacks_is_named():
    complete = dict(license="apache-2.0", library_name="transformers", pipeline_tag="text-to-image", datasets=["a/b"])
    text = "dalle-collab join org/run\ndalle-collab generate org/run 'a caption'"
    assert check_card(text, complete).status == "ok"
    missing = check_card("dalle-collab join org/run", dict(complete, license=None))
    assert missing.status == "warn" and missing.seen == "README.md says nothing about license, `dalle-collab generate`"
    assert check_card(None, {}).status == "warn"


def test_a_dataset_has_to_be_pinned_and_versions_named():
    assert check_pinned(paper_run()).status == "ok"
    assert check_pinned(paper_run(dataset_revision="main")).status == "fail"
    assert check_required_versions(paper_run()).status == "warn"
    assert check_required_versions(paper_run(required_versions={"numpy": "<2.4"})).status == "ok"


@pytest.mark.parametrize(
    ("settings", "status", "words"),
    [
        ({}, "warn", "centered_clip of single gradients"),
        (dict(momentum_before_averaging=True), "ok", "centered_clip of what many samples say"),
        (dict(local_steps=10), "ok", "progress of 10 local steps, which also leaves out a peer that is several times"),
        (
            dict(aggregation_rule="mean", synchronisation="sparse", local_steps=10),
            "warn",
            "not its direction",
        ),
        (dict(aggregation_rule="mean", momentum_before_averaging=True), "warn", "aggregation_rule is mean"),
        (dict(authorization_service="https://a.example", authorization_key=AUTHORITY), "ok", "authority admits peers"),
    ],
)
def test_a_run_for_everybody_should_average_what_attackers_cannot_hide_in(settings, status, words):
    result = check_protection(paper_run(**settings), "org/run")
    assert (result.status, words in result.seen) == (status, True)
    assert status == "ok" or "dalle-collab run authorize org/run" in result.cure


def record(**changes):
    values = dict(
        repository="org/run", run=tiny_run(target_batch_size=32, num_epochs=40), epoch=30,
        history=[point(epoch) for epoch in range(1, 41)], evaluations=[dict(epoch=20, loss=1.25)],
        contributors=[
            Contributor(username="ann|<b>", samples=900, hours=1.5),
            Contributor(username="bo", samples=100, hours=0.25),
        ],
        checkpoints=[PublishedCheckpoint(epoch=30, commit="c" * 40, time=1_700_000_300.0)],
        checkpoint_bytes=1_500_000, dataset_bytes=2_000, num_commits=7,
    )  # fmt: skip
    return RunArchive(**(values | changes))


def test_the_report_has_every_setting_the_course_the_people_and_the_costs():
    whole = record()
    text = report_markdown(whole, loss_curve="curve.png", now=1_700_001_000.0)
    for name in vars(whole.run):
        assert name == "model_config" or f"| `{name}` |" in text
    for name, value in whole.run.model_config.items():
        assert f"| `{name}` | `{value if isinstance(value, int) else ''}" in text
    assert "![loss curve](curve.png)" in text and "| finished | yes |" in text
    assert "| 5.0000 | – | 2 | 16.0 | 98.0% | 2.0 |" in text and "| 40 | 0.1250 | 1.2500 |" in text
    assert "| **all** | 1,000 | 1 h 45 min |" in text and "| 30 | 2023-11-14 22:18 UTC | `cccccccccccc` |" in text
    assert "| newest checkpoint | 1.5 MB |" in text and "| sent by all peers in averaging | 40 kB |" in text
    assert "| per sample | 31 bytes |" in text
    assert "ann\\|&lt;b>" in text, "names come from strangers and stay in their cells"


def test_a_run_without_history_says_so_in_its_report():
    empty = record(history=[], evaluations=[], contributors=[], checkpoints=[], epoch=None, checkpoint_bytes=None)
    text = report_markdown(empty, loss_curve=None, now=0.0)
    assert "No history was published" in text and "No contributions by name were published." in text
    assert "None was published." in text and "loss curve" not in text and "| epochs | 0 of 40 |" in text


def test_bytes_are_added_up_over_peers_that_leave_and_hours_over_gaps():
    sent = [point(1, bytes_sent=100), point(2, bytes_sent=250), point(3, bytes_sent=50), point(4, bytes_sent=80)]
    assert total_bytes(sent) == 100 + 150 + 0 + 30
    times = [point(1, time=0.0), point(2, time=60.0, num_peers=3), point(3, time=10_000.0, num_peers=1)]
    assert peer_hours(times, longest_gap_seconds=120.0) == pytest.approx((60 * 3 + 120 * 1) / 3600)
