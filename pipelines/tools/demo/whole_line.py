"""The whole system on one machine: pictures in, a model trained by two peers, pictures out, and an honest score.

Every step is a public command that a user could type; only sizes differ from a run over the Internet. A call goes on
where an interrupted one has stopped.
"""

import contextlib
import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi
from rich.console import Console
from rich.markup import escape

from hub_tools.counted import counted
from hub_tools.local_hub import LocalHub
from hub_tools.printing.printable import one_line
from hub_tools.processes.event_files import read_events
from hub_tools.run_files import EVALUATIONS_FILE, METRICS_FOLDER, RUN_STATE_FILE, TRAINING_RUN_FILE
from pipelines.core.run.training_run import TrainingRun
from pipelines.features.publishing.metrics.epoch_summary import EpochSummary
from pipelines.features.publishing.metrics.evaluation.held_out_losses import HeldOutRow, read_evaluations
from pipelines.tools.demo.configured_hub import ConfiguredHub
from pipelines.tools.demo.demo_plan import Accounts, DemoPlan
from pipelines.tools.demo.running.event_figures import num_samples, run_history
from pipelines.tools.demo.running.finished_work import digest_of, remove
from pipelines.tools.demo.running.output_folder import demo_folder
from pipelines.tools.demo.running.progress_lines import ProgressLines
from pipelines.tools.demo.running_spaces import (
    SPACES_FOLDER,
    VISITOR,
    RunningSpaces,
    SpacesPlan,
    describe_spaces,
    opened_hub,
)
from pipelines.tools.demo.stages import StageError, Stages
from pipelines.tools.demo.training_stage import published_epoch, train_together

NUM_EXAMPLES = 4
REPOSITORIES = {"-codec": "model", "-clip": "model", "-codes": "dataset", "": "model"}
"""What a line publishes: endings of names, and kinds."""


@dataclass(frozen=True, kw_only=True)
class LineResult:
    """Results of the whole pipeline."""

    stage_seconds: Mapping[str, float]
    best_pictures: list[str]
    """Per caption, the file of the candidate that CLIP ranked first."""

    unranked_pictures: list[str]
    """Per caption, the file of the first candidate: the result without CLIP."""

    grid: Sequence[tuple[str, list[str]]]
    """The captions of the grid with the files of their pictures, best first."""

    num_parameters: int
    kept: int
    dropped: Mapping[str, int]
    bytes_per_sample: float
    """Bytes of the published shards per sample."""

    history: list[EpochSummary]
    """Polls of the swarm by the auxiliary peer."""

    num_samples: int
    """Samples contributed by all trainers together."""

    evaluation: HeldOutRow | None = None
    """The run's newest held-out loss. None: it holds out nothing."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """A demo that has been opened: its Hub, its users, and what runs its stages."""

    plan: DemoPlan
    hub: LocalHub | ConfiguredHub
    accounts: Accounts
    stages: Stages

    @property
    def api(self) -> HfApi:
        """The organiser's client."""
        return HfApi(endpoint=self.hub.endpoint, token=self.accounts.organiser)

    def commit(self, suffix: str = "", kind: str = "model") -> str:
        """Return the newest commit of one of the demo's repositories; empty if there is none."""
        name = self.plan.repository(suffix)
        return str(self.api.repo_info(name, repo_type=kind).sha) if self.api.repo_exists(name, repo_type=kind) else ""


@contextlib.contextmanager
def opened_line(plan: DemoPlan, console: Console) -> Iterator[Line]:
    """Hold the plan's folder and serve its Hub for the length of the block; what is there of the same plan is kept.

    Raises:
        ValueError: the folder cannot be used for this; the message says why.
    """
    lines = ProgressLines(console)
    folder = demo_folder(plan.output, plan.ingredients, lines, keeps_others=plan.own_pictures is not None)
    with folder, opened_hub(plan.output, lines, is_online=plan.is_online) as hub:
        accounts = make_accounts(hub, plan.organisation, plan.num_trainers)
        stages = Stages(plan.output, hub.environment(), console, shows_commands=plan.shows_commands)
        yield Line(plan=plan, hub=hub, accounts=accounts, stages=stages)


def run_whole_line(
    plan: DemoPlan,
    make_pictures: Callable[[Stages, Path], None],
    list_captions: Callable[[], list[str]],
    console: Console,
    *,
    train_models: Callable[[Stages], None] = lambda stages: None,
) -> LineResult:
    """Run all stages, then draw the listed captions; the first `plan.num_captions_in_grid` of them make the grid.

    `train_models` trains a codec and a CLIP on the pictures, where they are not there already.

    Raises:
        StageError: a command failed; the next call goes on with what is finished.
        ValueError: the folder cannot be used for this; the message says why.
    """
    with opened_line(plan, console) as line, contextlib.ExitStack() as stack:
        stages, pictures = line.stages, plan.work / "pictures"
        if plan.own_pictures is None:
            stages.once(
                "pictures", "Making captioned pictures", lambda: make_pictures(stages, pictures), outputs=[pictures]
            )
        if plan.is_online:
            _claim_names(line)
        train_models(stages)
        _publish_dataset(line)
        _create_run(line)
        line = _with_schedule(line)
        with stages.lines.doing("Choosing captions"):
            captions = list_captions()
        stack.enter_context(_open_spaces(line, captions))
        train_to_the_end(line)
        grid, best, unranked = _draw_all(line, captions)
        with stages.lines.doing("Collecting the figures"):
            parameters = line.api.get_safetensors_metadata(plan.repository())
            return LineResult(
                stage_seconds=stages.seconds,
                grid=list(zip(captions, grid, strict=False)),
                best_pictures=[pictures[0] for pictures in best],
                unranked_pictures=[pictures[0] for pictures in unranked],
                num_parameters=sum(parameters.parameter_count.values()),
                evaluation=_newest_evaluation(line.api, plan),
                **_figures_in_files(plan),
            )


def _claim_names(line: Line) -> None:
    """Refuse names on the Hub that others use; from the second call on, these repositories are this run's own."""

    def check() -> None:
        names = [(line.plan.repository(suffix), kind) for suffix, kind in REPOSITORIES.items()]
        taken = [name for name, kind in names if line.api.repo_exists(name, repo_type=kind)]
        if taken:
            raise StageError(f"{', '.join(taken)} exists on the Hub already. Choose another --name.")

    line.stages.once("names", "Looking whether the names are free", check, inputs=line.hub.endpoint)


def _with_schedule(line: Line) -> Line:
    """Return the line with the length of the run that was created, which the preset may have chosen."""
    name, folder = TRAINING_RUN_FILE, line.plan.work / "published"
    file = line.api.hf_hub_download(line.plan.repository(), name, local_dir=folder)
    settings = {**line.plan.run_settings, "num_epochs": TrainingRun.from_file(Path(file)).num_epochs}
    return dataclasses.replace(line, plan=dataclasses.replace(line.plan, run_settings=settings))


def train_to_the_end(line: Line) -> None:
    """Train until the last epoch is published, unless it is."""
    plan = line.plan
    description = f"Training together: {counted(plan.num_trainers, 'peer')} and an auxiliary peer"
    if published_epoch(line.hub, line.accounts.organiser, plan) >= plan.num_epochs:
        line.stages.lines.say(f"[green]kept[/green] {escape(description)}", markup=True)
        return
    if plan.own_pictures is not None:
        # A Hub of one's own refuses the tokens of others, and need not see them.
        place = "" if plan.is_online else f"HF_TOKEN= HF_TOKEN_PATH=/dev/null HF_ENDPOINT={line.hub.endpoint} "
        where = "from anywhere" if plan.is_online else "in another terminal"
        line.stages.lines.say(f"Others join {where}: {place}dalle-collab join {plan.repository()}")
    with line.stages.stage("training", description):
        train_together(line.stages, plan, line.accounts, line.hub)


def make_accounts(hub: LocalHub | ConfiguredHub, organisation: str, num_volunteers: int) -> Accounts:
    """Return tokens of the users; on an embedded Hub, they and the organisation are created where they are missing."""
    names = [f"volunteer-{number + 1}" for number in range(num_volunteers)]
    accounts = Accounts(
        organiser=hub.token_of("organiser"), volunteers=tuple(map(hub.token_of, names)), visitor=hub.token_of(VISITOR)
    )
    if not isinstance(hub, ConfiguredHub):
        with contextlib.suppress(ValueError):  # its name is taken: it is there, with its members
            members = {"organiser": "admin"} | dict.fromkeys((VISITOR, *names), "read")
            hub.create_organization(organisation, members=members)
    return accounts


@contextlib.contextmanager
def _open_spaces(line: Line, captions: list[str]) -> Iterator[None]:
    """Keep the run's pages open, if the plan says so; the demo needs none of them."""
    plan, say = line.plan, line.stages.lines.say
    if not plan.opens_spaces:
        yield
        return
    spaces = SpacesPlan(
        run=plan.repository(), folder=plan.output / SPACES_FOLDER, endpoint=line.hub.endpoint,
        token=line.accounts.visitor, examples="|".join(captions[:NUM_EXAMPLES]), is_online=plan.is_online,
    )  # fmt: skip
    with contextlib.ExitStack() as stack:
        try:
            with line.stages.lines.doing("Opening the pages of the run"):
                running = stack.enter_context(RunningSpaces(spaces, line.stages))
        except (OSError, ValueError) as error:
            say(f"The pages of the run cannot be opened ({error}); the demo goes on without them.")
        else:
            for address in describe_spaces(running.addresses):
                say(f"  {address}")
        yield


def _publish_dataset(line: Line) -> None:
    stages, plan, token = line.stages, line.plan, line.accounts.organiser
    models = ((plan.codec_folder, "-codec"), (plan.clip_folder, "-clip"))

    def publish_models() -> None:
        for folder, suffix in models:
            stages.run(
                "hub-tools", "publish", "folder", str(folder), plan.repository(suffix), "--type", "model",
                token=token, log_name="publish",
            )  # fmt: skip

    stages.once(
        "codec_and_clip", "Publishing the codec and the CLIP to the Model Hub", publish_models,
        inputs=" ".join(digest_of(folder) for folder, _ in models),
        is_there=lambda: all(line.commit(suffix) for _, suffix in models),
    )  # fmt: skip
    stages.once(
        "preparation", "Filtering the pictures and encoding them as image codes",
        lambda: stages.run(
            "dalle-collab", "data", "prepare", str(plan.pictures_to_train_on), "--codec", plan.repository("-codec"),
            "--output", str(plan.work / "dataset"), "--shard-size", str(plan.shard_size),
            *plan.caption_options,
            token=token, log_name="prepare",
        ),
        inputs=digest_of(plan.codec_folder), outputs=[plan.work / "dataset"], continues=True,
    )  # fmt: skip
    stages.once(
        "publishing", "Publishing the dataset in one commit",
        lambda: stages.run(
            "hub-tools", "publish", "dataset", str(plan.work / "dataset"), plan.repository("-codes"),
            token=token, log_name="publish",
        ),
        inputs=digest_of(plan.work / "dataset"), is_there=lambda: bool(line.commit("-codes", "dataset")),
    )  # fmt: skip


def _create_run(line: Line) -> None:
    stages, plan, token = line.stages, line.plan, line.accounts.organiser

    def create() -> None:
        stages.run(
            "dalle-collab", "data", "train-tokenizer", plan.repository("-codes"),
            "--vocab-size", str(plan.vocabulary_size), "--output", str(plan.work / "tokenizer"),
            token=token, log_name="tokenizer",
        )  # fmt: skip
        create_run(
            line, "--dataset", plan.repository("-codes"), "--codec", plan.repository("-codec"),
            "--clip", plan.repository("-clip"), "--tokenizer", str(plan.work / "tokenizer"),
        )  # fmt: skip

    stages.once(
        "run", "Training the tokenizer and creating the run", create, inputs=digest_of(plan.work / "dataset"),
        outputs=[plan.work / "tokenizer"], is_there=lambda: bool(line.commit()),
    )  # fmt: skip


def create_run(line: Line, *options: str) -> None:
    """Create the demo's run; one that an interrupted call has created, and not trained, is deleted before."""
    plan, settings = line.plan, line.plan.work / "run_settings.json"
    name = plan.repository()
    if line.commit() and (plan.is_online or line.api.file_exists(name, RUN_STATE_FILE)):
        raise StageError(
            f"{name} exists on the Hub already. If nobody needs it delete it there, or choose another name."
        )
    line.api.delete_repo(name, missing_ok=True)
    remove(plan.auxiliary_folder)
    settings.write_text(json.dumps(dict(plan.run_settings), indent=2) + "\n", encoding="utf-8")
    told = line.stages.run(
        "dalle-collab", "run", "create", plan.repository(), *options, *plan.create_options, "--settings", str(settings),
        *plan.organiser_key,
        token=line.accounts.organiser, log_name="run",
    )  # fmt: skip
    if plan.shows_commands:
        for sentence in told.partition("\nCreated ")[0].splitlines():
            line.stages.lines.say(f"  {one_line(sentence)}")


def _draw_all(line: Line, captions: list[str]) -> tuple[list[list[str]], list[list[str]], list[list[str]]]:
    """Draw the grid and all captions; return the files of the grid, of those CLIP chose, and of one candidate each.

    If the grid has all captions it is drawn alone.
    """
    plan, number = line.plan, counted(len(captions), "caption")
    grid = _draw(
        line, f"Drawing a grid, {plan.num_candidates} candidates for each caption",
        captions[: plan.num_captions_in_grid], "grid", num_candidates=plan.num_candidates, keep=plan.keep,
    )  # fmt: skip
    if len(captions) <= plan.num_captions_in_grid:
        return grid, [], []
    best = _draw(
        line, f"Drawing {number}, {plan.num_candidates} candidates each", captions, "ranked",
        num_candidates=plan.num_candidates, keep=1,
    )  # fmt: skip
    once = _draw(line, f"Drawing {number} once, without CLIP", captions, "unranked", num_candidates=1, keep=1)
    return grid, best, once


def _draw(
    line: Line, description: str, captions: list[str], name: str, *, num_candidates: int, keep: int
) -> list[list[str]]:
    """Draw captions with the published model; return, per caption, the files of the pictures that were kept."""
    stages, plan = line.stages, line.plan
    prompts = plan.work / f"{name}.txt"

    def draw() -> list[list[str]]:
        prompts.write_text("\n".join(captions) + "\n", encoding="utf-8")
        output = stages.run(
            "dalle-collab", "generate", plan.repository(), "--prompts", str(prompts),
            "--candidates", str(num_candidates), "--keep", str(keep), "--top-k", str(plan.top_k),
            "--temperature", str(plan.temperature), "--batch-size", "256",
            "--output", str(plan.work / f"{name}.png"), "--pictures", str(plan.work / name), "--json",
            log_name="generate",
        )  # fmt: skip
        answers = [json.loads(answer) for answer in output.splitlines() if answer.startswith("{")]
        return [
            [str(Path(picture["file"]).relative_to(plan.output)) for picture in answer["pictures"]]
            for answer in answers
        ]

    files = stages.once(
        "generation", description, draw, piece=name, inputs=line.commit(),
        outputs=[plan.work / name],
    )  # fmt: skip
    return [[str(plan.output / file) for file in kept] for kept in files]


def _newest_evaluation(api: HfApi, plan: DemoPlan) -> HeldOutRow | None:
    name, folder = f"{METRICS_FOLDER}/{EVALUATIONS_FILE}", plan.work / "published"
    if not api.file_exists(plan.repository(), name):
        return None
    api.hf_hub_download(plan.repository(), name, local_dir=folder)
    return next(reversed(read_evaluations(folder / METRICS_FOLDER)), None)


def _figures_in_files(plan: DemoPlan) -> dict[str, Any]:
    """Collect the figures from the commands' files."""
    report = json.loads((plan.work / "dataset" / "report.json").read_text(encoding="utf-8"))
    return dict(
        kept=report["kept"],
        dropped=report["dropped"],
        bytes_per_sample=report["bytes_per_sample"],
        history=run_history(read_events(plan.work / "auxiliary.jsonl")),
        num_samples=sum(num_samples(read_events(path)) for path in sorted(plan.work.glob("trainer-*.jsonl"))),
    )
