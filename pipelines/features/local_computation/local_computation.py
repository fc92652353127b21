"""Gradients as fast as this machine can: on all its devices, with the threads and micro-batches that suit it."""

import contextlib
import dataclasses
import logging
import os
from collections.abc import Callable, Iterable

import torch

from pipelines.core.gradients.computation import ComputeGradient
from pipelines.core.gradients.machine_computation import MachineComputation
from pipelines.core.run.compute_options import ComputeOptions
from pipelines.core.run.task import TrainingTask
from pipelines.features.local_computation.adaptive_threads import AdaptiveThreads
from pipelines.features.local_computation.gpu_memory import cap_gpu_memory, off_the_gpu
from pipelines.features.local_computation.micro_batch import choose_micro_batch, largest_useful, trial
from pipelines.features.local_computation.size_choice import SizeChoice
from pipelines.features.local_computation.thread_choice import halves
from pipelines.features.torch_devices import describe_device, num_cores, wanted_threads

logger = logging.getLogger(__name__)


class LocalComputation(MachineComputation):
    """Computes gradients of a task's model, which lies on the first of the devices; see `MachineComputation`."""

    def __init__(self, task: TrainingTask, compute: ComputeOptions, place: str = "") -> None:
        cap_gpu_memory(compute.device, compute.max_gpu_memory)
        num_threads = wanted_threads(compute.cpu_threads, os.environ)
        torch.set_num_threads(num_threads or num_cores())
        super().__init__(task, dataclasses.replace(compute, cpu_threads=num_threads), place)
        self._sizes: SizeChoice | None = None
        """Which micro-batch this machine computes; None: it is configured."""

        self._trial = trial(
            task, self._computation.backward_as_it_is, self.model, compute.device, lambda: self.micro_batch_size
        )
        self._parts = contextlib.ExitStack()

    def __exit__(self, *exception: object) -> None:
        self._parts.close()

    def description(self) -> str:
        """See `MachineComputation.description`."""
        return describe_device(self._compute.device, self._compute.num_devices or 1)

    @property
    def micro_batch_size(self) -> int:
        """Samples per local step and device: as configured, or found by testing the machine; this may change."""
        return self._sizes.size if self._sizes is not None else super().micro_batch_size

    def batch_size(self) -> int:
        """Return the samples of a local step on all devices."""
        return self.micro_batch_size * (self._compute.num_devices or 1)

    def choose_micro_batch(self) -> None:
        """Test the machine, unless the size is configured. While it trains, this is done again from time to time."""
        if self._compute.micro_batch_size is not None:
            return
        own_share = int(self._task.run.target_batch_size / self._task.sample_weight)
        largest = largest_useful(own_share // (self._compute.num_devices or 1))
        size = choose_micro_batch(self._trial, largest=largest)
        self._sizes = SizeChoice(largest, size)
        logger.info("Micro-batches of %d samples suit this machine best.", size)

    def note_step(
        self,
        seconds: float,
        num_samples: int,
        *,
        may_test: Callable[[], bool] = lambda: True,
        around_a_test: Callable[[], contextlib.AbstractContextManager] = contextlib.nullcontext,
    ) -> None:
        """Note a step; time one other micro-batch, within `around_a_test`, if that is due and may be done now."""
        if self._sizes is None or self._is_compiled:  # each size would be compiled anew
            return
        before = self._sizes.size
        self._sizes.note_step(seconds, num_samples)
        if not may_test() or (size := self._sizes.next_trial()) is None:
            return
        with around_a_test():
            self._sizes.note_trial(self._trial(size))
        if self._sizes.size != before:
            logger.info("Micro-batches of %d samples suit this machine better than %d now.", self._sizes.size, before)

    def make_room(self, tensors: Iterable[torch.Tensor]) -> Callable[[], None]:
        """Move the tensors off the GPU; see `off_the_gpu`."""
        return off_the_gpu(tensors)

    def _backward(self) -> ComputeGradient:
        if (self._compute.num_devices or 1) > 1:
            return self._join_devices()
        if torch.device(self._compute.device).type != "cpu" or self._compute.cpu_threads is not None:
            return self._computation.backward
        return AdaptiveThreads(self._computation.backward, halves(num_cores()))

    def _join_devices(self) -> ComputeGradient:
        from pipelines.features.local_computation.device_group import (
            DeviceGroup,
            DevicePlan,
            meeting_place,
        )  # importing accelerate takes a second

        if self._task.device_program is None:
            raise ValueError(
                f"num_devices is {self._compute.num_devices}; a peer of this task computes on one device. Start one "
                "peer for each device."
            )
        plan = DevicePlan(
            program=self._task.device_program,
            run=self._task.run.to_json(),
            place=self._place,
            device_type=torch.device(self._compute.device).type,
            num_devices=self._compute.num_devices or 1,
            precision=self._precision,
            compiled=self._is_compiled,
            cpu_threads=self._compute.cpu_threads,
            max_gpu_memory=self._compute.max_gpu_memory,
            store=self._parts.enter_context(meeting_place()),
        )
        return self._parts.enter_context(DeviceGroup(plan, self.model, self._computation)).backward
