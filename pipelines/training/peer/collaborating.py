"""Your own training loop in a swarm: model, loss and data stay as they are, two lines change."""

import contextlib
import dataclasses
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from pipelines.swarm.network_options import NetworkOptions
from pipelines.swarm.node import open_dht, visible_addresses
from pipelines.swarm.records import SwarmRecords
from pipelines.training.peer.handing_over import hand_over
from pipelines.training.peer.joining import admitted
from pipelines.training.run.training_run import TrainingRun
from pipelines.training.swarm_optimizer.assembly import make_optimizer
from pipelines.training.swarm_optimizer.hivemind_options import reply_seconds
from pipelines.training.swarm_optimizer.optimizer import SwarmOptimizer


@dataclass(frozen=True, kw_only=True)
class Collaboration:
    """Your model among those of other peers."""

    optimizer: SwarmOptimizer
    addresses: tuple[str, ...]
    """Multiaddresses at which others find this peer: their `entry_addresses`."""

    @property
    def epoch(self) -> int:
        """Optimizer steps made by the swarm."""
        return self.optimizer.local_epoch

    @property
    def num_peers(self) -> int:
        """Peers training now, including this one."""
        return self.optimizer.progress().num_peers

    @property
    def is_over(self) -> bool:
        """Whether the run has reached its last epoch."""
        return self.optimizer.is_over

    def step(self, weight: int) -> bool:
        """Count the gradient of a mean over `weight` samples, or the run's unit, and clear it.

        At the end of an epoch, averages with the others and steps. Returns whether the gradient counts: not if it is
        not finite, nor if it was computed with an outdated state.
        """
        self.optimizer.step(batch_size=weight)
        self.optimizer.zero_grad()
        return self.optimizer.last_gradient_was_used


@contextlib.contextmanager
def collaboration(
    run: TrainingRun,
    model: torch.nn.Module,
    *,
    entry_addresses: Sequence[str] = (),
    network: NetworkOptions = NetworkOptions(),
    name: str = "",
) -> Iterator[Collaboration]:
    """Train `model`, whose parameters are float32, together with peers that have the same run and the same parameters.

    Joins the swarm at these addresses or the run's own; without any it starts the run. The swarm's newest state
    is downloaded first. Initial parameters must be equal on all peers: seed them. Call it in the main thread of a
    process that has no other threads: hivemind forks. `name` is the run's name for messages and its authority.

    If the run is over at the end of the block, this peer stays for up to 20 s, so that the others get the last state,
    too; if they have another one, it takes that over. See `hand_over`.

    Raises:
        ConnectionError: no peer answers at the addresses.
        AdmissionRefusedError: the run has an authority that does not admit this user, or no longer does.
    """
    name, addresses = name or run.run_id, tuple(entry_addresses) or run.entry_addresses
    with contextlib.ExitStack() as stack:
        network, admission = stack.enter_context(admitted(run, name, network))
        dht = stack.enter_context(
            open_dht(name, addresses, network, admission=admission, reply_seconds=reply_seconds(run))
        )
        records = SwarmRecords(dht, run.swarm_id, admission=admission).open()
        optimizer = make_optimizer(
            run=dataclasses.replace(run, entry_addresses=addresses),
            dht=dht,
            model=model,
            records=records,
            bandwidth_limit_mbit=network.bandwidth_limit_mbit,
        )
        stack.callback(optimizer.shutdown)
        if optimizer.state_transfer.look().newest_epoch > 0:
            optimizer.load_state_from_peers()
        optimizer.share_state()
        yield Collaboration(optimizer=optimizer, addresses=visible_addresses(dht))
        optimizer.wait_for_updates()
        if optimizer.is_over:
            with contextlib.suppress(KeyboardInterrupt):  # leave at once
                hand_over(optimizer, records, threading.Event(), settles=True)
