"""LPIPS: nothing between a picture and itself, more the more a picture is changed, and one line where it cannot be."""

import pytest
import torch
from torchvision.models import alexnet

from pipelines.features.evaluation.perceptual import WEIGHTS_FILE, Lpips


@pytest.fixture
def torch_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    return tmp_path / "hub" / "checkpoints"


def test_distances_grow_with_what_is_changed_and_are_those_of_each_picture(torch_cache):
    torch_cache.mkdir(parents=True)
    torch.manual_seed(0)
    torch.save(alexnet().state_dict(), torch_cache / WEIGHTS_FILE)
    lpips = Lpips(64, torch.device("cpu"))
    pictures = torch.rand(3, 3, 64, 64)
    noise = torch.randn(3, 3, 64, 64)
    little, much = (lpips(pictures, (pictures + share * noise).clamp(0, 1)) for share in (0.05, 0.3))
    assert torch.equal(lpips(pictures, pictures), torch.zeros(3))
    assert (little > 0).all() and (little < much).all()
    assert torch.allclose(lpips(pictures[1:2], (pictures + 0.3 * noise).clamp(0, 1)[1:2]), much[1:2])


def test_weights_are_not_fetched_unasked_and_small_pictures_are_refused(torch_cache):
    with pytest.raises(OSError, match="Fetch 233 MB with"):
        Lpips(64, torch.device("cpu"))
    with pytest.raises(ValueError, match="at least 64 pixels a side; these have 32"):
        Lpips(32, torch.device("cpu"))
