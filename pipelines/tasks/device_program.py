"""The process for another device of a peer: computes gradients for it, knows nothing about the swarm.

Used only by `device_group`, with a `DevicePlan` as JSON: python -m pipelines.tasks.device_program RANK PLAN
"""

import json
import signal
import sys

import torch

from pipelines.core.gradients.computation import GradientComputation
from pipelines.core.run.training_run import TrainingRun
from pipelines.features.local_computation.device_group import DevicePlan, join_process_group, serve
from pipelines.features.local_computation.gpu_memory import cap_gpu_memory
from pipelines.tasks.choice import open_task


def main(rank: int, plan: DevicePlan) -> None:
    """Build the model on this process's device and compute until the peer stops."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the peer decides when to stop
    if plan.cpu_threads:
        torch.set_num_threads(plan.cpu_threads)
    device, task = plan.device(rank), open_task(TrainingRun.from_mapping(json.loads(plan.run)), plan.place)
    cap_gpu_memory(device, plan.max_gpu_memory)
    model = task.new_model().to(device)
    computation = GradientComputation(task, model, device=device, precision=plan.precision, compiled=plan.compiled)
    join_process_group(plan, rank)
    serve(model, computation)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), DevicePlan(**json.loads(sys.argv[2])))
