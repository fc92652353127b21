"""The admission service as a Space: a folder with its settings, its program and the modules it needs."""

import tempfile
from pathlib import Path

from hub_tools.publishing.space_bundling import bundle_folder

PROGRAM = '''"""Admits peers to a training run; its settings are the variables and the secret of this Space."""

import os
from pathlib import Path

from hub_tools.endpoint import prepare_hub_client

prepare_hub_client()

from huggingface_hub import hf_hub_download  # reads the environment when it is imported

from hub_tools.run_files import TRAINING_RUN_FILE
from pipelines.features.admission_service.server import serve_as_space
from pipelines.core.run.training_run import TrainingRun

settings = {{"RUN_REPOSITORY": "{repository}", **os.environ}}
run = TrainingRun.from_file(Path(hf_hub_download(settings["RUN_REPOSITORY"], TRAINING_RUN_FILE)))
serve_as_space(settings, run_id=run.run_id, averaging_timeout_seconds=run.averaging_timeout_seconds)
'''
REQUIREMENTS = "huggingface_hub>=2.3,<2.6\nfastapi>=0.115\nuvicorn>=0.30\ncryptography>=42\nhttpx2\n"
README = """---
title: Who may join {repository}
emoji: 🚪
colorFrom: gray
colorTo: green
sdk: gradio
python_version: "3.11"
app_file: app.py
pinned: false
---

# Who may join {repository}

Peers of the training run [{repository}](../../{repository}) ask here for admission, which is granted to
members of the run's organisation and to users whom moderators allow in `admission.json` of the run's repository, unless
they are banned there. Who they are is shown by a file in their repository `dalle-collab-proof`. Hub tokens, which old
versions send, are neither stored nor logged.

| setting | | meaning |
|---|---|---|
| `AUTHORIZATION_KEY` | secret | the one line of the key file that `dalle-collab run authorize` created (required) |
| `HF_TOKEN` | secret | reads the run's repository, if it is private |
| `TOKEN_MINUTES` | variable | lifetime of a token; a ban takes effect within it; 10 |
| `GRACE_MINUTES` | variable | how long peers may stay while the Hub is down; 60 |
"""


def write_admission_space(repository: str, folder: Path) -> list[Path]:
    """Write the Space into a folder, which is new, empty or an earlier version; return the files' relative paths.

    Raises:
        ValueError: the folder contains something else.
    """
    with tempfile.TemporaryDirectory() as name:
        space = Path(name)
        (space / "app.py").write_text(PROGRAM.format(repository=repository), encoding="utf-8")
        (space / "requirements.txt").write_text(REQUIREMENTS, encoding="utf-8")
        (space / "README.md").write_text(README.format(repository=repository), encoding="utf-8")
        return bundle_folder(space, folder)
