"""The training state of one peer: parameters and statistics of the optimizer, its epoch, and a snapshot to share.

Without a network and without hivemind: `exchange` serves the snapshot and downloads those of others, `transfer` decides
when.
"""

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import torch
from torch.optim.optimizer import ParamsT

from pipelines.core.optimizers.lamb import RefusedStepError
from pipelines.core.state.digest import StateManifest, named_state
from pipelines.core.state.snapshot import StateSnapshot

logger = logging.getLogger(__name__)


class TrainingState:
    """Keeps and steps parameters and optimizer. Equal steps keep peers equal: nothing of it is averaged.

    The optimizer steps float32 copies on the CPU, along gradients that others put there. All peers of a run build it
    alike, including the auxiliary peer.
    """

    def __init__(
        self,
        swarm_id: str,
        params: ParamsT,
        optimizer: Callable[[ParamsT], torch.optim.Optimizer],
        scheduler: Callable[[torch.optim.Optimizer], torch.optim.lr_scheduler.LambdaLR] | None = None,
    ) -> None:
        """`params` are the model's own, in groups or not; `optimizer` and `scheduler` are made for the copies."""
        groups = _in_groups(params)
        self.main_parameters: tuple[torch.Tensor, ...] = tuple(p for group in groups for p in group["params"])
        for group in groups:
            group["params"] = [_copy_on_cpu(parameter) for parameter in group["params"]]
        self.optimizer = optimizer(groups)
        self.scheduler = None if scheduler is None else scheduler(self.optimizer)
        self.apply_parameters: Callable[[], None] = self._overwrite_model
        """Applies new parameters to the model; by default they overwrite its own."""

        self.local_epoch = 0
        """The epoch whose gradients this peer gathers; `take_part_in` may set it ahead of the state's."""

        self.state_epoch = 0
        self.model_epoch = 0
        """Epoch of the model's parameters; with a step in the background, the state's is ahead of it."""

        self.changed = threading.Event()
        """Set after every change of the state; cleared by who offers it."""

        self.lock = threading.Lock()
        """Held while the state changes, and by who must not see it change."""

        # The digests of all runs so far have the name that its averager had in hivemind.
        self.snapshot = StateSnapshot(self.named_state(), swarm_id=f"{swarm_id}_state_averager")
        self._snapshot_lock = threading.Lock()
        self._num_changes = self._num_changes_in_snapshot = 0
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="optimizer step")
        self._pending: set[Future[None]] = set()
        self._is_to_apply = False

    def own_tensors(self) -> Iterator[torch.Tensor]:
        """Return the model's parameters, all gradients and the optimizer's statistics."""
        for parameter in (*self.main_parameters, *self.optimized_parameters):
            yield parameter
            if parameter.grad is not None:
                yield parameter.grad
        for state in self.optimizer.state.values():
            yield from state.values()

    def named_state(self) -> dict[str, torch.Tensor]:
        """Return the live tensors of the state by name."""
        return named_state(self.optimizer)

    @property
    def optimized_parameters(self) -> list[torch.Tensor]:
        """The parameters that the optimizer steps, float32 on the CPU, in the order of the shared state."""
        return [parameter for group in self.optimizer.param_groups for parameter in group["params"]]

    def step(self, trigger: Callable[[], bool] | None = None, *, in_background: bool = False) -> None:
        """Begin the next epoch with a step of the optimizer, unless `trigger` returns False or fails.

        In the background, this returns at once; the model gets the parameters with `apply_updates`.
        """
        self.apply_updates()
        self.local_epoch += 1
        step = self._executor.submit(self._step, self.local_epoch, trigger)
        if in_background:
            self._pending.add(step)
            return
        step.result()
        self.apply_updates()

    def apply_updates(self) -> None:
        """Apply to the model what steps in the background have changed so far."""
        for step in [step for step in self._pending if step.done()]:
            self._pending.remove(step)
            step.result()
        if self._is_to_apply:
            self._is_to_apply = False
            self._apply()

    def wait_for_steps(self, most_seconds: float | None = None) -> None:
        """Wait until no step goes on in the background, at most so long."""
        wait(self._pending, most_seconds)

    def wait_for_updates(self, most_seconds: float | None = None) -> None:
        """Wait until no step goes on in the background, at most so long, and apply what has changed."""
        self.wait_for_steps(most_seconds)
        self.apply_updates()

    def _step(self, epoch: int, trigger: Callable[[], bool] | None) -> None:
        with self.lock:
            try:
                steps = trigger is None or trigger()
            except Exception as error:  # whoever waits for the trigger's result decides what follows
                logger.debug("The state stays as it is: %s", error)
                return
            self._is_to_apply = True
            try:
                if steps:
                    self.optimizer.step()
            except RefusedStepError as error:  # all who have this average refuse it alike, and stay equal
                logger.warning("Epoch %d ends without a step. %s", epoch, error)
            finally:  # a step that fails may have changed something
                self._follow_schedule()
                self._note_change(epoch)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of a state changed from outside; the learning rate follows."""
        self.local_epoch = self.model_epoch = epoch
        # Else torch warns of a scheduler that begins: others made these steps.
        self.optimizer._opt_called = True  # type: ignore[attr-defined]
        self._follow_schedule()
        self._note_change(epoch)

    def restore_state(self, tensors: Mapping[str, torch.Tensor], epoch: int) -> None:
        """Go back to an earlier `named_state`."""
        with torch.no_grad(), self.lock:
            for name, tensor in self.named_state().items():
                tensor.copy_(tensors[name])
            self._apply()
            self.set_epoch(epoch)

    @contextlib.contextmanager
    def at_rest(self) -> Iterator[None]:
        """Let no step happen in this block, in which model, optimizer and `state_epoch` belong together.

        Not for peers with local steps, whose models have parameters of their own.
        """
        with self.lock:
            self._apply()  # the last step may have been made in the background
            yield

    def take_part_in(self, epoch: int) -> None:
        """Continue in an epoch with the state as it is; the state keeps its own epoch in this peer's signed record."""
        self.local_epoch = epoch

    @property
    def snapshot_is_current(self) -> bool:
        """Whether the snapshot is the state after the last step."""
        return self._num_changes_in_snapshot == self._num_changes and self.snapshot.manifest() is not None

    def take_snapshot(self) -> StateManifest | None:
        """Copy the state between two steps, hash the copy and offer it to newcomers; return its manifest.

        Returns None, and offers nothing, if a value is not finite.
        """
        with self._snapshot_lock:
            with self.lock:
                epoch, num_changes = self.state_epoch, self._num_changes
                self.snapshot.begin()
                self.snapshot.fill(self.named_state())
            try:
                manifest = self.snapshot.seal(epoch)
            except ValueError as error:
                logger.warning("%s", error)
                return None
            self._num_changes_in_snapshot = num_changes
            return manifest

    def take_over(self, write: Callable[[StateSnapshot], StateManifest]) -> None:
        """Load another peer's state, which `write` has written into the snapshot and checked; raises what it raises."""
        with self._snapshot_lock:
            manifest = write(self.snapshot)
            self.snapshot.complete(manifest)
            self.restore_state(self.snapshot.tensors, manifest.epoch)
            self._num_changes_in_snapshot = self._num_changes

    def close(self) -> None:
        """End the thread of the steps."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _apply(self) -> None:
        self.model_epoch = self.state_epoch
        self.apply_parameters()

    @torch.no_grad()
    def _overwrite_model(self) -> None:
        for own, stepped in zip(self.main_parameters, self.optimized_parameters, strict=True):
            own.copy_(stepped, non_blocking=True)

    def _follow_schedule(self) -> None:
        while self.scheduler is not None and self.scheduler._step_count <= self.local_epoch:
            self.scheduler.step()

    def _note_change(self, epoch: int) -> None:
        self.state_epoch = epoch
        self._num_changes += 1
        self.changed.set()


def _in_groups(params: ParamsT) -> list[dict[str, Any]]:
    listed: list[Any] = list(params)
    groups = listed if isinstance(listed[0], dict) else [dict(params=listed)]
    return [dict(group, params=list(group["params"])) for group in groups]


def _copy_on_cpu(parameter: torch.Tensor) -> torch.Tensor:
    copy = parameter.detach().to("cpu", torch.float32, copy=True).requires_grad_(parameter.requires_grad)
    copy.grad = torch.zeros_like(copy)
    return copy
