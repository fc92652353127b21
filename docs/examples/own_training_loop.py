"""Train your own model together: start it once, then again with an address that the first one prints."""

import sys

import torch

from dalle_collab import NetworkOptions, TrainingRun, collaborate

torch.manual_seed(0)  # the same initial parameters on all peers
model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
torch.seed()  # but different data for each
run = TrainingRun(run_id="own-loop", target_batch_size=4096, num_epochs=200, matchmaking_seconds=2)
network = NetworkOptions(host_addresses=("/ip4/127.0.0.1/tcp/0",))  # for one machine; leave it out for the Internet
adamw = torch.optim.AdamW(model.parameters(), lr=0.01)

with collaborate(
    run, model, optimizer=adamw, samples_per_step=16, entry_addresses=sys.argv[1:], network=network
) as optimizer:
    print("To join: python", sys.argv[0], *optimizer.addresses, flush=True)
    while not optimizer.is_over:
        inputs = torch.randn(16, 8)
        loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
        print(f"epoch {optimizer.epoch}, {optimizer.num_peers} peers, loss {loss.item():.3f}", flush=True)
