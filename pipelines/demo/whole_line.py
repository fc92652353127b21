"""The whole system on one machine: pictures in, a model trained by two peers, pictures out, and an honest score.

Every step is a public command that a user could type; only sizes differ from a run over the Internet.
"""

import contextlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi
from rich.console import Console

from hub_tools.counted import counted
from hub_tools.local_hub import LocalHub
from hub_tools.run_files import EVALUATIONS_FILE, METRICS_FOLDER
from pipelines.demo.demo_plan import ORGANISATION, Accounts, DemoPlan
from pipelines.demo.running_spaces import SPACES_FOLDER, VISITOR, RunningSpaces, SpacesPlan, describe_spaces
from pipelines.demo.stages import Stages
from pipelines.demo.training_stage import train_together
from pipelines.training.metrics.evaluation.held_out_losses import read_evaluations

MARKER_FILE = ".dalle-collab-demo"
NUM_EXAMPLES = 4


@dataclass(frozen=True, kw_only=True)
class LineResult:
    """Results of the whole pipeline."""

    stage_seconds: Mapping[str, float]
    best_pictures: list[str]
    """Per caption, the file of the candidate that CLIP ranked first."""

    unranked_pictures: list[str]
    """Per caption, the file of the first candidate: the result without CLIP."""

    num_parameters: int
    kept: int
    dropped: Mapping[str, int]
    bytes_per_sample: float
    """Bytes of the published shards per sample."""

    history: list[dict[str, Any]]
    """Polls of the swarm by the auxiliary peer: see `EpochSummary`."""

    num_samples: int
    """Samples contributed by all trainers together."""

    evaluation: Mapping[str, Any] | None = None
    """The run's newest held-out loss; see `held_out_losses`. None: it holds out nothing."""


def run_whole_line(
    plan: DemoPlan,
    make_pictures: Callable[[Stages, Path], None],
    list_captions: Callable[[], list[str]],
    console: Console,
) -> LineResult:
    """Run all stages, then draw the listed captions; the first `plan.num_captions_in_grid` of them make the grid.

    Raises:
        StageError: a command failed; finished work stays in the folder.
    """
    prepare_output_folder(plan.output)
    with LocalHub(plan.output / "hub") as hub, contextlib.ExitStack() as stack:
        accounts = make_accounts(hub, plan.num_trainers)
        stages = Stages(plan.output / "logs", hub.environment(), console)
        with stages.stage("pictures", "Making captioned pictures"):
            make_pictures(stages, plan.work / "pictures")
        _publish_dataset(stages, plan, accounts.organiser)
        _create_run(stages, plan, accounts.organiser)
        captions = list_captions()
        stack.enter_context(_open_spaces(stages, plan, hub.endpoint, accounts.visitor, captions))
        with stages.stage("training", f"Training together: {counted(plan.num_trainers, 'peer')} and an auxiliary peer"):
            train_together(stages, plan, accounts, console)
        with stages.stage("generation", f"Drawing {len(captions)} captions, {plan.num_candidates} candidates each"):
            ranked = dict(num_candidates=plan.num_candidates, keep=plan.keep)
            _draw(stages, plan, captions[: plan.num_captions_in_grid], "grid", "--mosaic", **ranked)
            best = _draw(stages, plan, captions, "ranked", **ranked)
            unranked = _draw(stages, plan, captions, "unranked", num_candidates=1, keep=1)
        api = HfApi(endpoint=hub.endpoint, token=accounts.organiser)
        parameters = api.get_safetensors_metadata(plan.repository())
        evaluation = _newest_evaluation(api, plan)
    return LineResult(
        stage_seconds=stages.seconds,
        best_pictures=[pictures[0] for pictures in best],
        unranked_pictures=[pictures[0] for pictures in unranked],
        num_parameters=sum(parameters.parameter_count.values()),
        evaluation=evaluation,
        **_figures_in_files(plan),
    )


def prepare_output_folder(folder: Path) -> None:
    """Make an empty folder; an earlier demo's files are removed, a folder with any others is refused.

    Raises:
        ValueError: the folder has files that no demo wrote.
    """
    marker = folder / MARKER_FILE
    if folder.exists() and any(folder.iterdir()):
        if not marker.exists():
            raise ValueError(f"{folder} has files that are not a demo's. Choose another folder: --output NAME")
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    marker.write_text("Written by dalle-collab demo; the next demo removes this folder's content.\n", encoding="utf-8")
    (folder / "work").mkdir()


def make_accounts(hub: LocalHub, num_volunteers: int) -> Accounts:
    """Create the demo's users and their organisation on its Hub."""
    organiser = hub.create_user("organiser")
    volunteers = tuple(hub.create_user(f"volunteer-{number + 1}") for number in range(num_volunteers))
    visitor = hub.create_user(VISITOR)
    readers = [VISITOR, *(f"volunteer-{number + 1}" for number in range(num_volunteers))]
    hub.create_organization(ORGANISATION, members={"organiser": "admin"} | dict.fromkeys(readers, "read"))
    return Accounts(organiser=organiser, volunteers=volunteers, visitor=visitor)


@contextlib.contextmanager
def _open_spaces(stages: Stages, plan: DemoPlan, endpoint: str, token: str, captions: list[str]) -> Iterator[None]:
    """Keep the run's pages open, if the plan says so."""
    if not plan.opens_spaces:
        yield
        return
    examples = "|".join(captions[:NUM_EXAMPLES])
    spaces = SpacesPlan(
        run=plan.repository(), folder=plan.output / SPACES_FOLDER, endpoint=endpoint, token=token, examples=examples
    )
    with RunningSpaces(spaces, stages) as running:
        for line in describe_spaces(running.addresses):
            stages.console.print(f"  {line}", highlight=False)
        yield


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
            "--caption-lines", plan.caption_lines,
            token=token, log_name="prepare",
        )  # fmt: skip
    with stages.stage("publishing", "Publishing the dataset in one commit"):
        license = ("--license", plan.dataset_license) if plan.dataset_license else ()
        credits = ("--credits", plan.dataset_credits) if plan.dataset_credits else ()
        stages.run(
            "hub-tools", "publish", "dataset", str(plan.work / "dataset"), plan.repository("-codes"),
            *license, *credits, token=token, log_name="publish",
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


def _draw(
    stages: Stages, plan: DemoPlan, captions: list[str], name: str, *options: str, num_candidates: int, keep: int
) -> list[list[str]]:
    """Draw captions with the published model; return, per caption, the files of the pictures that were kept."""
    prompts = plan.work / f"{name}.txt"
    prompts.write_text("\n".join(captions) + "\n", encoding="utf-8")
    output = stages.run(
        "dalle-collab", "generate", plan.repository(), "--prompts", str(prompts), "--candidates", str(num_candidates),
        "--keep", str(keep), "--top-k", str(plan.top_k), "--temperature", str(plan.temperature), "--batch-size", "256",
        "--output", str(plan.output / f"{name}.png"), "--pictures", str(plan.work / name), "--json", *options,
        log_name="generate",
    )  # fmt: skip
    answers = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    return [[picture["file"] for picture in answer["pictures"]] for answer in answers]


def _newest_evaluation(api: HfApi, plan: DemoPlan) -> dict[str, Any] | None:
    name, folder = f"{METRICS_FOLDER}/{EVALUATIONS_FILE}", plan.work / "published"
    if not api.file_exists(plan.repository(), name):
        return None
    api.hf_hub_download(plan.repository(), name, local_dir=folder)
    return next(reversed(read_evaluations(folder / METRICS_FOLDER)), None)


def _figures_in_files(plan: DemoPlan) -> dict[str, Any]:
    """Collect the figures from the commands' files."""
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
