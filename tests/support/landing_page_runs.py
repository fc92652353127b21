"""Runs as organisers publish them, for the landing page: a long one with hostile names, and ones that went wrong."""

import dataclasses
import json
import math
import random
import time

from huggingface_hub import HfApi, constants
from huggingface_hub.utils import disable_progress_bars
from PIL import Image, ImageDraw

from hub_tools.local_hub import LocalHub
from hub_tools.publishing.dataset_card import DatasetSummary, ShardSummary, dataset_card
from pipelines.core.run.training_run import TrainingRun
from pipelines.features.publishing.metrics.credit.contributions import Contribution, leaderboard
from pipelines.features.publishing.metrics.epoch_summary import EpochSummary
from pipelines.features.publishing.metrics.history import append_point, summary_json
from pipelines.features.publishing.metrics.sample_gallery import write_index
from pipelines.tasks.text_to_image.image_codes.image_code_record import IMAGE_CODE_SCHEMA

HOSTILE_NAME = "<img src=x onerror=alert(1)>"
NUM_EPOCHS = 30_000
NUM_USERS = 500
ABSURD_EPOCH = 12_345
PROMPTS = ("a robin on a branch", "a red barn in the snow", "<b>bold</b> & brave")
DATASET = "org/robins-codes"
NUM_RECORDS, BYTES_PER_RECORD = 2_000_000, 1_580
RUN = TrainingRun(
    run_id="robins",
    model_config={},
    dataset_repository=DATASET,
    dataset_revision="main",
    num_epochs=31_250,
    reel_prompts=PROMPTS,
)


def history(now):
    """A loss that falls with noise and is absurd once; peers that come and go."""
    chance, points = random.Random(0), []
    for epoch in range(1, NUM_EPOCHS + 1):
        num_peers = round(9 + 6 * math.sin(epoch / 900) + 12 * epoch / NUM_EPOCHS + chance.gauss(0, 1.2))
        values = dict(
            epoch=epoch,
            loss=9e5 if epoch == ABSURD_EPOCH else 2.6 + 4.2 * math.exp(-epoch / 2500) + chance.gauss(0, 0.05),
            num_peers=max(1, num_peers),
            samples_per_second=4.2 * max(1, num_peers) + chance.random(),
            share_averaged=0.99,
            bytes_sent=epoch * 10**8,
            num_rounds=epoch,
            round_seconds=22.5,
            num_refused_gradients=0,
            time=now - 75.0 * (NUM_EPOCHS - epoch) - 60,
        )
        append_point(points, EpochSummary(**values))
    return points


def contributors(now):
    """As many users as a popular run has, the most diligent one with a name that is meant to be run."""
    chance, day = random.Random(1), time.strftime("%Y-%m-%d", time.gmtime(now))
    names = [HOSTILE_NAME, "alice", "W" * 96, *(f"user-{number}" for number in range(NUM_USERS - 3))]
    return {
        (day, name): Contribution(samples=int(6e6 / (1 + rank) ** 0.8), seconds=chance.uniform(2e3, 9e5) / (1 + rank))
        for rank, name in enumerate(names)
    }


def publish_runs(hub: LocalHub, folder) -> None:
    """Publish `org/robins`, which is well, and four whose names say what is the matter with them."""
    constants.HF_HUB_DISABLE_XET = True
    disable_progress_bars()
    api, now = HfApi(endpoint=hub.endpoint, token=hub.alice_token), time.time()
    days = contributors(now)
    points = history(now)
    summary, older = (
        summary_json(
            facts=dict(run_id=RUN.run_id, num_epochs=RUN.num_epochs),
            history=shown,
            evaluations=[
                dict(epoch=e, loss=2.7 + 4.4 * math.exp(-e / 2600), time=now) for e in range(500, NUM_EPOCHS, 500)
            ],
            leaderboard=leaderboard(days, now, 200),
            num_contributors=len(days),
            now=now,
            peers=[(name, 30.5 / (1 + rank)) for rank, (_, name) in enumerate(list(days)[:12])],
        )
        for shown in (points, points[:-100])
    )
    with_bucket = dataclasses.replace(RUN, bucket="org/robins-live")
    add_to_bucket(api, with_bucket, summary)
    absurd = json.loads(RUN.to_json()) | {"target_batch_size": -5, "model_config": {"hidden_size": 1e300}}
    nonsense = {
        "history": {"epoch": [3, 2, "x"], "time": [1e300], "loss": None},
        "newest": {"epoch": 10**40, "loss": HOSTILE_NAME},
        "leaderboard": [None, {"username": 7}, {"username": HOSTILE_NAME, "samples_all": "many"}],
        "num_contributors": -1,
        "peers": [None, {"username": 7}, {"username": HOSTILE_NAME, "samples_per_second": "many"}],
    }
    runs = {
        "robins": {
            "training_run.json": with_bucket.to_json(),
            "metrics/summary.json": older,
            **reel_files(folder, now),
        },
        "robins-fresh": {"training_run.json": RUN.to_json()},
        "robins-absurd": {"training_run.json": json.dumps(absurd), "metrics/summary.json": json.dumps(nonsense)},
        "robins-torn": {"training_run.json": RUN.to_json(), "metrics/summary.json": summary[:5000]},
        "robins-over": {
            "training_run.json": dataclasses.replace(RUN, num_epochs=NUM_EPOCHS - 100).to_json(),
            "metrics/summary.json": older,
        },
        "robins-codec": {"README.md": "a codec"},
    }
    for name, files in runs.items():
        publish(api, f"org/{name}", "model", folder / name, files)
    publish(api, DATASET, "dataset", folder / "dataset", {"README.md": card(folder)})


def add_to_bucket(api, run, summary):
    """Put metrics into a run's bucket, as its publisher does between commits."""
    api.create_bucket(run.bucket)
    path = f"{run.run_id}/generation-{run.generation}/metrics/summary.json"
    api.batch_bucket_files(run.bucket, add=[(summary.encode(), path)])


def publish(api, repository, kind, folder, files):
    """Publish files, given as texts or bytes by path."""
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content if isinstance(content, bytes) else content.encode())
    api.create_repo(repository, repo_type=kind)
    api.upload_folder(repo_id=repository, repo_type=kind, folder_path=str(folder))


def reel_files(folder, now):
    """Pictures that become clearer from epoch to epoch, with their index."""
    made = folder / "reel"
    made.mkdir()
    pictures = []
    for number, epoch in enumerate((100, 5_000, 12_000, 30_000)):
        size = 96
        picture = Image.effect_noise((4 * size, len(PROMPTS) * size), 90 - 25 * number).convert("RGB")
        draw = ImageDraw.Draw(picture)
        for row in range(len(PROMPTS)):
            for column in range(4):
                left, top, inset = column * size, row * size, 40 - 10 * number
                box = (left + inset, top + inset, left + size - inset, top + size - inset)
                draw.ellipse(box, fill=(90 + 50 * row, 80, 200))
        picture.save(made / f"epoch-{epoch:08d}.webp", quality=80)
        entry = dict(epoch=epoch, file=f"epoch-{epoch:08d}.webp", time=now - 75.0 * (NUM_EPOCHS - epoch))
        pictures.append(entry | dict(width=picture.width, height=picture.height))
    write_index(made, PROMPTS, pictures)
    return {f"progress_reel/{path.name}": path.read_bytes() for path in made.iterdir()}


def card(folder):
    """The card that `hub-tools publish dataset` writes for two shards."""
    columns = tuple((field.name, str(field.type)) for field in IMAGE_CODE_SCHEMA)
    shards = tuple(
        ShardSummary(
            name=f"data/train-{number:05d}.parquet",
            num_rows=NUM_RECORDS // 2,
            num_bytes=NUM_RECORDS // 2 * BYTES_PER_RECORD,
            column_types=columns,
        )
        for number in range(2)
    )
    return dataset_card(DatasetSummary(folder=folder, shards=shards, schema=IMAGE_CODE_SCHEMA, metadata={}), DATASET)
