"""The state that the rounds of a run lead to: what the contributions of a list make of the state before."""

import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from pipelines.core.optimizers.choice import optimizer_parts
from pipelines.core.run.training_run import TrainingRun
from pipelines.core.state.training_state import TrainingState
from pipelines.features.hub_rounds.closing import NextRound, weights_of
from pipelines.features.hub_rounds.statements import Pointer, RoundList
from pipelines.features.publishing.checkpoint_tensors import load_training_state
from pipelines.features.sparse.codec import SparseCodec, SparseUpdate
from pipelines.features.sparse.mean import mean, norm_scales

logger = logging.getLogger(__name__)


class FalseListError(ValueError):
    """A list whose contributions cannot be used, or do not lead to the state that it names."""


@dataclass(frozen=True, kw_only=True)
class ClosedRound:
    """A list, and the bytes of its members' contributions in the same order."""

    closed: RoundList
    contents: tuple[bytes, ...]

    @property
    def pointers(self) -> list[Pointer]:
        """What the members have said of them."""
        return [member.pointer for member in self.closed.members]


class ReplayedState:
    """Steps a run's state from round to round; equal in every bit for all who do."""

    def __init__(self, run: TrainingRun, model: torch.nn.Module) -> None:
        self.run, self.model = run, model
        self.training = TrainingState(run.swarm_id, **optimizer_parts(run, model))
        shapes = [tuple(parameter.shape) for parameter in self.training.main_parameters]
        self.codec = SparseCodec(shapes, k=run.sparse_values_per_chunk)
        self._first = [parameter.detach().clone() for parameter in self.training.optimized_parameters]
        self.digest = self._digest()

    @property
    def epoch(self) -> int:
        """The round that led to the state."""
        return self.training.state_epoch

    def terms(self) -> NextRound:
        """Return the terms of the next round."""
        return NextRound(
            swarm_id=self.run.swarm_id,
            round=self.epoch + 1,
            state=self.digest,
            sizes=range(self.codec.least_bytes, self.codec.most_bytes + 1),
        )

    def restore(self, folder: Path | None) -> None:
        """Go to the state of a checkpoint's folder; None: that at the beginning of the run."""
        own = self.training
        own.apply_updates()  # a step that was wrong is not to be applied later
        with own.lock:
            if folder is None:
                with torch.no_grad():
                    for parameter, first in zip(own.optimized_parameters, self._first, strict=True):
                        parameter.copy_(first)
                epoch = 0
            else:
                epoch = load_training_state(folder, self.model, own.optimizer).epoch
            own.set_epoch(epoch)
        self.digest = self._digest()

    def refresh(self) -> None:
        """Take note of a state that was changed from outside."""
        self.digest = self._digest()

    def usable(self, pointer: Pointer, content: bytes) -> SparseUpdate | None:
        """Return the progress in the bytes that a pointer names; None: other bytes, or no progress of this model."""
        if len(content) != pointer.size or hashlib.sha256(content).hexdigest() != pointer.digest:
            return None
        try:
            update = self.codec.decode(content)
        except ValueError as error:
            logger.warning("The contribution of %s cannot be used. %s", pointer.user, error)
            return None
        # Nothing at all would count as the shortest of honest contributions.
        return update if update.norm > 0 and update.num_samples == pointer.samples else None

    def step(
        self, pointers: Sequence[Pointer], contents: Sequence[bytes], *, in_background: bool = False
    ) -> Mapping[str, float]:
        """Step along the mean of the contributions; return the factor by which each user's was shortened.

        In the background, as beside a model that trains, the model gets the state with `training.apply_updates` only.

        Raises:
            FalseListError: one of them cannot be used, or the state is no longer finite. The state must be restored.
        """
        updates = []
        for pointer, content in zip(pointers, contents, strict=True):
            if (update := self.usable(pointer, content)) is None:
                raise FalseListError(f"the contribution of {pointer.user} to round {pointer.round} cannot be used")
            updates.append(update)
        weights = weights_of(pointers, self.run.max_weight_ratio)
        scales = norm_scales([update.norm for update in updates], weights)
        averages = mean(self.codec, updates, weights)
        for parameter, average in zip(self.training.optimized_parameters, averages, strict=True):
            parameter.grad = average
        self.training.step(in_background=True)
        self.training.wait_for_steps()
        if not in_background:
            self.training.apply_updates()
        self.digest = self._digest()
        return {pointer.user: scale for pointer, scale in zip(pointers, scales, strict=True)}

    def follow(self, closed: ClosedRound, *, in_background: bool = False) -> Mapping[str, float]:
        """Take the step of a list, as `step`; FalseListError also if it leads to another state than the list names."""
        scales = self.step(closed.pointers, closed.contents, in_background=in_background)
        if self.digest != closed.closed.state:
            raise FalseListError(
                f"the contributions of round {closed.closed.round} lead to the state {self.digest[:12]}, its list "
                f"names {closed.closed.state[:12]}"
            )
        return scales

    def close(self) -> None:
        """End the thread of the steps."""
        self.training.close()

    def _digest(self) -> str:
        manifest = self.training.take_snapshot()
        if manifest is None:
            raise FalseListError(f"the state of round {self.epoch} is not finite")
        return manifest.digest
