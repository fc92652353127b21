"""Runs over the embedded Hub whose parts lie in one process."""

import pytest
from hub_round_parts import TinyRun, log_in

from pipelines.features.hub_rounds.files import let_uploads_fail_soon


@pytest.fixture
def rounds(hub, monkeypatch):
    """Return a function that makes a run of its own."""
    log_in(monkeypatch, hub)
    let_uploads_fail_soon()
    runs = []

    def new(**settings):
        runs.append(TinyRun(**settings))
        return runs[-1]

    yield new
    for run in runs:
        run.close()
