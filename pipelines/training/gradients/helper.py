"""The process of a further device of a peer: computes gradients for it, knows nothing of the swarm.

Usage, by `device_group` alone: python -m pipelines.training.gradients.helper RANK PLAN, PLAN a `DevicePlan` as JSON.
"""

import json
import signal
import sys

import torch

from modeling_dalle_collab import DalleCollabConfig, DalleCollabForConditionalGeneration
from pipelines.training.gradients.computation import GradientComputation
from pipelines.training.gradients.device_group import DevicePlan, join_process_group, serve


def main(rank: int, plan: DevicePlan) -> None:
    """Build the model on this process's device and compute until the peer stops."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the peer says when to stop
    if plan.cpu_threads:
        torch.set_num_threads(plan.cpu_threads)
    device, config = plan.device(rank), DalleCollabConfig(**plan.model_config)
    model = DalleCollabForConditionalGeneration(config).to(device)
    computation = GradientComputation(model, device=device, precision=plan.precision, compiled=plan.compiled)
    join_process_group(plan, rank)
    serve(model, computation, (config.text_sequence_length, config.num_image_codes))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), DevicePlan(**json.loads(sys.argv[2])))
