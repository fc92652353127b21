"""Publishes a copy of a run at its newest checkpoint, which does not change while the run goes on.

Usage: python -m pipelines.tools.chaos.serving.served_copy REPOSITORY COPY, with `HF_ENDPOINT` and `HF_TOKEN` set.
"""

import sys
import tempfile

from huggingface_hub import snapshot_download

from hub_tools.endpoint import prepare_hub_client
from hub_tools.publishing.folder_publishing import publish_folder


def publish_copy(repository: str, copy: str) -> None:
    """Publish all files of one commit as another repository."""
    with tempfile.TemporaryDirectory(prefix="dalle-collab-served-") as folder:
        snapshot_download(repository, local_dir=folder)
        publish_folder(folder, copy)


if __name__ == "__main__":
    prepare_hub_client()
    publish_copy(*sys.argv[1:])
