"""`dalle-collab data show`: some records as pictures, and a page about the dataset."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hub_tools.counted import counted
from hub_tools.printing.consoles import open_progress

if TYPE_CHECKING:
    import torch

    from pipelines.tasks.text_to_image.data_preparation.inspection.dataset_facts import DatasetFacts


def show(
    folder: Annotated[Path, typer.Argument(help="Folder of shards.")],
    codec: Annotated[str, typer.Option(help="Codec folder or Hub repository ORG/NAME.")],
    output: Annotated[
        Path, typer.Option(help="Picture to write; a page of the same name with .html lies beside it.")
    ] = Path("grid.png"),
    num_records: Annotated[int, typer.Option(help="Records to show, spread over the folder.")] = 24,
) -> None:
    """Decode some records, to see what the model will see, and write a page about the dataset.

    The page is one file: pictures, codes, captions, what is cut off, what was dropped and why.

    Examples:

      dalle-collab data show my-dataset --codec my-codec --output grid.png
    """
    import torch

    from pipelines.tasks.text_to_image.data_preparation.inspection.record_sampling import spread_records
    from pipelines.tasks.text_to_image.image_codes.codec_code import open_codec
    from pipelines.tasks.text_to_image.image_codes.picture_grid import picture_grid

    loaded = open_codec(codec)
    captions, image_codes = spread_records(folder, num_records, codec_fingerprint=loaded.fingerprint)
    pictures = loaded.decode(torch.from_numpy(image_codes).long())
    output.parent.mkdir(parents=True, exist_ok=True)
    picture_grid(pictures, columns=6, captions=captions).save(output)
    page = output.with_suffix(".html")
    facts = _write_page(page, folder, captions, pictures)
    typer.echo(f"{output}: {counted(len(captions), 'record')} of {folder}. A page about all of it: {page}")
    if facts.layout.fit != "pad":
        typer.echo(f"Cropping cut off {100 * facts.mean_cut_share:.1f} % of a picture's area on average.")


def _write_page(path: Path, folder: Path, captions: list[str], pictures: "torch.Tensor") -> "DatasetFacts":
    """Write the dataset's page, return its figures. pictures: (picture, 3, side, side) in [0, 1]."""
    import numpy as np

    from hub_tools.atomic_files import write_text_whole
    from pipelines.tasks.text_to_image.data_preparation.inspection.dataset_facts import collect_facts
    from pipelines.tasks.text_to_image.data_preparation.pictures.dropped_pictures import read_dropped_pictures
    from pipelines.tasks.text_to_image.data_preparation.preparation_manifest import load_manifest, load_report
    from pipelines.tools.pages.dataset.dataset_page import DatasetPage, dataset_page

    with open_progress(transient=True) as bar:
        task = bar.add_task("counting", total=None)
        facts = collect_facts(folder, lambda done, total: bar.update(task, completed=done, total=total))
    manifest = load_manifest(folder)
    page = DatasetPage(
        name=folder.resolve().name,
        facts=facts,
        pictures=(pictures.permute(0, 2, 3, 1).cpu().numpy() * 255 + 0.5).astype(np.uint8),
        captions=captions,
        report=load_report(folder),
        settings=manifest.settings if manifest else None,
        dropped=read_dropped_pictures(folder),
    )
    write_text_whole(path, dataset_page(page))
    return facts
