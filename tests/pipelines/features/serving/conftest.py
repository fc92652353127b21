"""A finished run, which servers serve. A test file has its name in `RUN`, and its task where it draws no pictures."""

import pytest
from drawn_runs import drawn_run


@pytest.fixture(scope="module")
def run(request, hub, tmp_path_factory):
    with drawn_run(hub, tmp_path_factory.mktemp("served"), *request.module.RUN) as published:
        yield published


@pytest.fixture
def no_servers_stay(run):
    yield
    run.close()
