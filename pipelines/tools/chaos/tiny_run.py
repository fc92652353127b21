"""Creates the chaos run's repositories on the environment's Hub, in one process.

Usage: python -m pipelines.tools.chaos.tiny_run FOLDER REPOSITORY SETTINGS.json, with `HF_ENDPOINT` and `HF_TOKEN` set.
"""

import json
import sys
from pathlib import Path

from transformers import AutoTokenizer

from hub_tools.endpoint import prepare_hub_client
from hub_tools.publishing.dataset_publishing import publish_dataset
from hub_tools.publishing.folder_publishing import publish_folder
from pipelines.features.publishing.repository.creation import create_run_repository
from pipelines.features.publishing.repository.organiser import found_organiser
from pipelines.tasks.text_to_image.run_creation import compose_processor, compose_run
from pipelines.tools.chaos.tiny_material import write_tiny_material

NUM_RECORDS = 2048


def create_tiny_run(folder: Path, repository: str, settings: dict) -> None:
    """Publish a tiny dataset, codec and run; `folder` is an empty folder for their files."""
    layout = write_tiny_material(folder, NUM_RECORDS)
    dataset, codec = f"{repository}-codes", f"{repository}-codec"
    publish_dataset(folder / "dataset", dataset)
    publish_folder(folder / "codec", codec)
    tokenizer = AutoTokenizer.from_pretrained(folder / "tokenizer", trust_remote_code=False)
    run = compose_run(
        run_id=settings.pop("run_id"),
        dataset_repository=dataset,
        layout=layout,
        tokenizer=tokenizer,
        settings=settings,
    )
    processor = compose_processor(
        tokenizer,
        run,
        layout,
        codec_repository=codec,
        codec_fingerprint=layout.codec_fingerprint,
        clip_repository=None,
    )
    (folder / "run").mkdir()
    run = run.replace(organiser_key=found_organiser(repository).key.public)
    create_run_repository(repository, run, processor, folder / "run")


if __name__ == "__main__":
    prepare_hub_client()
    create_tiny_run(Path(sys.argv[1]), sys.argv[2], json.loads(Path(sys.argv[3]).read_text(encoding="utf-8")))
