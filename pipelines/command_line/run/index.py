"""`dalle-collab run index`: the training data by CLIP embedding, for "Seen in training?" on the drawing page."""

from pathlib import Path
from typing import Annotated

import typer

from hub_tools.counted import counted
from pipelines.command_line.terminal.setting_options import Clip, Codec, Device


def index(
    run: Annotated[str, typer.Argument(metavar="ORG/RUN", help="Model Hub repository of the run, or a folder.")],
    output: Annotated[Path, typer.Option(help="Folder of the index; an unfinished one is continued.")],
    dataset: Annotated[
        str | None, typer.Option(help="Folder of shards or dataset ORG/NAME; default: the run's dataset.")
    ] = None,
    every: Annotated[int, typer.Option(help="Index one record in this many; about 5 kB each for ViT-B/32.")] = 1,
    codec: Codec = None,
    clip: Clip = None,
    device: Device = "auto",
    batch_size: Annotated[int, typer.Option(help="Pictures decoded at once; fewer need less memory.")] = 64,
    publish: Annotated[
        str | None, typer.Option(metavar="ORG/NAME", help="Publish the index as this dataset repository.")
    ] = None,
    private: Annotated[bool, typer.Option("--private", help="Make that repository private.")] = False,
) -> None:
    """Index the training data by CLIP embedding, to tell memorisation from generalisation.

    Every picture is decoded once; the nearest training pictures and captions can then be shown next to generated ones:
    set the variable TRAINING_INDEX of the Space text_to_image_demo to the folder or repository. Ctrl-C loses no
    finished work: the same command resumes.

    Examples:

      dalle-collab run index my-org/birds --output birds-index --publish my-org/birds-index

      dalle-collab run index my-org/birds --dataset ./shards --every 10 --output birds-index
    """
    from hub_tools.printing.stage_progress import stage_progress
    from pipelines.features.torch_devices import torch_device
    from pipelines.tasks.text_to_image.generation.image_generation import load_ranking_parts
    from pipelines.tasks.text_to_image.generation.training_index_building import build_training_index
    from pipelines.tasks.text_to_image.image_codes.dataset_shards import find_dataset

    if private and publish is None:
        raise ValueError("--private has no effect, as the index is not published. Add: --publish ORG/NAME")
    source = find_dataset(*_dataset_of(run)) if dataset is None else find_dataset(dataset)
    parts = load_ranking_parts(run, codec=codec, clip=clip, device=torch_device(device))
    with stage_progress() as on_progress:
        report = build_training_index(
            source, parts.codec, parts.reranker, output, every=every, batch_size=batch_size, on_progress=on_progress
        )
    typer.echo(
        f"{output}: {counted(report.num_records, 'record')} in {counted(report.num_parts, 'part')} "
        f"({report.num_parts_kept} from before), {report.num_bytes / 1e6:.1f} MB. "
        f"Median similarity of a picture to its nearest neighbour: {report.typical_similarity:.2f}."
    )
    if publish is not None:
        from hub_tools.publishing.folder_publishing import publish_folder

        message = f"Publish the index of {report.num_records:,} records"
        published = publish_folder(output, publish, repo_type="dataset", private=private, message=message, replace=True)
        typer.echo(published.url)
        typer.echo(f"For the Space: TRAINING_INDEX={publish}")


def _dataset_of(run: str) -> tuple[str, str]:
    from pipelines.features.publishing.repository.snapshot import RunSnapshot

    if Path(run).is_dir():
        raise ValueError(
            f"{run} is a folder and does not say which dataset it is of. Name it: --dataset FOLDER_OR_REPOSITORY"
        )
    settings = RunSnapshot.read(run).run
    return settings.dataset_repository, settings.dataset_revision
