"""Pushes a dataset of pictures to the Hub and reads it as a source; run in an environment of its own.

Usage: python hub_dataset_reader.py REPOSITORY [FIELD=VALUE of ReadingOptions ...]
"""

import io
import json
import sys

import datasets
from huggingface_hub import HfApi
from PIL import Image

from pipelines.tasks.text_to_image.data_preparation.reading.reading_options import ReadingOptions
from pipelines.tasks.text_to_image.data_preparation.sources.finding import find_sources
from pipelines.tasks.text_to_image.data_preparation.sources.sample import CaptionImage


def picture(number: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8), (number, 0, 0)).save(buffer, "PNG")
    return buffer.getvalue()


def push_parquet(repository: str) -> None:
    """Two shards of pictures with captions in two columns, as `push_to_hub` makes them."""
    pictures = [{"bytes": picture(number), "path": None} for number in range(6)]
    columns = {
        "photo": pictures,
        "text": [f"short text {number}" for number in range(6)],
        "long_text": [f"a long text {number}" for number in range(6)],
    }
    features = {"photo": datasets.Image(), "text": datasets.Value("string"), "long_text": datasets.Value("string")}
    datasets.Dataset.from_dict(columns, datasets.Features(features)).push_to_hub(repository, num_shards=2)


def push_folder(repository: str) -> None:
    """Pictures as files, with a table of their captions."""
    api = HfApi()
    api.create_repo(repository, repo_type="dataset", exist_ok=True)
    table = "file_name,text\n" + "".join(f"{number}.png,short text {number}\n" for number in range(3))
    for name, content in {"metadata.csv": table.encode(), **{f"{n}.png": picture(n) for n in range(3)}}.items():
        api.upload_file(path_or_fileobj=content, path_in_repo=name, repo_id=repository, repo_type="dataset")


if __name__ == "__main__":
    _, kind, name, *options = sys.argv
    {"parquet": push_parquet, "folder": push_folder, "nothing": lambda repository: None}[kind](name)
    try:
        sources = find_sources([name], ReadingOptions(**dict(option.split("=") for option in options)))
        read = [list(source.samples()) for source in sources]
        assert read == [list(source.samples()) for source in sources], "another order"
        samples = [one for found in read for one in found if isinstance(one, CaptionImage)]
        is_whole = all(sample.image_bytes == picture(int(sample.caption[-1])) for sample in samples)
        print(json.dumps([[source.name for source in sources], [sample.caption for sample in samples], is_whole]))
    except (ValueError, FileNotFoundError) as error:
        sys.exit(f"{type(error).__name__}: {error}")
