"""An anchor of a test swarm as a process of its own, without a Hub: python anchor_peer.py SETTINGS.json.

Settings besides those of a peer: `key_file`, `anchor_keys`; `checkpoint`: the folder from which it starts again, where
it also leaves one at `checkpoint_epoch`. Writes what it signs to its events.
"""

import json
import sys
import threading
from pathlib import Path

import torch
from false_transfers import deliver_falsely
from made_up_tasks import made_up_batch, made_up_task
from swarm_peer import write_event

from hub_tools.processes.process_group import guard_process_group
from pipelines.core.epoch.assembly import make_optimizer
from pipelines.core.peer.entering import admitted
from pipelines.core.run.task import mean_loss
from pipelines.core.run.training_run import TrainingRun
from pipelines.core.signing.publisher_keys import PublisherKey
from pipelines.core.swarm.network_options import NetworkOptions
from pipelines.core.swarm.node import open_dht, visible_addresses
from pipelines.core.swarm.records import ANCHORS, SwarmRecords
from pipelines.features.all_records import ALL_RECORDS
from pipelines.features.anchors.anchor import Anchor
from pipelines.features.publishing.checkpoint_tensors import RunState, load_training_state, save_training_state


class NotingRecords(SwarmRecords):
    """Writes down what is signed."""

    events: Path

    def publish(self, kind, statement, *args, **options):
        super().publish(kind, statement, *args, **options)
        if kind is not ANCHORS:
            return
        write_event(
            self.events, event="signed", epoch=statement.epoch, digest=statement.digest, returns=statement.returns,
            roster=list(statement.roster),
        )  # fmt: skip


def main(settings: dict) -> None:
    guard_process_group()
    torch.set_num_threads(1)
    run, folder, name = TrainingRun.from_mapping(settings["run"]), Path(settings["folder"]), settings["name"]
    if "transfers" in settings:
        deliver_falsely(settings["transfers"])
    events, stop = folder / f"{name}.jsonl", threading.Event()
    task, key = made_up_task(run), PublisherKey.load_or_create(Path(settings["key_file"]))
    network = NetworkOptions(host_addresses=("/ip4/127.0.0.1/tcp/0",))
    batch = made_up_batch(run, seed=2**31, batch_size=16)
    with (
        admitted(run, "test/run", network) as (network, admission),
        open_dht("test/run", settings["entry_addresses"], network, admission=admission) as dht,
    ):
        records, model = (
            NotingRecords(dht, run.swarm_id, admission=admission, kinds=ALL_RECORDS).open(),
            task.new_model(),
        )
        records.events = events
        keys = settings.get("anchor_keys") or [key.public]
        optimizer = make_optimizer(
            run=run, dht=dht, model=model, records=records, anchor_keys=lambda: keys, own_anchor_key=key.public,
            listens=True,
        )  # fmt: skip

        @torch.no_grad()
        def evaluate():
            return mean_loss(task, model, [batch])

        anchor = Anchor(optimizer, records, key, may_sign=lambda: True, evaluate=evaluate)
        checkpoint, state = Path(settings["checkpoint"]), optimizer.state
        if checkpoint.exists():
            state.set_epoch(load_training_state(checkpoint, model, state.optimizer).epoch)
            optimizer.begin_epoch()
        optimizer.share_state()
        write_event(events, event="ready", addresses=visible_addresses(dht), epoch=state.state_epoch, key=key.public)
        while not stop.wait(0.1):
            if "pause_file" in settings and Path(settings["pause_file"]).exists():
                optimizer._parts.has_missed_round = True  # as after a round for which it has found no group
                continue
            anchor.keep_up()
            if state.state_epoch >= settings.get("checkpoint_epoch", 10**9) and not checkpoint.exists():
                held = RunState(run_id=run.run_id, epoch=state.state_epoch, loss=1.0, package_version="0")
                checkpoint.mkdir()
                model.save_pretrained(checkpoint)
                save_training_state(checkpoint, model, state.optimizer, held)


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
