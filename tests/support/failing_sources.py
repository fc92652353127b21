"""Answers a test's questions about the dashboard's readers, in a process of its own: clients read HF_ENDPOINT once."""

import json
import sys
import threading
import time
from pathlib import Path

from huggingface_hub import constants

from hub_tools.endpoint import prepare_hub_client
from pipelines.tools.pages.dashboard.dashboard import Dashboard
from pipelines.tools.pages.dashboard.hub_reading import ComparedRuns, HubReader
from pipelines.tools.pages.dashboard.settings import DashboardSettings
from pipelines.tools.pages.dashboard.swarm.swarm_process import WAITING, SwarmReader
from pipelines.tools.pages.joining.join_session import JoinSession

readers: dict[str, HubReader] = {}


def look(repository):
    """Look at a repository with the reader that has looked before."""
    reader = readers.setdefault(repository, HubReader(repository))
    view = reader.look()
    files = {
        (path.name, path.resolve().name, path.resolve().stat().st_mtime_ns)
        for path in Path(constants.HF_HUB_CACHE).rglob("*")
        if path.is_symlink()
    }
    return dict(
        problem=view.problem,
        epoch=view.history.newest_epoch,
        checkpoints=list(view.checkpoints),
        read_at=view.read_at,
        downloaded=sorted(files),
    )


def page(repository):
    """Draw every part of the page of a run at which nobody has looked before."""
    dashboard = Dashboard(DashboardSettings(run=repository))
    problem = dashboard.hub.look().problem
    parts = [dashboard.headline(), dashboard.notices(), dashboard.charts("time", float("nan"), -3)]
    parts += [dashboard.peers("x", None), dashboard.board("all"), dashboard.checkpoints(), dashboard.reel()]
    return dict(problem=problem, epoch=dashboard.run_values()["epoch"], html="".join(parts))


def swarm(repository):
    """Try to find the swarm of a run, until something can be said about it."""
    run = readers.setdefault(repository, HubReader(repository)).look().run
    with SwarmReader(repository, lambda: run, lambda look, run: None) as reader:
        deadline = time.monotonic() + 120
        while (
            reader.view.problem in (WAITING, "Joining the swarm as a client.", "Reading the run's rounds.")
            and time.monotonic() < deadline
        ):
            time.sleep(0.05)
        return dict(problem=reader.view.problem)


def compare(repository):
    """Say what the dashboard can show of another run; asked again while one is being read."""
    deadline, runs = time.monotonic() + 60, ComparedRuns()
    while (found := runs.get(repository)).problem == "The Hub has not answered yet." and time.monotonic() < deadline:
        time.sleep(0.05)
    return dict(problem=found.problem, epoch=found.history.newest_epoch)


def learn(repository):
    """Ask the joining page for many runs at once, this one last; say how many were read at a time and what is shown."""
    session, most = JoinSession(), 0
    for name in (*(f"alice/none-{number}" for number in range(50)), repository):
        session.learn_run(name)
        most = max(most, sum(thread.name == "run-profile" for thread in threading.enumerate()))
    deadline = time.monotonic() + 60
    while session.view().profile is None and time.monotonic() < deadline:
        time.sleep(0.05)
    profile = session.view().profile
    return dict(most=most, repository=profile.repository, state=profile.condition.state, costs=list(profile.costs))


if __name__ == "__main__":
    prepare_hub_client()
    for line in sys.stdin:
        question, repository = line.split()
        print(
            json.dumps(dict(look=look, page=page, swarm=swarm, compare=compare, learn=learn)[question](repository)),
            flush=True,
        )
