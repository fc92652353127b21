"""Creating a training run: its repository on the Model Hub, with all that peers need to start."""

from pathlib import Path

from huggingface_hub import CommitOperationAdd, HfApi

from hub_tools.publishing.commits import commit_over, patiently
from hub_tools.publishing.folder_publishing import open_repository
from hub_tools.run_files import CARD_FILE, TRAINING_RUN_FILE
from pipelines.core.run.training_run import TrainingRun
from pipelines.features.publishing.publishable_task import Processor


def check_name_is_free(repository: str) -> None:
    """Raise ValueError if the repository already contains a run."""
    api = HfApi()
    if patiently(lambda: api.repo_exists(repository) and api.file_exists(repository, TRAINING_RUN_FILE)):
        raise ValueError(
            f"{repository} already contains a training run. Choose another name, or delete the repository: "
            f"hf repos delete {repository}"
        )


def create_run_repository(
    repository: str, run: TrainingRun, processor: Processor, folder: Path, *, license: str | None = None
) -> str:
    """Publish the run's settings, tokenizer and processor in one commit; return the commit's address.

    `folder` is an empty folder for the files, `license` the Hub's name of the weights' licence.

    Raises ValueError if the repository already contains a run.
    """
    check_name_is_free(repository)
    processor.save_pretrained(folder)
    (folder / TRAINING_RUN_FILE).write_text(run.to_json(), encoding="utf-8")
    (folder / CARD_FILE).write_text(_card_before_training(repository, run, license), encoding="utf-8")
    head = open_repository(repository, "model")
    operations = [
        CommitOperationAdd(path_in_repo=str(path.relative_to(folder)), path_or_fileobj=str(path))
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    ]
    return commit_over(head, repository, operations, f"Create training run {run.run_id}").url


def _card_before_training(repository: str, run: TrainingRun, license: str | None) -> str:
    licence = f"license: {license}\n" if license else ""
    return (
        f"---\nlibrary_name: transformers\npipeline_tag: {run.task}\ntags: [collaborative-training, hivemind]\n"
        f"{licence}datasets: [{run.dataset_repository}]\n---\n\n# {repository}\n\n"
        f"A model for {run.task} that volunteers train together. The training has not begun: join it.\n\n"
        f"```bash\ndalle-collab join {repository}\n```\n\n"
        "The first checkpoint will be published here by the run's auxiliary peer.\n"
    )
