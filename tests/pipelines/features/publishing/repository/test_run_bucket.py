"""A run's bucket: a kill anywhere in a publication loses nothing, and nothing in it is believed."""

import json
import multiprocessing
import os
import shutil
import signal
import time

import pytest
import torch
from huggingface_hub import BucketFile, HfApi, constants
from huggingface_hub.utils import disable_progress_bars
from publishing_program import made_figures
from safetensors.torch import save_file
from stopping_proxy import StoppingProxy
from swarm_of_processes import tiny_run

from pipelines.core.signing.publisher_keys import PublisherKey
from pipelines.core.swarm.peer_records import Reporter
from pipelines.features.publishing.auxiliary.publishing.bucket_publisher import BucketPublisher
from pipelines.features.publishing.auxiliary.publishing.publication_spool import PublicationSpool
from pipelines.features.publishing.metrics.credit.claims import RoundLog
from pipelines.features.publishing.metrics.history import read_history_files
from pipelines.features.publishing.metrics.run_metrics import RunMetrics
from pipelines.features.publishing.repository.key_list import unsigned_list
from pipelines.features.publishing.repository.manifest import CheckpointManifest
from pipelines.features.publishing.repository.run_bucket import BucketError, RunBucket, outdated_files

FORKS = multiprocessing.get_context("fork")


class Publishing:
    """One run with a bucket, and its publisher's folder."""

    def __init__(self, hub, folder, repository, bucket, run_id):
        self.hub, self.folder, self.repository = hub, folder, repository
        self.run = tiny_run(run_id=run_id, bucket=bucket)
        self.key = PublisherKey.load_or_create(folder / "key.pem")
        self.keys = unsigned_list([self.key.public])
        self.bucket = RunBucket(self.run)

    def publisher(self):
        return BucketPublisher(
            self.run,
            key=self.key,
            spool=PublicationSpool(self.folder / "spool", 2**30),
            metrics=RunMetrics(self.run, self.folder / "metrics"),
            metrics_interval_seconds=0.001,
            retry_seconds=0.001,
        )

    def manifest(self, entry, **changes):
        values = dict(
            run_id=self.run.run_id, generation=self.run.generation, epoch=entry.epoch, dataset_repository="org/codes",
            dataset_revision="abc", package_version="0.1.0", parent_commit="def", parent_epoch=None,
            parent_manifest=None, contributors={}, files=entry.files,
        )  # fmt: skip
        return CheckpointManifest(**(values | changes))

    def write(self, epoch):
        def write(folder):
            generator = torch.Generator().manual_seed(epoch)
            save_file({"weight": torch.randn(300, 100, generator=generator)}, folder / "model.safetensors")
            save_file({"mean": torch.full((50,), float(epoch))}, folder / "optimizer_state.safetensors")
            (folder / "run_state.json").write_text(json.dumps(dict(run_id=self.run.run_id, epoch=epoch)))

        return write

    def publish(self, *epochs, in_repository=0):
        """Let a publisher spool and publish some epochs, and what is left in the spool; return it."""
        publisher = self.publisher()
        for epoch in epochs:
            publisher.spool.add(epoch, self.write(epoch))
            publisher._metrics.observe(
                {b"ann": made_figures(epoch, 10)}, {b"ann": Reporter(user="ann", sender="", device="T4")}, RoundLog(),
                time.time(), epoch,
            )  # fmt: skip
        publisher.work(self.repository, self.keys, in_repository, self.manifest)
        return publisher

    def newest(self, newer_than=0):
        """The epoch that somebody who starts now gets; None for none."""
        into = self.folder / "downloads"
        folder = self.bucket.get_checkpoint(self.keys, newer_than=newer_than, into=into)
        return None if folder is None else json.loads((folder / "run_state.json").read_text())["epoch"]

    def history(self):
        folder = self.folder / "read"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        return [point["epoch"] for point in read_history_files(self.bucket.get_metrics(folder))]


@pytest.fixture
def start(hub, tmp_path, monkeypatch, request):
    """A function that gives a run whose bucket is on the embedded Hub; clients of this process use that Hub."""
    monkeypatch.setattr(constants, "ENDPOINT", hub.endpoint)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setenv("HF_TOKEN", hub.alice_token)
    disable_progress_bars()
    name = request.node.name[:40].replace("_", "-").strip("-")

    def start(run_id="birds", private=False):
        HfApi().create_repo(f"org/{name}", private=private, exist_ok=True)
        folder = tmp_path / run_id
        folder.mkdir()
        return Publishing(hub, folder, f"org/{name}", f"org/{name}", run_id)

    return start


def publish_through(endpoint, run, epoch):
    constants.ENDPOINT = endpoint
    run.publish(*epoch)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_kill_at_any_request_of_a_publication_loses_nothing_and_the_next_publisher_continues(hub, start):
    for num_requests in range(0, 200, 3):
        run = start(f"killed-{num_requests}")
        run.publish(1)
        with StoppingProxy(hub.endpoint, num_requests) as proxy:
            child = FORKS.Process(target=publish_through, args=(proxy.endpoint, run, [2]))
            child.start()
            while child.is_alive() and not proxy.reached.wait(0.02):
                pass
            was_killed = proxy.reached.is_set()
            if was_killed:
                child.kill()
            child.join()
            assert child.exitcode == (-signal.SIGKILL if was_killed else 0)
        assert run.newest() in (1, 2), "what was there or what was sent, but nothing in between"
        assert run.history() in ([1], [1, 2])
        spool = PublicationSpool(run.folder / "spool", 2**30)
        assert run.newest() == 2 or [entry.epoch for entry in spool.entries()] == [2]
        next_one = run.publish()
        assert (run.newest(), next_one.newest_epoch(), next_one.has_work()) == (2, 2, next_one._metrics_are_due())
        if not was_killed:
            break
    assert not was_killed and proxy.num_passed > 20, "every third request of a publication was the last one once"


def test_only_the_newest_waits_and_two_are_kept(start):
    run = start()
    run.publish(1, 2, 3)
    assert [stored.epoch for stored in run.bucket.checkpoints()] == [3]
    for epoch in (4, 5):
        run.publish(epoch)
    assert [stored.epoch for stored in run.bucket.checkpoints()] == [5, 4] and run.newest() == 5
    assert run.newest(newer_than=5) is None
    assert run.publish(6, in_repository=6).spool.entries() == [], "the repository has it already"
    assert run.newest() == 5


def test_another_publisher_continues_the_metrics_and_epochs_of_the_first(start):
    run = start()
    run.publish(1, 2)
    shutil.rmtree(run.folder / "metrics")
    shutil.rmtree(run.folder / "spool")
    assert run.publish().newest_epoch() == 2
    run.publish(3)
    assert run.history() == [1, 2, 3]


def test_the_bucket_is_as_private_as_the_repository(start):
    run = start(private=True)
    run.publish(1)
    assert HfApi().bucket_info(run.run.bucket).private


def test_nothing_of_a_private_run_is_put_into_a_public_bucket(start, caplog):
    run = start(private=True)
    HfApi().create_bucket(run.run.bucket)
    assert [entry.epoch for entry in run.publish(1).spool.entries()] == [1]
    assert "is public, the run's repository is private: nothing is put there" in caplog.text
    assert list(HfApi().list_bucket_tree(run.run.bucket)) == []


def test_each_generation_of_a_run_has_its_own_part(start):
    run = start()
    run.publish(1)
    run.run = run.run.replace(generation=1)
    run.bucket = RunBucket(run.run)
    assert run.newest() is None and run.history() == []


def upload(run, path, content):
    HfApi().batch_bucket_files(run.run.bucket, add=[(content, path)])


def test_what_a_stranger_with_write_access_puts_there_is_passed_over(start, tmp_path, caplog):
    run = start()
    run.publish(1)
    honest = run.bucket.checkpoints()[0]
    thief = PublisherKey.load_or_create(tmp_path / "thief.pem")
    spool = PublicationSpool(tmp_path / "made_up", 2**30)
    spool.add(9, run.write(9))
    (entry,) = spool.entries()
    base = honest.folder.rpartition("/")[0]
    for number, (manifest, key) in enumerate(
        (
            (run.manifest(entry), thief),
            (run.manifest(entry, generation=3), run.key),
            (run.manifest(entry, run_id="cats"), run.key),
            (run.manifest(entry, epoch=8), run.key),
            (run.manifest(entry, files={}), run.key),
        )
    ):
        folder = f"{base}/epoch-00000009-{number:016x}"
        for name in entry.files:
            upload(run, f"{folder}/{name}", (entry.folder / name).read_bytes())
        upload(run, f"{folder}/checkpoint_manifest.json", manifest.signed(key).encode())
        assert run.newest() == 1, manifest
    assert "signed with the key" in caplog.text
    for name in ("epoch-00000007-0123456789abcdef", "epoch-99999999-0123456789abcdef"):
        upload(run, f"{base}/{name}/checkpoint_manifest.json", b"[" * 100_000)
    for stray in ("epoch-x/checkpoint_manifest.json", "model.safetensors", "epoch-00000009-0/a/b/c"):
        upload(run, f"{base}/{stray}", b"{}")
    assert {stored.epoch for stored in run.bucket.checkpoints()} == {1, 7, 9, 99999999}
    # An honest publisher is not held up by what they say, and removes it.
    assert run.publish(2).published_epoch == 2
    assert {stored.epoch for stored in run.bucket.checkpoints()} == {1, 2} and run.newest() == 2


def test_strays_beside_the_metrics_are_not_read_nor_what_is_too_large(start):
    run = start()
    run.publish(1)
    base = f"{run.run.run_id}/generation-0/metrics"
    for stray in ("sub/epochs-00000.parquet", ".hidden", "a b"):
        upload(run, f"{base}/{stray}", b"no Parquet")
    assert run.history() == [1]
    assert {path.name for path in (run.folder / "read").iterdir()}.isdisjoint({".hidden", "a b"})
    upload(run, f"{base}/huge.bin", bytes(2**28 + 1))
    assert run.history() == [1] and not (run.folder / "read" / "huge.bin").exists()
    run.publish(2)
    assert run.history() == [1, 2]
    left = {file.path for file in HfApi().list_bucket_tree(run.run.bucket, base, recursive=True)}
    assert f"{base}/huge.bin" not in left, "the publisher removes what is not its own"


def test_what_a_killed_download_has_left_is_removed_a_day_later(start):
    run = start()
    run.publish(1)
    old, young = (run.folder / "downloads" / f".partial-{name}" for name in ("old", "young"))
    for left in (old, young):
        left.mkdir(parents=True)
    os.utime(old, (0, 0))
    assert run.newest() == 1 and young.exists() and not old.exists()


def test_damaged_missing_and_oversized_files_are_refused_before_they_cost_much(start, caplog):
    run = start()
    run.publish(1)
    run.publish(2)
    newest = run.bucket.checkpoints()[0]
    weights = f"{newest.folder}/model.safetensors"
    good = (run.folder / "good").joinpath("model.safetensors")
    HfApi().download_bucket_files(run.run.bucket, [(weights, good)])
    content = good.read_bytes()
    for damaged, words in (
        (content[:-1] + b"\x01", "is damaged"),
        (content + bytes(1000), "bytes in the bucket, its manifest says"),
    ):
        upload(run, weights, damaged)
        assert run.newest() == 1 and words in caplog.text
        caplog.clear()
    HfApi().batch_bucket_files(run.run.bucket, delete=[weights])
    assert run.newest() == 1 and "has None bytes in the bucket" in caplog.text
    upload(run, weights, content)
    assert run.newest() == 2


def test_a_missing_bucket_has_nothing_and_one_that_refuses_is_an_error(start, monkeypatch):
    run = start()
    assert run.newest() is None and run.history() == []
    monkeypatch.setenv("HF_TOKEN", "hf_unknown")
    with pytest.raises(BucketError, match="cannot be used"):
        run.newest()


def test_a_publisher_without_a_bucket_to_write_to_keeps_what_is_due(start, hub, monkeypatch, caplog):
    run = start()
    monkeypatch.setenv("HF_TOKEN", hub.create_token("alice", role="read"))
    assert [entry.epoch for entry in run.publish(1).spool.entries()] == [1]
    assert "Nothing could be put into the bucket, next try in" in caplog.text
    monkeypatch.setenv("HF_TOKEN", hub.alice_token)
    run.publish()
    assert run.newest() == 1


def test_an_incomplete_folder_as_new_as_the_newest_is_left_to_its_publisher():
    def files(*folders):
        return [BucketFile(type="file", path=f"c/{name}/a", size=1, xetHash="0" * 64) for name in folders]

    one, two, three, old = (f"epoch-0000000{n}-{n:016x}" for n in (7, 6, 5, 4))
    other, forged = f"epoch-00000007-{99:016x}", f"epoch-00000008-{0:016x}"
    complete = {f"c/{name}" for name in (one, two, three, forged)}
    removed = outdated_files(files(old, three, two, one, other, forged), complete, {f"c/{one}", f"c/{two}"}, 7)
    assert removed == [f"c/{old}/a", f"c/{three}/a", f"c/{forged}/a"]


@pytest.mark.parametrize("name", ["org", "org/a/b", "hf://buckets/org/a", "../a", "org/", "org/a b", "org/a\n"])
def test_a_bucket_has_the_name_of_one(name):
    with pytest.raises(ValueError, match="expected the name of a Storage Bucket"):
        tiny_run(bucket=name)
