"""What a peer learns from the Hub while it trains: new keys, a new generation, and whom it does not believe."""

import json
import os
import subprocess
import sys
import threading

import pytest
from admission_material import publish_run
from huggingface_hub import HfApi
from swarm_of_processes import tiny_run

from pipelines.core.signing.publisher_keys import PublisherKey
from pipelines.features.publishing.repository.generation_watch import GenerationWatch
from pipelines.features.publishing.repository.key_list import ROLES, KeyList

pytestmark = pytest.mark.slow

WATCHING = """
import json, sys, threading
from hub_tools.endpoint import prepare_hub_client
prepare_hub_client()
from pipelines.features.publishing.repository.generation_watch import GenerationWatch
from pipelines.features.publishing.repository.key_list import TrustedKeys
from pipelines.features.publishing.repository.snapshot import RunSnapshot
run = RunSnapshot.read(sys.argv[1]).run
watch = GenerationWatch(sys.argv[1], run, threading.Event(), TrustedKeys(run))
for _ in sys.stdin:
    is_new = watch.look()
    keys = watch.keys()
    print(json.dumps(dict(is_new=is_new, serial=keys.serial, keys=keys.holders("anchor", at=1e9))), flush=True)
"""


def test_a_running_peer_follows_the_organiser_and_nobody_who_only_may_write(hub, tmp_path):
    organiser, anchor, thief = (PublisherKey.load_or_create(tmp_path / f"{name}.pem") for name in "oat")
    run = tiny_run(organiser_key=organiser.public)
    publish_run(hub, "org/watched-run", run.to_json())
    api = HfApi(endpoint=hub.endpoint, token=hub.alice_token)

    def write(settings=run, **files):
        for name, text in dict(training_run=settings.to_json(), **files).items():
            path = f"{name}.json"
            api.upload_file(repo_id="org/watched-run", path_in_repo=path, path_or_fileobj=text.encode())

    environment = {**os.environ, **hub.environment(), "HF_TOKEN": hub.alice_token}
    words = [sys.executable, "-W", "ignore", "-c", WATCHING, "org/watched-run"]
    with subprocess.Popen(words, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as peer:

        def seen():
            peer.stdin.write("look\n")
            peer.stdin.flush()
            return json.loads(peer.stdout.readline())

        assert seen() == dict(is_new=False, serial=0, keys=[])
        listed = KeyList(serial=1).adding(anchor.public, ROLES, now=1)
        write(publisher_keys=listed.signed(organiser, run.run_id))
        trusted = dict(is_new=False, serial=1, keys=[anchor.public])
        assert seen() == trusted
        stolen = listed.adding(thief.public, ROLES, now=1).signed(thief, run.run_id)
        write(publisher_keys=stolen)
        assert seen() == trusted
        # Another organiser's settings are not believed in anything else either.
        write(run.replace(organiser_key=thief.public, generation=1), publisher_keys=stolen)
        assert seen() == trusted
        write(run.replace(generation=1), publisher_keys=KeyList(serial=2).signed(organiser, run.run_id))
        assert seen() == dict(is_new=True, serial=2, keys=[])
        peer.stdin.close()


class FailingWatch(GenerationWatch):
    """Meets what nobody has thought of, then finds a new generation."""

    def __init__(self, stop):
        self.found_new_generation = self.is_over = False
        self._stop, self._is_ending, self.num_looks = stop, None, 0

    def look(self):
        self.num_looks += 1
        if self.num_looks < 3:
            raise RuntimeError("an answer of a kind that there was not before")
        return True


def test_a_look_that_fails_is_tried_again_and_the_rollback_is_found(caplog):
    stop = threading.Event()
    watch = FailingWatch(stop)
    watch.watch(threading.Event(), 0.0)
    assert stop.is_set() and watch.found_new_generation and watch.num_looks == 3
    assert caplog.text.count("cannot be read, next try in 0 s") == 2
