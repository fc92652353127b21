"""Is a run set up to last? The organiser's checklist as pure decisions."""

import re
from collections.abc import Mapping, Sequence

from hub_tools.counted import counted
from pipelines.core.run.training_run import TrainingRun
from pipelines.core.swarm.dialling import parse_address
from pipelines.features.publishing.metrics.epoch_summary import EpochSummary
from pipelines.tasks.language_modeling.settings import LanguageSettings
from pipelines.tools.doctor.check_result import CheckResult, fail, ok, unknown, warn

COMMIT = re.compile(r"[0-9a-f]{40}")
PAPERS_BATCH = 4096
PAPERS_WIDTH = 1024
WIDTH_NAMES = ("hidden_size", "n_embd", "d_model", "dim")
"""Of the width of a model, in configurations of transformers."""

USUAL_RATES = {"lamb": (6.25e-4, 1e-2), "adamw": (1e-4, 2e-3), "muon": (1e-4, 2e-3)}
"""Lowest and highest usual peak learning rates at batch and width of *Training Transformers Together*, where LAMB's was
2.5e-3. Muon's steps are as long as AdamW's."""

WIDTH_EXPONENTS, BATCH_EXPONENTS = (1.5, 1.7), (0.5, 0.25)
"""How lowest and highest grow as models get narrower, and fall as batches get smaller: between them are the rates that
were best for the demo (128 wide: Muon 0.02, LAMB 0.02 to 0.06) and for the benchmarks (64 and 48 wide: Muon 0.02)."""

WARMUP_SHARES = (0.005, 0.3)
MANY_PASSES = 100
ROUND_SLACK = 2.0
"""A round's time-out should be at least this many times the usual round (`hivemind_guide`: 2)."""

CARD_FIELDS = ("license", "library_name", "pipeline_tag", "datasets")
CARD_WORDS = ("dalle-collab join", "dalle-collab generate")


def check_entry_places(repository: str, addresses: Sequence[str]) -> CheckResult:
    """Newcomers find the swarm only through these addresses: if all are in one place, they fail together."""
    name, expected = "entry places", "entry peers in at least two places that others can reach"
    cure = f"Start a second auxiliary peer on another network: dalle-collab run assist {repository}"
    parsed = [parse_address(text) for text in addresses]
    if not parsed:
        return fail(name, "no entry address", expected, f"dalle-collab run assist {repository}")
    public = [address for address in parsed if not address.is_private]
    peers = {address.peer_id for address in public}
    places = sorted({address.place for address in public})
    if not public:
        seen = f"{counted(len(parsed), 'address', 'addresses')}, all of a private network"
        cure = "Name one that is reachable from outside: dalle-collab run assist --announce /ip4/YOUR-IP/tcp/PORT"
        return warn(name, seen, expected, cure)
    seen = f"{counted(len(peers), 'entry peer')} in {counted(len(places), 'place')} ({', '.join(places)})"
    return ok(name, seen, expected) if min(len(peers), len(places)) >= 2 else warn(name, seen, expected, cure)


def check_evaluation(run: TrainingRun, splits: Sequence[str]) -> CheckResult:
    """A training loss says nothing about pictures the model has not seen."""
    name, expected = "evaluation set", "held-out records, or a validation or test split"
    held_out = [split for split in splits if split in ("validation", "test")]
    if held_out:
        return ok(name, f"the dataset's split {held_out[0]}", expected)
    if run.held_out_share > 0:
        seen = f"{run.held_out_share:.1%} of the records; evaluations use at most {run.num_evaluation_records} of them"
        return ok(name, seen, expected)
    return warn(name, "none", expected, "Set held_out_share=0.01 when the run is created: run create --set")


def check_schedule(run: TrainingRun, num_records: int | None) -> list[CheckResult]:
    """Look for implausible warm-up, peak rate and batch."""
    share = run.num_warmup_epochs / run.num_epochs
    seen = f"{run.num_warmup_epochs} of {run.num_epochs} epochs ({share:.1%})"
    expected = f"{WARMUP_SHARES[0]:.1%} to {WARMUP_SHARES[1]:.0%} (the paper: 10 %)"
    right = WARMUP_SHARES[0] <= share <= WARMUP_SHARES[1]
    warmup = ok("warm-up", seen, expected) if right else warn("warm-up", seen, expected, _set("num_warmup_epochs"))
    return [warmup, check_rate(run), _check_batch(run, num_records)]


def usual_rates(optimizer: str, batch: float, width: int) -> tuple[float, float]:
    """Return the lowest and the highest usual peak learning rate for a batch and a hidden size."""
    narrow, small = max(1.0, PAPERS_WIDTH / width), batch / PAPERS_BATCH
    low, high = (
        rate * narrow**by_width * small ** (by_batch if small < 1 else 0.5)
        for rate, by_width, by_batch in zip(USUAL_RATES[optimizer], WIDTH_EXPONENTS, BATCH_EXPONENTS, strict=True)
    )
    return low, high


def check_rate(run: TrainingRun) -> CheckResult:
    """A rate of another optimizer's size makes a run diverge, or learn nothing."""
    optimizer = run.stepping_optimizer
    counted_in_tokens = run.unit == "tokens"
    weight = LanguageSettings.from_mapping(run.task_settings).sample_weight(run.task) if counted_in_tokens else 1.0
    batch = (run.inner_batch_size if run.local_steps > 1 else run.target_batch_size) / weight
    sizes = {**run.model_config, **run.task_settings}
    width = next((int(sizes[name]) for name in WIDTH_NAMES if sizes.get(name)), PAPERS_WIDTH)
    low, high = usual_rates(optimizer, batch, width)
    seen = f"{run.peak_learning_rate:g} with {optimizer} at {batch:,.0f} samples, {width:,} wide"
    expected = f"{low:.1e} to {high:.1e} (usual with {optimizer} for this batch and width)"
    right = low <= run.peak_learning_rate <= high
    return ok("peak rate", seen, expected) if right else warn("peak rate", seen, expected, _set("peak_learning_rate"))


def _check_batch(run: TrainingRun, num_records: int | None) -> CheckResult:
    name = "batch and dataset"
    if num_records is None:
        return unknown(name, "the number of the dataset's records is not known")
    passes = passes_over(run, num_records)
    seen = f"{run.target_batch_size} samples of {num_records:,} records, {passes:,.1f} passes in all"
    expected = f"a batch smaller than the dataset, and at most {MANY_PASSES} passes"
    if run.target_batch_size > num_records:
        return fail(name, seen, expected, _set("target_batch_size") + " Or publish a larger dataset.")
    if passes > MANY_PASSES:
        return warn(name, seen, expected, _set("num_epochs") + " So many passes make it memorise the records.")
    return ok(name, seen, expected)


def passes_over(run: TrainingRun, num_records: int) -> float:
    """Return how often a run of a task that counts samples passes over its records."""
    return run.num_epochs * run.samples_per_epoch / max(1, num_records)


def check_timeouts(run: TrainingRun, history: Sequence[EpochSummary]) -> list[CheckResult]:
    """Compare the run's time-outs with measured rounds and epochs."""
    rounds = sorted(point["round_seconds"] for point in history if point.get("round_seconds"))
    seconds = epoch_seconds(run, history)
    if not rounds or seconds is None:
        return [unknown("time-outs", "no rounds have been averaged yet, so there is nothing to compare with")]
    usual = rounds[int(0.95 * (len(rounds) - 1))]
    seen = f"averaging_timeout_seconds {run.averaging_timeout_seconds:g}; 95 % of rounds took at most {usual:.1f} s"
    expected = f"at least {ROUND_SLACK:g} times as long"
    right = run.averaging_timeout_seconds >= ROUND_SLACK * usual
    found = [ok("round", seen, expected) if right else warn("round", seen, expected, _set("averaging_timeout_seconds"))]
    seen = f"matchmaking_seconds {run.matchmaking_seconds:g}; an epoch takes {seconds:.1f} s"
    right = run.matchmaking_seconds < seconds
    cure = "Rounds overlap. " + _set("target_batch_size")
    found.append(ok("epoch", seen, "a longer epoch") if right else warn("epoch", seen, "a longer epoch", cure))
    return found


def epoch_seconds(run: TrainingRun, history: Sequence[EpochSummary]) -> float | None:
    """Return how long an epoch takes at the speed in the newest points of the history."""
    speeds = [point["samples_per_second"] for point in history[-20:] if point.get("samples_per_second", 0) > 0]
    return run.samples_per_epoch * len(speeds) / sum(speeds) if speeds else None


def check_commit_budget(run: TrainingRun, history: Sequence[EpochSummary]) -> CheckResult:
    """The Hub refuses too many commits in an hour; checkpoints that come faster are delayed."""
    name, seconds = "commit budget", epoch_seconds(run, history)
    if seconds is None:
        return unknown(name, "the duration of an epoch is not known yet")
    per_hour = 3600.0 / (run.checkpoint_interval_epochs * seconds)
    seen = (
        f"a checkpoint every {counted(run.checkpoint_interval_epochs, 'epoch')} makes {per_hour:,.1f} commits an hour"
    )
    expected = f"at most {run.max_commits_per_hour}"
    if per_hour <= run.max_commits_per_hour:
        return ok(name, seen, expected)
    return warn(name, seen, expected, _set("checkpoint_interval_epochs"))


def check_card(text: str | None, metadata: Mapping[str, object]) -> CheckResult:
    """People judge a model by its card: licence, data, how to draw and how to join."""
    name, expected = "card", f"README.md with {', '.join(CARD_FIELDS)}, and how to join and draw"
    cure = "Edit README.md on the Hub; the auxiliary peer keeps the header."
    if text is None:
        return warn(name, "there is no README.md", expected, cure)
    missing = [field for field in CARD_FIELDS if not metadata.get(field)]
    missing += [f"`{words}`" for words in CARD_WORDS if words not in text]
    if missing:
        return warn(name, f"README.md says nothing about {', '.join(missing)}", expected, cure)
    return ok(name, "README.md is complete", expected)


def check_pinned(run: TrainingRun) -> CheckResult:
    """If the dataset changes, peers stream different records, and nobody can tell later what was trained on."""
    name, expected = "dataset revision", "a commit of 40 hexadecimal digits"
    if COMMIT.fullmatch(run.dataset_revision):
        return ok(name, run.dataset_revision, expected)
    cure = "Write the commit into training_run.json, or create the run again: dalle-collab run create"
    return fail(name, repr(run.dataset_revision), expected, cure)


def check_required_versions(run: TrainingRun) -> CheckResult:
    """Peers with other versions of hivemind or numpy silently lose parts of rounds."""
    name, expected = "required versions", "versions of what peers need"
    if run.required_versions:
        return ok(name, ", ".join(f"{key} {wanted}" for key, wanted in sorted(run.required_versions.items())), expected)
    return warn(
        name, "the run names none", expected, "Add required_versions to training_run.json, as a new run has it."
    )


def check_protection(run: TrainingRun, repository: str) -> CheckResult:
    """Attackers who know each other hide in the noise of single gradients, whatever the majority sends."""
    name, expected = "hostile peers", "only members may join, or averages follow a majority that agrees"
    if not run.is_open:
        return ok(name, "the run's authority admits peers", expected)
    door = f"Or admit only members: dalle-collab run authorize {repository}"
    if run.synchronisation == "sparse":
        seen = "everybody may join, and sparse rounds bound the length of what each peer sends, not its direction"
        return warn(name, seen, expected, f"{_set('synchronisation')} {door}")
    if run.aggregation_rule == "mean":
        seen = "everybody may join, and aggregation_rule is mean, which follows no majority"
        return warn(name, seen, expected, f"{_set('aggregation_rule')} {door}")
    if run.local_steps > 1:
        seen = f"everybody may join; {run.aggregation_rule} of the progress of {run.local_steps} local steps"
        return ok(name, f"{seen}, which also leaves out a peer that is several times as fast as the others", expected)
    if run.momentum_before_averaging:
        return ok(name, f"everybody may join; {run.aggregation_rule} of what many samples say", expected)
    seen = f"everybody may join; {run.aggregation_rule} of single gradients, which are mostly noise"
    return warn(name, seen, expected, f"{_set('momentum_before_averaging')} {door}")


def _set(name: str) -> str:
    return f"Change {name} in training_run.json; for a new run: dalle-collab run create --set {name}=..."
