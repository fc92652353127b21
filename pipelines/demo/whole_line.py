"""The whole system on one machine: pictures in, a model trained by two peers, pictures out, and an honest score.

Every step is a public command that a person could type; only sizes differ from a run over the Internet.
"""

import contextlib
import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from hub_tools.local_hub import LocalHub
from pipelines.demo.stages import StageError, Stages, stop_group

ORGANISATION = "demo"
LOOPBACK = "/ip4/127.0.0.1/tcp/0"
SECONDS_TO_MEET = 180.0
MARKER_FILE = ".dalle-collab-demo"


@dataclass(frozen=True, kw_only=True)
class DemoPlan:
    """What differs between the demos: where pictures come from, and sizes."""

    name: str
    """Name of the run, of its dataset, codec and CLIP on the embedded Hub."""

    output: Path
    """Folder for everything; `hub/`, `work/` and `logs/` lie in it beside the results."""

    codec_folder: Path
    clip_folder: Path
    run_settings: Mapping[str, Any]
    """Fields of `TrainingRun` and `DalleCollabConfig`."""

    micro_batch_size: int = 32
    num_trainers: int = 2
    vocabulary_size: int = 256
    shard_size: int = 2048
    num_candidates: int = 16
    keep: int = 4
    num_captions_in_grid: int = 12
    top_k: int = 64
    temperature: float = 0.7

    @property
    def work(self) -> Path:
        """Folder for what the commands hand to each other."""
        return self.output / "work"

    @property
    def pictures_to_train_on(self) -> Path:
        """Folder of tars: `pictures/train` where some pictures are held out, else `pictures`."""
        train = self.work / "pictures" / "train"
        return train if train.exists() else self.work / "pictures"

    @property
    def num_epochs(self) -> int:
        """Length of the run."""
        return int(self.run_settings["num_epochs"])

    def repository(self, suffix: str = "") -> str:
        """Return the full name of one of the demo's repositories."""
        return f"{ORGANISATION}/{self.name}{suffix}"


@dataclass(frozen=True, kw_only=True)
class LineResult:
    """What the whole line came to."""

    stage_seconds: Mapping[str, float]
    best_pictures: list[str]
    """Per caption, the file of the candidate that CLIP ranked first."""

    unranked_pictures: list[str]
    """Per caption, the file of the first candidate: what there would be without CLIP."""

    num_parameters: int
    kept: int
    dropped: Mapping[str, int]
    bytes_per_sample: float
    """Bytes of the published shards by samples."""

    history: list[dict[str, Any]]
    """Looks of the auxiliary peer at the swarm: see `EpochSummary`."""

    num_samples: int
    """Samples that the trainers have contributed together."""


@dataclass(frozen=True, kw_only=True)
class Accounts:
    """Tokens of the demo's people; each trainer is a volunteer of its own."""

    organiser: str
    volunteers: tuple[str, ...]


def run_whole_line(
    plan: DemoPlan,
    make_pictures: Callable[[Stages, Path], None],
    list_captions: Callable[[], list[str]],
    console: Console,
) -> LineResult:
    """Run all stages, then draw the listed captions; the first `plan.num_captions_in_grid` of them make the grid.

    Raises:
        StageError: a command failed; what is done already stays in the folder.
    """
    prepare_output_folder(plan.output)
    with LocalHub(plan.output / "hub") as hub:
        accounts = _make_accounts(hub, plan.num_trainers)
        stages = Stages(plan.output / "logs", hub.environment(), console)
        with stages.stage("pictures", "Making captioned pictures"):
            make_pictures(stages, plan.work / "pictures")
        _publish_dataset(stages, plan, accounts.organiser)
        _create_run(stages, plan, accounts.organiser)
        with stages.stage("training", f"Training together: {plan.num_trainers} peers and an auxiliary peer"):
            _train(stages, plan, accounts, console)
        captions = list_captions()
        with stages.stage("generation", f"Drawing {len(captions)} captions, {plan.num_candidates} candidates each"):
            ranked = dict(num_candidates=plan.num_candidates, keep=plan.keep)
            _draw(stages, plan, captions[: plan.num_captions_in_grid], "grid", **ranked)
            best = _draw(stages, plan, captions, "ranked", **ranked)
            unranked = _draw(stages, plan, captions, "unranked", num_candidates=1, keep=1)
        parameters = HfApi(endpoint=hub.endpoint, token=accounts.organiser).get_safetensors_metadata(plan.repository())
    return LineResult(
        stage_seconds=stages.seconds,
        best_pictures=[pictures[0] for pictures in best],
        unranked_pictures=[pictures[0] for pictures in unranked],
        num_parameters=sum(parameters.parameter_count.values()),
        **_figures_in_files(plan),
    )


def prepare_output_folder(folder: Path) -> None:
    """Make an empty folder; what an earlier demo left there goes, anything else is kept and refused.

    Raises:
        ValueError: the folder holds files that no demo wrote.
    """
    marker = folder / MARKER_FILE
    if folder.exists() and any(folder.iterdir()):
        if not marker.exists():
            raise ValueError(f"{folder} holds files that are not a demo's. Choose another folder: --output NAME")
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    marker.write_text("Written by dalle-collab demo; the next demo removes this folder's content.\n", encoding="utf-8")
    (folder / "work").mkdir()


def _make_accounts(hub: LocalHub, num_volunteers: int) -> Accounts:
    organiser = hub.create_user("organiser")
    volunteers = tuple(hub.create_user(f"volunteer-{number + 1}") for number in range(num_volunteers))
    members = {"organiser": "admin"} | {f"volunteer-{number + 1}": "read" for number in range(num_volunteers)}
    hub.create_organization(ORGANISATION, members=members)
    return Accounts(organiser=organiser, volunteers=volunteers)


def _publish_dataset(stages: Stages, plan: DemoPlan, token: str) -> None:
    with stages.stage("codec_and_clip", "Publishing the codec and the CLIP to the Model Hub"):
        for folder, suffix in ((plan.codec_folder, "-codec"), (plan.clip_folder, "-clip")):
            stages.run(
                "hub-tools", "publish", "folder", str(folder), plan.repository(suffix), "--type", "model",
                token=token, log_name="publish",
            )  # fmt: skip
    with stages.stage("preparation", "Filtering the pictures and encoding them as image codes"):
        stages.run(
            "dalle-collab", "data", "prepare", str(plan.pictures_to_train_on), "--codec", plan.repository("-codec"),
            "--output", str(plan.work / "dataset"), "--shard-size", str(plan.shard_size),
            token=token, log_name="prepare",
        )  # fmt: skip
    with stages.stage("publishing", "Publishing the dataset in one commit"):
        stages.run(
            "hub-tools", "publish", "dataset", str(plan.work / "dataset"), plan.repository("-codes"),
            token=token, log_name="publish",
        )  # fmt: skip


def _create_run(stages: Stages, plan: DemoPlan, token: str) -> None:
    with stages.stage("run", "Training the tokenizer and creating the run"):
        stages.run(
            "dalle-collab", "data", "train-tokenizer", plan.repository("-codes"),
            "--vocab-size", str(plan.vocabulary_size), "--output", str(plan.work / "tokenizer"),
            token=token, log_name="tokenizer",
        )  # fmt: skip
        settings = plan.work / "run_settings.json"
        settings.write_text(json.dumps(dict(plan.run_settings), indent=2) + "\n", encoding="utf-8")
        stages.run(
            "dalle-collab", "run", "create", plan.repository(), "--dataset", plan.repository("-codes"),
            "--codec", plan.repository("-codec"), "--clip", plan.repository("-clip"),
            "--tokenizer", str(plan.work / "tokenizer"), "--settings", str(settings),
            token=token, log_name="run",
        )  # fmt: skip


def _train(stages: Stages, plan: DemoPlan, accounts: Accounts, console: Console) -> None:
    """Start the auxiliary peer, then the trainers; wait until the auxiliary peer has published the last epoch."""
    events = plan.work / "auxiliary.jsonl"
    with contextlib.ExitStack() as stack:
        auxiliary = stages.start(
            "dalle-collab", "run", "assist", plan.repository(), "--host", LOOPBACK, "--follow-seconds", "20",
            "--events", str(events), token=accounts.organiser, log_name="auxiliary",
        )  # fmt: skip
        stack.callback(stop_group, auxiliary)
        _wait_for_first_event(stages, auxiliary, events)
        trainers = []
        for number, token in enumerate(accounts.volunteers):
            trainer = stages.start(
                "dalle-collab", "join", plan.repository(), "--host", LOOPBACK, "--cpu-threads", "1",
                "--micro-batch-size", str(plan.micro_batch_size), "--device", "cpu",
                "--events", str(plan.work / f"trainer-{number}.jsonl"), token=token, log_name=f"trainer-{number}",
            )  # fmt: skip
            stack.callback(stop_group, trainer)
            trainers.append(trainer)
        for report in _follow(events, auxiliary, trainers, stages, plan, console):
            if report["published_epoch"] >= plan.num_epochs:
                break
        for process in (*trainers, auxiliary):
            process.wait(timeout=SECONDS_TO_MEET)


def _wait_for_first_event(stages: Stages, auxiliary: subprocess.Popen[str], events: Path) -> None:
    deadline = time.monotonic() + SECONDS_TO_MEET
    while not events.exists():
        if auxiliary.poll() is not None:
            raise StageError(stages.failure(("dalle-collab", "run", "assist"), auxiliary.returncode, "auxiliary"))
        if time.monotonic() > deadline:
            raise StageError(f"The auxiliary peer was not up within {SECONDS_TO_MEET:.0f} s; see logs/auxiliary.log.")
        time.sleep(0.2)


def _follow(
    events: Path,
    auxiliary: subprocess.Popen[str],
    trainers: list[subprocess.Popen[str]],
    stages: Stages,
    plan: DemoPlan,
    console: Console,
) -> Iterator[dict[str, Any]]:
    columns = (
        TextColumn("  epoch {task.completed:.0f}/{task.total:.0f}"),
        BarColumn(),
        TextColumn("{task.fields[text]}"),
    )
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as progress:
        task = progress.add_task("training", total=plan.num_epochs, text="peers are starting")
        position, report = 0, {"held_epoch": 0}
        while True:
            lines = events.read_text(encoding="utf-8").splitlines(keepends=True)
            for line in lines[position:]:
                if line.endswith("\n"):
                    position += 1
                    report = json.loads(line)
                    progress.update(task, completed=report["swarm_epoch"], text=_training_text(report))
                    yield report
            if auxiliary.poll() is not None:
                if auxiliary.returncode != 0:
                    raise StageError(
                        stages.failure(("dalle-collab", "run", "assist"), auxiliary.returncode, "auxiliary")
                    )
                return
            if all(trainer.poll() is not None for trainer in trainers):
                _check_end(stages, plan, trainers, report)
            time.sleep(0.5)


def _check_end(
    stages: Stages, plan: DemoPlan, trainers: list[subprocess.Popen[str]], report: Mapping[str, Any]
) -> None:
    """Raise StageError if the trainers have ended and nobody holds the run's last state."""
    if report["held_epoch"] < plan.num_epochs:
        code = next((trainer.returncode for trainer in trainers if trainer.returncode != 0), 0)
        raise StageError(stages.failure(("dalle-collab", "join", plan.repository()), code, "trainer-0"))


def _training_text(report: Mapping[str, Any]) -> str:
    summary = report["summary"]
    if summary is None:
        return f"{report['num_trainers']} trainers"
    return (
        f"loss {summary['loss']:.3f}, {summary['num_peers']} peers, {summary['samples_per_second']:.0f} samples/s, "
        f"{summary['share_averaged']:.0%} averaged"
    )


def _draw(
    stages: Stages, plan: DemoPlan, captions: list[str], name: str, *, num_candidates: int, keep: int
) -> list[list[str]]:
    """Draw captions with the published model; return, per caption, the files of the pictures that were kept."""
    prompts = plan.work / f"{name}.txt"
    prompts.write_text("\n".join(captions) + "\n", encoding="utf-8")
    output = stages.run(
        "dalle-collab", "generate", plan.repository(), "--prompts", str(prompts), "--candidates", str(num_candidates),
        "--keep", str(keep), "--top-k", str(plan.top_k), "--temperature", str(plan.temperature), "--batch-size", "256",
        "--output", str(plan.output / f"{name}.png"), "--pictures", str(plan.work / name), "--json",
        log_name="generate",
    )  # fmt: skip
    answers = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    return [[picture["file"] for picture in answer["pictures"]] for answer in answers]


def _figures_in_files(plan: DemoPlan) -> dict[str, Any]:
    """Collect the figures that the commands have left in their files."""
    report = json.loads((plan.work / "dataset" / "report.json").read_text(encoding="utf-8"))
    looks = [json.loads(line) for line in (plan.work / "auxiliary.jsonl").read_text(encoding="utf-8").splitlines()]
    last_steps = [
        json.loads(path.read_text(encoding="utf-8").splitlines()[-1])
        for path in sorted(plan.work.glob("trainer-*.jsonl"))
    ]
    return dict(
        kept=report["kept"],
        dropped=report["dropped"],
        bytes_per_sample=report["bytes_per_sample"],
        history=[look["summary"] for look in looks if look["summary"] is not None],
        num_samples=sum(step["num_samples"] for step in last_steps),
    )
