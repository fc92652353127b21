"""Train your own model together: start it once, then again with an address that the first one prints."""

import sys

import torch

from pipelines.swarm.network_options import NetworkOptions
from pipelines.training.peer.collaborating import collaboration
from pipelines.training.run.training_run import TrainingRun

torch.manual_seed(0)  # the same initial parameters on all peers
model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
torch.seed()  # but different data for each
run = TrainingRun(
    run_id="own-loop",
    task="own",
    target_batch_size=4096,
    num_epochs=200,
    num_warmup_epochs=5,
    peak_learning_rate=0.05,
    matchmaking_seconds=2,
)
network = NetworkOptions(host_addresses=("/ip4/127.0.0.1/tcp/0",))  # for one machine; leave it out for the Internet

with collaboration(run, model, entry_addresses=sys.argv[1:], network=network) as swarm:
    print("To join: python", sys.argv[0], *swarm.addresses, flush=True)
    while not swarm.is_over:
        inputs = torch.randn(16, 8)
        loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
        loss.backward()
        swarm.step(len(inputs))
        print(f"epoch {swarm.epoch}, {swarm.num_peers} peers, loss {loss.item():.3f}", flush=True)
