"""What a state's digest says of it, and the snapshot that stands still while it is read."""

import hashlib
import struct

import pytest
import torch
from made_up_states import made_up_state, sealed

from pipelines.core.state.digest import StateManifest, check_manifest, state_layout
from pipelines.core.state.snapshot import StateSnapshot


def test_a_state_is_its_parameters_each_with_its_statistics_in_one_order_and_in_their_own_type():
    kinds = {name: str(tensor.dtype) for name, tensor in made_up_state().items()}
    assert list(kinds) == [
        "parameter.0", "parameter.0.exp_avg", "parameter.0.exp_avg_absmax", "parameter.0.exp_avg_sq",
        "parameter.0.exp_avg_sq_absmax", "parameter.0.step",
        "parameter.1", "parameter.1.exp_avg", "parameter.1.exp_avg_sq", "parameter.1.step",
    ]  # fmt: skip
    assert kinds["parameter.0.exp_avg"] == "torch.uint8"
    assert kinds["parameter.1.exp_avg"] == "torch.float32"
    assert kinds["parameter.1.step"] == "torch.int64"


def test_the_hash_of_a_tensor_is_that_of_its_name_type_shape_and_little_endian_bytes():
    _, manifest = sealed({"parameter.0": torch.tensor([[1.5], [-2.0]])})
    expected = hashlib.sha256(b"parameter.0 float32 (2, 1)\n" + struct.pack("<2f", 1.5, -2.0)).hexdigest()
    assert manifest.hashes() == (expected,)
    text = '{"epoch":3,"format":1,"swarm_id":"birds","tensors":[["parameter.0","float32 (2, 1)","' + expected + '"]]}'
    assert manifest.digest == hashlib.sha256(text.encode()).hexdigest()


def test_equal_states_have_equal_digests_and_one_bit_makes_another():
    digest = sealed(made_up_state())[1].digest
    assert sealed(made_up_state())[1].digest == digest
    for name in made_up_state():
        changed = made_up_state()
        changed[name].view(-1)[-1:].view(torch.uint8)[0] ^= 1
        assert sealed(changed)[1].digest != digest, name
    assert sealed(made_up_state(), epoch=4)[1].digest != digest
    assert sealed(made_up_state(), swarm_id="cats")[1].digest != digest


def test_a_manifest_survives_the_wire_and_what_is_none_is_refused():
    manifest = sealed(made_up_state())[1]
    assert StateManifest.decode(manifest.encode()) == manifest
    for text in (
        b"",
        b"[]",
        b"\xff",
        b'{"format": 2}',
        b'{"format": 1, "epoch": 3}',
        b'{"format":1,"tensors":[["a"]]}',
    ):
        with pytest.raises(ValueError, match="This is not the manifest of a training state"):
            StateManifest.decode(text)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (dict(bits=32), "It has 8 tensors; expected 10"),
        (dict(num_steps=0), None),
    ],
)
def test_a_state_of_another_optimizer_is_refused(other, message):
    layout, manifest = state_layout(made_up_state()), sealed(made_up_state(**other))[1]
    if message is None:
        check_manifest(manifest, layout, swarm_id="birds", epoch=3)
    else:
        with pytest.raises(ValueError, match=message):
            check_manifest(manifest, layout, swarm_id="birds", epoch=3)


def test_a_state_of_another_shape_epoch_or_run_is_refused_by_name():
    state = made_up_state()
    other = {name: tensor.reshape(96, 64) if name == "parameter.0" else tensor for name, tensor in state.items()}
    layout = state_layout(state)
    with pytest.raises(ValueError, match=r"parameter.0 of float32 \(96, 64\); expected parameter.0 of float32 \(64"):
        check_manifest(sealed(other)[1], layout, swarm_id="birds", epoch=3)
    with pytest.raises(ValueError, match="It is of epoch 3 of birds; expected epoch 4 of birds"):
        check_manifest(sealed(state)[1], layout, swarm_id="birds", epoch=4)
    with pytest.raises(ValueError, match="It is of epoch 3 of birds; expected epoch 3 of cats"):
        check_manifest(sealed(state)[1], layout, swarm_id="cats", epoch=3)


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_a_state_that_is_not_finite_is_not_offered(value):
    state = made_up_state()
    state["parameter.1.exp_avg_sq"][3] = float(value)
    snapshot = StateSnapshot(state, "birds")
    snapshot.begin()
    snapshot.fill(state)
    with pytest.raises(ValueError, match=r"parameter.1.exp_avg_sq of the state of epoch 3 is not finite"):
        snapshot.seal(3)
    assert snapshot.manifest() is None


def test_a_snapshot_keeps_what_it_was_given_while_the_live_state_changes():
    state = made_up_state()
    kept = {name: tensor.clone() for name, tensor in state.items()}
    snapshot, manifest = sealed(state)
    for tensor in state.values():
        tensor.zero_()
    assert all(torch.equal(snapshot.tensors[name], tensor) for name, tensor in kept.items())
    assert snapshot.manifest() == manifest
    assert snapshot.num_bytes == sum(tensor.numel() * tensor.element_size() for tensor in kept.values())


def test_a_reader_notices_that_its_snapshot_was_replaced():
    state = made_up_state()
    snapshot, _ = sealed(state)
    chunks = snapshot.read(snapshot.generation, snapshot.layout[0])
    snapshot.begin()
    assert snapshot.manifest() is None
    assert list(chunks) == []
    snapshot.seal(4)
    assert snapshot.manifest().epoch == 4


def test_a_snapshot_that_is_read_stays_until_its_reader_is_done():
    snapshot, _ = sealed(made_up_state())
    assert not snapshot.is_held
    snapshot.hold(60.0)
    assert snapshot.is_held
    snapshot.hold(0.0)
    assert not snapshot.is_held
