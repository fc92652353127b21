"""A run's settings on the Hub change on top of what others publish at the same time."""

import os
import subprocess
import sys

import pytest
from admission_material import publish_run
from swarm_of_processes import tiny_run

pytestmark = pytest.mark.slow

PROGRAM = """
import sys, threading
from hub_tools.endpoint import prepare_hub_client
prepare_hub_client()
from huggingface_hub import HfApi
from pipelines.features.publishing.repository.announcements import announce_admission
from pipelines.features.publishing.repository.snapshot import RunSnapshot
repository, key = sys.argv[1:]
stop = threading.Event()

def publish_other_things():
    number = 0
    while not stop.wait(0.1):
        number += 1
        HfApi().upload_file(repo_id=repository, path_in_repo="notes.txt", path_or_fileobj=str(number).encode())

busy = threading.Thread(target=publish_other_things, daemon=True)
busy.start()
changed = [announce_admission(repository, f"https://door-{number}.example", key) for number in range(12)]
stop.set()
busy.join()
print(all(changed), RunSnapshot.read(repository).run.authorization_service)
"""


def test_settings_change_on_top_of_commits_that_come_in_between(hub):
    from pipelines.core.signing.publisher_keys import PublisherKey

    publish_run(hub, "org/busy-run", tiny_run().to_json())
    key = PublisherKey.generate().public
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, "org/busy-run", key],
        env={**os.environ, **hub.environment(), "HF_TOKEN": hub.alice_token},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout.split() == ["True", "https://door-11.example"], done.stderr[-2000:]
