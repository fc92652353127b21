"""A library that is not installed is named with the extra that brings it."""

import re

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from hub_tools.one_line_errors import explain_error
from hub_tools.printing.extras import EXTRAS, missing_extra

DISTRIBUTIONS = {"open_clip": "open-clip-torch", "faiss": "faiss-cpu", "starlette": "fastapi"}
"""Where a library has another name than what brings it."""


def test_an_import_that_fails_names_the_command_that_installs_the_library():
    error = ModuleNotFoundError("No module named 'open_clip.tokenizer'", name="open_clip.tokenizer")
    line = "This needs open_clip, which is not installed: pip install 'dalle-collab[clip]'"
    assert missing_extra(error) == explain_error(error) == line
    assert "only installed on Linux" in missing_extra(ModuleNotFoundError(name="hivemind"))


@pytest.mark.parametrize("error", [ModuleNotFoundError(name="pipelines.nothing"), ImportError(name="faiss"), OSError()])
def test_other_errors_are_left_alone(error):
    assert missing_extra(error) is None


def test_each_library_is_in_its_extra_and_not_in_the_base(setup_cfg):
    extras = setup_cfg["options.extras_require"]
    for library, extra in EXTRAS.items():
        name = canonicalize_name(DISTRIBUTIONS.get(library, library))
        assert name in requirement_names(extras[extra]), library
        assert name not in requirement_names(setup_cfg["options"]["install_requires"]), library
    everything = re.search(r"\[(.*)\]", extras["all"])[1].split(",")
    assert set(everything) == set(extras) - {"all", "ray", "test"}


def requirement_names(text):
    lines = [line.partition("#")[0].strip() for line in text.splitlines()]
    return {canonicalize_name(Requirement(line).name) for line in lines if line}
