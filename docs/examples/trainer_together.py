"""Train a transformers model together with `Trainer`: start it once, then again with an address that it prints."""

import sys

import torch
from transformers import BertConfig, BertForMaskedLM, Trainer, TrainerCallback, TrainerControl, TrainingArguments

from dalle_collab import NetworkOptions, TrainingRun, collaborate


class StopWhenOver(TrainerCallback):
    def on_step_end(self, args: object, state: object, control: TrainerControl, **others: object) -> None:
        control.should_training_stop = swarm.is_over


torch.manual_seed(0)  # the same initial parameters on all peers
model = BertForMaskedLM(BertConfig(vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=2))
data = [dict(input_ids=(ids := torch.arange(16) * step % 64), labels=ids) for step in range(1, 64)]
run = TrainingRun(run_id="trainer", target_batch_size=512, num_epochs=10, matchmaking_seconds=2)
network = NetworkOptions(host_addresses=("/ip4/127.0.0.1/tcp/0",))  # for one machine; leave it out for the Internet
adamw = torch.optim.AdamW(model.parameters(), lr=0.01)

with collaborate(
    run, model, optimizer=adamw, samples_per_step=16, entry_addresses=sys.argv[1:], network=network
) as swarm:
    print("To join: python", sys.argv[0], *swarm.addresses, flush=True)
    trainer = Trainer(
        model,
        TrainingArguments(
            per_device_train_batch_size=16, max_steps=10**6, max_grad_norm=0, logging_steps=16, disable_tqdm=True
        ),
        train_dataset=data,
        optimizers=(swarm, None),
        callbacks=[StopWhenOver()],
    )
    trainer.train()
