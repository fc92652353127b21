"""The ancestor is the real library; importing it leaves no placeholder behind, and where it is missing one is told."""

import importlib.metadata
import subprocess
import sys
from pathlib import Path

from ancestor import UNUSED, build_ancestor, import_dalle_pytorch

SIZES = {
    **{"text_vocab_size": 10, "codebook_size": 8, "text_sequence_length": 4, "image_grid_size": 2},
    **{"hidden_size": 8, "num_hidden_layers": 6, "num_attention_heads": 1, "head_dim": 12},
}


def test_it_is_the_version_that_the_requirements_name():
    requirements = (Path(__file__).parent / "requirements.txt").read_text().split()
    for name in ("dalle-pytorch", "rotary-embedding-torch", "axial-positional-embedding"):
        assert f"{name}=={importlib.metadata.version(name)}" in requirements
    assert import_dalle_pytorch().__version__ == importlib.metadata.version("dalle-pytorch")


def test_importing_it_leaves_no_placeholder_behind():
    before = {name: sys.modules.get(name) for name in UNUSED}
    import_dalle_pytorch()
    assert {name: sys.modules.get(name) for name in UNUSED} == before


def test_where_it_is_not_installed_the_cure_is_told():
    code = "import sys; sys.modules['dalle_pytorch'] = None; import ancestor; ancestor.import_dalle_pytorch()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parent)
    assert done.returncode == 1
    assert "Run: make install" in done.stderr


def test_layers_share_weights_unless_told_otherwise():
    def num_parameters(**options):
        return sum(parameter.numel() for parameter in build_ancestor(**SIZES, **options).parameters())

    layer = 8 * (3 + 1) * 12 + 8 + 8 * 64 + 64 + 32 * 8 + 8  # attention and feed-forward weights
    assert num_parameters(shared=False) - num_parameters() == layer  # layer 4 has those of layer 0
    assert num_parameters(optimize_for_inference=True) == num_parameters(reversible=False) == num_parameters()
