"""The transfer of the training state between real peers: who is believed, and what a donor's death or silence costs."""

import json
import signal
import time

import pytest
import torch
from running_programs import wait_for
from safetensors.torch import load_file
from swarm_of_processes import TINY_MODEL, Swarm, tiny_run

pytestmark = [pytest.mark.slow, pytest.mark.swarm]

EPOCH = 7
SETTINGS = dict(num_epochs=1000, optimizer_bits=8, progress_expiration_seconds=6.0)
MODEL = dict(TINY_MODEL, hidden_size=256, num_attention_heads=4, head_dim=64)


class Transfer:
    """A swarm of honest and lying donors, and what its newcomers find."""

    def __init__(self, swarm, folder):
        self.swarm, self.folder = swarm, folder
        self.probe = swarm.start("probe", "state_peer.py", role="probe", orders=str(folder / "orders"))
        self.donors = {
            name: swarm.start(name, "state_peer.py", role="donor", kind=kind, epoch=EPOCH)
            # As many of the wanted state as a newcomer asks at once: the forger is always asked.
            for name, kind in dict(one="slow", two="slow", forger="forger", liar="liar", nan="nan").items()
        }
        other = json.loads(swarm.run.replace(model_config=dict(MODEL, hidden_size=128)).to_json())
        self.donors["stranger"] = swarm.start(
            "stranger", "state_peer.py", role="donor", kind="honest", epoch=EPOCH, run=other
        )
        self.ready = {name: donor.wait_for("ready") for name, donor in self.donors.items()}

    def peer_ids(self, *names):
        return {self.ready[name]["peer_id"] for name in names}

    def start_newcomer(self, name, **settings):
        checkpoint = str(self.folder / "checkpoint")
        return self.swarm.start(name, "state_peer.py", role="newcomer", checkpoint=checkpoint, **settings)

    def tell_probe(self, **order):
        with (self.folder / "orders").open("a", encoding="utf-8") as orders:
            orders.write(json.dumps(order) + "\n")

    def probe_state_of(self, peer_id):
        """Ask a peer for the state, and return what came of it."""
        num_before = len(self.probe.events("probed"))
        self.tell_probe(donors=[peer_id], digest=self.ready["one"]["digest"], epoch=EPOCH)
        return wait_for(lambda: self.probe.events("probed")[num_before:], "answer", 300, process=self.probe.process)[0]

    def state(self, name):
        return load_file(self.folder / f"{name}.safetensors")


@pytest.fixture(scope="module")
def state_transfer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("state_transfer")
    with Swarm(folder, tiny_run(model_config=MODEL, **SETTINGS), num_peers=1) as swarm:
        yield Transfer(swarm, folder)


def assert_equal_bits(first, second):
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        assert tensor.dtype == second[name].dtype, name
        assert torch.equal(tensor, second[name]), name


def test_a_newcomer_takes_what_most_name_bit_by_bit_and_hands_nothing_out_before(state_transfer):
    may_go_on = state_transfer.folder / "may_go_on"
    may_go_on.unlink(missing_ok=True)  # of a first try
    newcomer = state_transfer.start_newcomer("first", waits_at_half_for=str(may_go_on))
    peer_id = newcomer.wait_for("started")["peer_id"]
    newcomer.wait_for("progress", is_half=True)
    before = state_transfer.probe_state_of(peer_id)
    may_go_on.touch()
    assert (before["got"], before["moved_on"]) == (False, [peer_id])

    ready = newcomer.wait_for("ready")
    assert (ready["source"], ready["epoch"]) == ("peers", EPOCH)
    assert ready["digest"] == state_transfer.ready["one"]["digest"] == state_transfer.ready["two"]["digest"]
    assert set(ready["outvoted"]) == state_transfer.peer_ids("liar", "nan", "stranger")
    assert set(ready["named"]) == state_transfer.peer_ids("forger")
    received, given = state_transfer.state("first"), state_transfer.state("one")
    assert_equal_bits(received, given)
    assert sum(tensor.dtype == torch.uint8 for tensor in received.values()) > 10, "statistics travel in 8 bits"
    assert not torch.equal(received["parameter.0"], state_transfer.state("liar")["parameter.0"])
    assert state_transfer.probe_state_of(peer_id)["got"], "after its first sync a newcomer is a donor like any other"
    newcomer.kill()


def test_ctrl_c_in_the_middle_of_a_download_ends_it_at_once_and_nothing_is_handed_out(state_transfer):
    newcomer = state_transfer.start_newcomer("hurried")
    newcomer.wait_for("progress", is_half=True)
    struck = time.time()
    newcomer.process.send_signal(signal.SIGINT)
    stopped = newcomer.wait_for("stopped")
    assert (stopped["source"], stopped["shares"]) == ("start", False), "nor is the checkpoint fetched"
    assert stopped["time"] - struck < 10, "the slow donors would have taken longer"
    assert newcomer.process.wait(60) == 0


@pytest.mark.long
@pytest.mark.parametrize(("donor", "fault"), [("one", signal.SIGKILL), ("two", signal.SIGSTOP)])
def test_a_donor_that_is_killed_or_stopped_at_half_of_the_download_costs_seconds(state_transfer, donor, fault):
    state_transfer.swarm.start(f"beside_{donor}", "state_peer.py", role="donor", kind="slow", epoch=EPOCH).wait_for(
        "ready"
    )
    newcomer = state_transfer.start_newcomer(f"newcomer_of_{donor}")
    newcomer.wait_for("progress", is_half=True)
    struck = time.time()
    state_transfer.donors[donor].process.signal_group(fault)
    ready = newcomer.wait_for("ready")
    assert (ready["source"], ready["digest"]) == ("peers", state_transfer.ready["one"]["digest"])
    assert ready["time"] - struck < 60  # the donors that are left are slow ones
    assert ready["received_bytes"] < 1.6 * ready["state_bytes"], "what had arrived was not fetched again"
    print(f"{fault.name} at half: {ready['time'] - struck:.1f} s to go on, {ready['seconds']:.1f} s in all")
    newcomer.kill()


def test_when_no_honest_donor_is_left_the_checkpoint_is_taken(state_transfer):
    for peer in state_transfer.swarm.peers:
        if peer.name not in ("probe", "nan", "stranger"):
            peer.kill()
    # The nodes that kept their records may have died with the others; records are renewed.
    state_transfer.tell_probe(await_offers_of=sorted(state_transfer.peer_ids("nan", "stranger")))
    state_transfer.probe.wait_for("offers_found")
    newcomer = state_transfer.start_newcomer("last")
    ready = newcomer.wait_for("ready")
    assert (ready["source"], ready["epoch"]) == ("checkpoint", EPOCH)
    assert_equal_bits(state_transfer.state("last"), state_transfer.state("first"))
    log = (state_transfer.folder / "last.log").read_text(encoding="utf-8")
    assert "Downloading the state of" in log, "it has tried the others first"
