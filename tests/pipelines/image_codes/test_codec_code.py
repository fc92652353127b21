"""The codec's code is whole where it lies beside a model, and needs little."""

import sys

from transformers.dynamic_module_utils import get_imports, get_relative_import_files

from pipelines.image_codes.codec_code import CODEC_CODE_FILES, copy_codec_code

LIBRARIES = {"torch", "safetensors", "taming", "huggingface_hub"}


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
