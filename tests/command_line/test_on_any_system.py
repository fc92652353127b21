"""What a volunteer's command says where there is no hivemind: emulated on Linux; Windows and macOS are such systems."""

import json
import os
import subprocess
import sys

import pytest
from huggingface_hub import HfApi
from support_files import SUPPORT

from pipelines.core.run.training_run import TrainingRun

ON_LINUX = sys.platform == "linux"
PROGRAM = [str(SUPPORT / "foreign_system.py")] if ON_LINUX else ["-m", "pipelines.command_line.main"]
SPARSE = dict(synchronisation="sparse", local_steps=4, outer_momentum=0, aggregation_rule="mean")
DATASET = "org/no-such-dataset"


@pytest.mark.slow
def test_help_doctor_and_join_answer_in_words(hub):
    run = TrainingRun(
        run_id="any",
        wire="hub",
        bucket="org/any.rounds",
        authorization_service="",
        dataset_repository=DATASET,
        **SPARSE,
    )
    api = HfApi(endpoint=hub.endpoint, token=hub.alice_token)
    api.create_repo("org/any")
    api.upload_file(repo_id="org/any", path_in_repo="training_run.json", path_or_fileobj=run.to_json().encode())
    pipes = dict(
        env={**os.environ, **hub.environment(hub.alice_token)},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    commands = ("--help",), ("doctor", "org/any", "--json"), ("join", "org/any")
    started = [subprocess.Popen([sys.executable, "-W", "ignore", *PROGRAM, *words], **pipes) for words in commands]
    help_, doctor, join = [(*process.communicate(timeout=300), process.returncode) for process in started]
    assert help_[2] == 0 and "Join a training run" in help_[0], help_
    found = {one["name"]: one["status"] for one in json.loads(doctor[0])["results"]}
    assert doctor[2] == 3 and found["own bucket"] == "ok" and found["dataset"] == "fail", doctor
    assert {"memory", "disk"} <= set(found), doctor
    assert join[2] == 1 and DATASET in join[1] and "Traceback" not in join[1], join
