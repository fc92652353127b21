"""A made-up run as its auxiliary peer would have published it: history, evaluations, contributions, tags, pictures."""

import json
import math
import tempfile
import warnings
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
from huggingface_hub import HfApi, constants
from huggingface_hub.utils import disable_progress_bars
from PIL import Image, ImageDraw

from hub_tools.run_files import METRICS_FOLDER, REEL_FOLDER, SUMMARY_FILE
from pipelines.core.run.training_run import TrainingRun
from pipelines.features.publishing.metrics.credit.contribution_files import write_contributions
from pipelines.features.publishing.metrics.credit.contributions import Contribution, ContributionLedger
from pipelines.features.publishing.metrics.evaluation.checkpoint_figures import CheckpointFigure, write_figures
from pipelines.features.publishing.metrics.evaluation.held_out_losses import write_evaluations
from pipelines.features.publishing.metrics.history import summary_json, write_history
from pipelines.features.publishing.metrics.sample_gallery import write_index

PROMPTS = ("a red fox", "two green birds <3")


def recorded_history(num_epochs: int, end: float, seconds_per_epoch: float = 20.0) -> list[dict]:
    """Return a history that ends at a time: a loss that falls, a swarm that comes and goes, one spike."""
    chance = np.random.default_rng(0)
    share = np.arange(1, num_epochs + 1) / num_epochs
    losses = 2.2 + 6.5 * np.exp(-8 * share) + chance.normal(0, 0.03, num_epochs)
    losses[num_epochs // 2] += 2.5
    peers = np.clip(60 + 40 * np.sin(12 * share) + chance.normal(0, 3, num_epochs), 4, None).astype(int)
    return [
        dict(
            epoch=index + 1,
            time=end - (num_epochs - 1 - index) * seconds_per_epoch,
            loss=float(losses[index]),
            num_peers=int(peers[index]),
            samples_per_second=float(peers[index] * 4.0 + chance.normal(0, 8)),
            share_averaged=float(1.0 if chance.random() < 0.97 else chance.uniform(0.8, 1.0)),
            epoch_seconds=seconds_per_epoch,
            round_seconds=float(3 + chance.gamma(2.0, 0.5)),
            bytes_sent=int(1e9) * index,
            num_rounds=index,
            num_refused_gradients=0,
            suspects={},
        )
        for index in range(num_epochs)
    ]


def recorded_evaluations(points: Sequence[dict]) -> list[dict]:
    """Return held-out losses at some points of a history, the first of them as older versions wrote them."""
    rows = [dict(epoch=p["epoch"], loss=p["loss"] + 0.1, num_records=256, time=p["time"], seconds=9.0) for p in points]
    return rows[:1] + [
        row | dict(low=row["loss"] - 0.12, high=row["loss"] + 0.12, weights="d" * 64) for row in rows[1:]
    ]


def recorded_figures(points: Sequence[dict]) -> list[CheckpointFigure]:
    """Return evaluations of checkpoints that stand on few records, at some points of a history."""
    command = f"dalle-collab evaluate org/recorded-run --revision {'c' * 40} --records 40 --drawings 2"
    kinds = {
        "fid@clip": (0.12, 0.02, "drawings", "lower"), "kid@clip": (0.015, 0.004, "drawings", "lower"),
        "cmmd": (0.5, 0.08, "drawings", "lower"), "clip_score": (-8.0, 1.1, "prompts", "higher"),
    }  # fmt: skip
    return [
        CheckpointFigure(
            epoch=p["epoch"], name=name, value=(value := abs(30 * (scale < 0) + scale * p["loss"] / 3)),
            low=value - reach, high=value + reach, num_items=2 if items == "drawings" else 40, items=items,
            better=better, num_records=40, commit="c" * 40, weights="d" * 64, command=command, time=p["time"],
            seconds=60.0,
        )
        for p in points
        for name, (scale, reach, items, better) in kinds.items()
    ]  # fmt: skip


def recorded_contributions(num_users: int, end: float) -> ContributionLedger:
    """Return what users have contributed in the last two weeks."""
    today = datetime.fromtimestamp(end, UTC).date()
    days = {}
    for user in range(num_users):
        for back in range(0, 14, 1 + user % 5):
            day = (today - timedelta(days=back)).isoformat()
            days[day, f"volunteer-{user:03d}"] = Contribution(samples=100 + 7 * user, seconds=60.0 * (1 + user % 60))
    return ContributionLedger(days=days, time=end)


def publish_recorded_run(
    api: HfApi,
    repository: str,
    run: TrainingRun,
    *,
    num_epochs: int,
    num_users: int,
    end: float,
    checkpoints: Sequence[int] = (),
) -> None:
    """Publish the run with all that a dashboard reads, in one commit; `end` is the time of its last epoch."""
    # The embedded Hub has no Xet, and the client never falls back.
    constants.HF_HUB_DISABLE_XET = True
    disable_progress_bars()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "training_run.json").write_text(run.to_json(), encoding="utf-8")
        history = recorded_history(num_epochs, end)
        write_history(history, folder / METRICS_FOLDER)
        write_evaluations(recorded_evaluations(history[99::100]), folder / METRICS_FOLDER)
        write_figures(recorded_figures(history[99::100]), folder / METRICS_FOLDER)
        write_contributions(recorded_contributions(num_users, end), folder / METRICS_FOLDER)
        facts = dict(facts={}, evaluations=[], leaderboard=[], num_contributors=num_users)
        (folder / METRICS_FOLDER / SUMMARY_FILE).write_text(summary_json(history=history, now=end, **facts))
        _write_reel(folder / REEL_FOLDER, checkpoints)
        (folder / "run_state.json").write_text(json.dumps(dict(run_id=run.run_id, epoch=num_epochs)))
        api.create_repo(repository, exist_ok=True)
        with warnings.catch_warnings():
            # The history of a run lies beside its model.
            warnings.filterwarnings("ignore", message="It seems that you are about to commit a data file")
            commit = api.upload_folder(repo_id=repository, folder_path=name, commit_message="Recorded run").oid
        for epoch in checkpoints:
            api.create_tag(repository, tag=f"epoch-{epoch}", revision=commit)


def _write_reel(folder: Path, epochs: Sequence[int]) -> None:
    folder.mkdir()
    entries = []
    for index, epoch in enumerate(epochs):
        picture = Image.new("RGB", (96, 96 * len(PROMPTS)), (40, 40, 60))
        for row in range(len(PROMPTS)):
            size = 10 + 30 * math.sqrt((index + 1) / len(epochs))
            middle = 96 * row + 48
            ImageDraw.Draw(picture).ellipse(
                (48 - size, middle - size, 48 + size, middle + size), (220, 90 + 100 * row, 60)
            )
        picture.save(folder / f"epoch-{epoch:08d}.webp")
        entries.append(dict(epoch=epoch, file=f"epoch-{epoch:08d}.webp", time=0.0, width=96, height=192))
    write_index(folder, PROMPTS, entries)
