"""A run in a folder, as the Hub would hold it: tiny, untrained, but whole."""

import pytest
from tiny_run_parts import write_tiny_run


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory):
    return write_tiny_run(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="session")
def tiny_codec(tiny_run):
    return tiny_run.parent / "codec"


@pytest.fixture(scope="session")
def tiny_clip(tiny_run):
    return tiny_run.parent / "clip"
