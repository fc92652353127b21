"""The codec's code is whole where it lies beside a model, and needs little."""

import sys

import pytest
from huggingface_hub import HfApi, constants
from PIL import Image
from transformers.dynamic_module_utils import get_imports, get_relative_import_files

from hub_tools.foreign.downloads import TooLargeError
from pipelines.tasks.text_to_image.image_codes import codec_code
from pipelines.tasks.text_to_image.image_codes.codec_code import (
    CODEC_CODE_FILES,
    copy_codec_code,
    open_codec,
    write_codec_card,
)
from pipelines.tools.chaos.tiny_run import save_tiny_codec

LIBRARIES = {"torch", "safetensors", "huggingface_hub"}  # transformers requires the last two


def test_the_copied_files_are_all_that_the_codec_imports_from_the_project(tmp_path):
    copy_codec_code(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == set(CODEC_CODE_FILES)
    needed = {
        "vqgan_codec.py",
        *(path.rpartition("/")[2] for path in get_relative_import_files(tmp_path / "vqgan_codec.py")),
    }
    assert needed == set(CODEC_CODE_FILES)


def test_the_copied_files_need_few_libraries(tmp_path):
    copy_codec_code(tmp_path)
    imported = {name for path in tmp_path.iterdir() for name in get_imports(path)}
    assert imported - sys.stdlib_module_names == LIBRARIES


def test_copying_again_changes_nothing(tmp_path):
    copy_codec_code(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    copy_codec_code(tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_what_a_codecs_card_shows_works_when_it_is_pasted_and_its_owners_words_stay(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_tiny_codec(tmp_path / "codec", seed=0)
    codec = open_codec(tmp_path / "codec")
    write_codec_card(codec, tmp_path / "codec", "It was converted from <x>.ckpt.")
    card = (tmp_path / "codec" / "README.md").read_text()
    assert f"| fingerprint | `{codec.fingerprint}` |" in card and "&lt;x>" in card
    example = card.split("```python\n")[1].split("```")[0]
    exec(example.replace("THIS_REPOSITORY", str(tmp_path / "codec")), {})
    with Image.open(tmp_path / "picture.png") as drawn:
        assert drawn.size == (codec.config.image_size,) * 2
    (tmp_path / "codec" / "README.md").write_text("# Mine")
    write_codec_card(codec, tmp_path / "codec", "again")
    assert (tmp_path / "codec" / "README.md").read_text() == "# Mine"


@pytest.mark.slow
def test_a_codec_of_the_hub_is_taken_only_if_it_is_no_larger_than_a_codec(hub, tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "ENDPOINT", hub.endpoint)
    template = hub.endpoint + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    tiny_codec, api = tmp_path / "codec", HfApi(endpoint=hub.endpoint, token=hub.alice_token)
    save_tiny_codec(tiny_codec, seed=0)
    api.create_repo("org/codec")
    api.upload_folder(repo_id="org/codec", folder_path=str(tiny_codec))
    size = (tiny_codec / "vqgan.safetensors").stat().st_size
    monkeypatch.setattr(codec_code, "MOST_CODEC_BYTES", size - 1)
    with pytest.raises(TooLargeError, match=rf"vqgan\.safetensors of org/codec has {size} bytes, expected at most"):
        open_codec("org/codec")
    assert not list((tmp_path / "cache").rglob("*.safetensors"))
    monkeypatch.setattr(codec_code, "MOST_CODEC_BYTES", size)
    fingerprint = open_codec(tiny_codec).fingerprint
    assert open_codec("org/codec").fingerprint == open_codec("org/codec", revision="main").fingerprint == fingerprint
    with pytest.raises(ValueError, match="There is no codec folder nowhere"):
        open_codec("nowhere")
