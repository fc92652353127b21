"""Following a run over the peer-to-peer wire: it listens to the rounds and steps by itself, see `anchor`.

hivemind's `auxiliary=True` optimizer takes part in rounds as a full peer and refuses to serve its state, so that a run
whose trainers all die would be lost.
"""

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import torch

from pipelines.core.admission.dht_gate import SwarmDHT
from pipelines.core.epoch.assembly import make_optimizer
from pipelines.core.swarm.node import visible_addresses
from pipelines.core.swarm.peer_records import AuxiliaryStatus, PeerMetrics, Reporter
from pipelines.core.swarm.records import AUXILIARIES, METRICS, PROGRESS, SwarmRecords
from pipelines.features.anchors.anchor import Anchor
from pipelines.features.publishing.auxiliary.ledger_keeper import LedgerKeeper, ledger_options
from pipelines.features.publishing.auxiliary.publishing.hub_publisher import HubPublisher
from pipelines.features.publishing.auxiliary.side_threads import RoundThread
from pipelines.features.publishing.publishable_task import PublishableTask

logger = logging.getLogger(__name__)


class SwarmFollowing:
    """See `Following`: states come from the swarm's rounds, and word of its peers from their records."""

    def __init__(
        self,
        task: PublishableTask,
        dht: SwarmDHT,
        records: SwarmRecords,
        publisher: HubPublisher,
        evaluate: Callable[[torch.nn.Module], float | None],
        *,
        may_help: bool,
        reached_epoch: int,
    ) -> None:
        """`dht` comes from `open_dht`; `records` of it are opened here. `evaluate`: see `Follow`.

        `may_help`: see `AuxiliaryOptions.helps_averaging`; `reached_epoch`: what is signed on the Hub.
        """
        self._task, self._records, self._publisher = task, records.open(), publisher
        self.model, self.owner, self.addresses = task.new_model(), records.owner, visible_addresses(dht)
        key, keys = publisher.key, publisher.anchor_keys
        self._optimizer = make_optimizer(
            run=task.run,
            dht=dht,
            model=self.model,
            records=records,
            anchor_keys=keys,
            own_anchor_key=key.public,
            listens=True,
            may_help=may_help,
            children=dht.children,
            verbose=logger.isEnabledFor(logging.DEBUG),
        )
        may_sign, evaluate_own = lambda: key.public in keys(), lambda: evaluate(self.model)
        anchor = Anchor(self._optimizer, records, key, may_sign=may_sign, evaluate=evaluate_own)
        self.state, self.rounds, self._thread = self._optimizer.state, anchor.rounds, RoundThread(anchor.keep_up)
        self._optimizer.state_transfer.is_to_stop = self._thread.is_stopping
        self._optimizer.state_transfer.reached_epoch = reached_epoch
        self._ledger = self._open_ledger()
        self.paused, self.close = self._thread.paused, self._optimizer.shutdown
        self.announce = partial(records.publish, AUXILIARIES)

    def _open_ledger(self) -> contextlib.AbstractContextManager:
        """Return the keeper of the ledger; of nothing, if the run's data has no blocks."""
        order = self._task.block_order()
        if order is None:
            return contextlib.nullcontext()
        run, metrics, key = self._task.run, self._publisher.metrics, self._publisher.key
        options, heard = ledger_options(run, self._task.sample_weight), (self._records, self.rounds)
        metrics.companion = keeper = LedgerKeeper(run, order, options, metrics.folder, *heard, key, self._decides)
        return keeper

    def _decides(self) -> bool:
        """Whether this peer is the anchor that says which state the run has, and what is trained on next."""
        keys = list(self._publisher.anchor_keys())
        before = self._optimizer.state_transfer.look_at_anchors().present
        return self._publisher.key.public in keys and before is None

    def begin(self) -> None:
        """See `Following`."""
        self._optimizer.begin_epoch()
        self._optimizer.share_state()

    @contextlib.contextmanager
    def keeping_up(self) -> Iterator[None]:
        """See `Following`."""
        with self._thread, self._ledger:
            yield

    def figures(self) -> tuple[Mapping[bytes, PeerMetrics], Mapping[bytes, Reporter]]:
        """See `Following`."""
        figures = self._records.read(METRICS)
        return figures, self._records.reporters(figures)

    def trainer_epochs(self) -> Sequence[int]:
        """See `Following`."""
        return [record.epoch for record in self._records.read(PROGRESS).values()]

    def others(self) -> Mapping[bytes, AuxiliaryStatus]:
        """See `Following`."""
        return {owner: status for owner, status in self._records.read(AUXILIARIES).items() if owner != self.owner}
