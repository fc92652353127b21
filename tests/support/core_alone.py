"""Two averagers of a dense run, in a process that has loaded the whole core.

Usage: python core_alone.py. Prints as JSON which modules of the core were loaded, and whether both have the mean.
"""

import importlib
import json
import pkgutil

import torch

import pipelines.core
from hub_tools.processes.process_group import guard_process_group
from pipelines.core.epoch.reduction import reduction_of
from pipelines.core.run.training_run import TrainingRun
from pipelines.core.swarm.network_options import NetworkOptions
from pipelines.core.swarm.node import open_dht, visible_addresses

LOOPBACK = NetworkOptions(host_addresses=("/ip4/127.0.0.1/tcp/0",))


def import_core() -> list[str]:
    """Import every module of the core, and return their names."""
    names = [found.name for found in pkgutil.walk_packages(pipelines.core.__path__, "pipelines.core.")]
    for name in names:
        importlib.import_module(name)
    return names


def averaged() -> list[list[float]]:
    """Return what two peers have after they have averaged 1 and 3."""
    reduction = reduction_of(TrainingRun(run_id="r", model_config={}, dataset_repository="a/b", dataset_revision="c"))
    with (
        open_dht("test/run", (), LOOPBACK, admission=None) as entry,
        open_dht("test/run", visible_addresses(entry), LOOPBACK, admission=None) as other,
    ):
        averagers = []
        for value, dht in ((1.0, entry), (3.0, other)):
            averager = reduction.averager(
                averaged_tensors=[torch.full((4,), value)], dht=dht, admission=None, prefix="pair", target_group_size=2,
                min_matchmaking_time=2.0, request_timeout=0.8, allreduce_timeout=60.0, next_chunk_timeout=10.0,
                start=True,
            )  # fmt: skip
            averagers.append(averager)
        for control in [averager.step(wait=False, timeout=120.0) for averager in averagers]:
            control.result(120.0)
        results = []
        for averager in averagers:
            with averager.get_tensors() as (result,):
                results.append(result.tolist())
            averager.shutdown()
    return results


if __name__ == "__main__":
    guard_process_group()
    torch.set_num_threads(1)
    print(json.dumps(dict(modules=import_core(), averages=averaged())))
