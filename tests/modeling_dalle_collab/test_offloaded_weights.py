"""A model of which parts are on disk computes what the whole does, and says that it cannot be trained."""

import accelerate
import pytest
import torch
from transformers import AutoModel

PARTS = ["model.token_embedding", "model.stack", "model.norm", "output_bias"]

pytestmark = [
    pytest.mark.filterwarnings("ignore:The following device_map keys:UserWarning"),
    pytest.mark.filterwarnings("ignore:Attempting to save a model with offloaded:UserWarning"),
]


@pytest.fixture
def saved(tiny_model, tmp_path):
    model = tiny_model().eval()
    model.save_pretrained(tmp_path / "saved")
    return model, tmp_path / "saved"


def placed(folder, tmp_path, on_disk):
    places = {part: "disk" if part == on_disk else "cpu" for part in PARTS}
    return AutoModel.from_pretrained(folder, device_map=places, offload_folder=tmp_path / "offload")


@pytest.mark.parametrize("on_disk", PARTS[:3])
def test_parts_on_disk_change_nothing(saved, tiny_batch, tmp_path, on_disk):
    (whole, folder), (text, codes) = saved, tiny_batch()
    assert torch.equal(placed(folder, tmp_path, on_disk).generate(text, seed=1), whole.generate(text, seed=1))
    model = placed(folder, tmp_path, on_disk).eval()
    for _ in range(2):
        torch.testing.assert_close(model(text, codes).logits, whole(text, codes).logits)
    prefix = dict(input_ids=text, image_codes=codes[:, :5], use_cache=True)
    torch.testing.assert_close(model(**prefix).logits, whole(**prefix).logits)
    assert any(parameter.is_meta for parameter in model.parameters()) == (on_disk != PARTS[0])
    model.save_pretrained(tmp_path / "again")
    again = AutoModel.from_pretrained(tmp_path / "again").state_dict()
    assert all(torch.equal(again[name], tensor) for name, tensor in whole.state_dict().items())


def test_parts_are_placed_by_themselves_where_memory_is_short(saved, tiny_batch, tmp_path):
    whole, folder = saved
    half = sum(parameter.numel() for parameter in whole.parameters()) * 2
    options = dict(device_map="auto", max_memory={"cpu": half}, offload_folder=tmp_path / "offload")
    model = AutoModel.from_pretrained(folder, **options).eval()
    assert any(parameter.is_meta for parameter in model.parameters())
    torch.testing.assert_close(model(*tiny_batch()).loss, whole(*tiny_batch()).loss)


def test_weights_that_accelerate_brings_for_each_call_change_nothing(saved, tiny_batch):
    whole, folder = saved
    model = AutoModel.from_pretrained(folder).eval()
    accelerate.cpu_offload(model, execution_device=torch.device("cpu"))
    torch.testing.assert_close(model(*tiny_batch()).loss, whole(*tiny_batch()).loss)
    assert torch.equal(model.generate(tiny_batch()[0], seed=1), whole.generate(tiny_batch()[0], seed=1))


def test_a_model_with_parts_on_disk_is_not_trained(saved, tiny_batch, tmp_path):
    model = placed(saved[1], tmp_path, "model.norm").train()
    with pytest.raises(ValueError, match="Parts of the model are offloaded, to disk"):
        model(*tiny_batch())
    assert not model.eval()(*tiny_batch()).loss.requires_grad
