"""A swarm in one process: the optimizers of real peers, and rounds that compute what real ones do. Nothing is sent.

`SimulatedSwarm.epoch` gives each peer its micro-batches and ends the epoch. All that computes is the package's own:
gathering, inner and outer optimizers, schedules, the cutting into parts, the codec, weights, the aggregation rule.
`test_swarm_simulator.py` compares it, bit for bit, with peers that are processes. Steps and rounds end before the next
gradient is computed, whatever the run says of delays.
"""

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from hivemind.averaging.partition import TensorPartContainer
from hivemind.compression import CompressionBase, CompressionInfo
from hivemind.proto import runtime_pb2

from hub_tools.atomic_files import write_text_whole
from pipelines.core.averaging.averager import SwarmAverager
from pipelines.core.averaging.reduce.robust_aggregation import aggregate, bounded_weights
from pipelines.core.averaging.wire.codec import averaging_compression, read_part
from pipelines.core.averaging.wire.streams import PART_BYTES
from pipelines.core.epoch.hivemind_options import aggregation_rule
from pipelines.core.epoch.reduction import reduction_of
from pipelines.core.equal_arithmetic import is_finite
from pipelines.core.gradients.computation import GradientComputation, gradients_are_finite
from pipelines.core.optimizers.choice import optimizer_parts
from pipelines.core.run.task import Batch, TrainingTask
from pipelines.core.run.training_run import TrainingRun
from pipelines.core.state.training_state import TrainingState
from pipelines.features.sparse.codec import SparseCodec
from pipelines.features.sparse.error_feedback import ErrorFeedback
from pipelines.features.sparse.mean import mean

Vector = Sequence[torch.Tensor]
"""What one peer averages, tensor by tensor."""

Averaging = Callable[[Sequence[Vector], Sequence[float]], Vector]
"""What all peers take from a round, of their vectors and weights."""

ArrivalOrder = Callable[[int], Sequence[int]]
"""The peers in the order in which their parts of a tensor, by its number, come to the reducer."""


ReadPart = Callable[[runtime_pb2.Tensor, CompressionBase, CompressionInfo, torch.Size], torch.Tensor]


class DivergedError(ArithmeticError):
    """A gradient or a peer's progress is not finite. Real peers drop it and are as badly off with the next one."""


class _Peer:
    """A peer's model, state, gathering and gradients. Without local steps they are equal, and `twin` is another one."""

    def __init__(self, task: TrainingTask, twin: "_Peer | None", *, compiled: bool) -> None:
        run = task.run
        self.model = task.new_model() if twin is None else twin.model
        self.state = TrainingState(run.run_id, **optimizer_parts(run, self.model)) if twin is None else twin.state
        self.averaged = [torch.zeros_like(parameter) for parameter in self.state.optimized_parameters]
        if twin is None:
            for parameter, gradient in zip(self.state.optimized_parameters, self.averaged, strict=True):
                parameter.grad = gradient
        self.gathering = reduction_of(run, SwarmAverager).gathering(self.model, None, self.state)  # densely
        self._computation = GradientComputation(task, self.model, device="cpu", precision="fp32", compiled=compiled)

    def train(self, batches: Sequence[Batch], epoch: int) -> None:
        for batch in batches:
            self.model.zero_grad()
            weight = self._computation.backward(batch, 1.0).weight
            if not gradients_are_finite(p.grad for p in self.state.main_parameters if p.grad is not None):
                raise DivergedError(f"A gradient of epoch {epoch} is not finite.")
            self.gathering.add(weight, epoch)
        self.model.zero_grad()

    def begin_round(self, epoch: int) -> tuple[Vector, float]:
        """Return what this peer sends, and its weight."""
        self.gathering.finish(epoch)
        weight = self.gathering.load(self.averaged)
        if not all(map(is_finite, self.averaged)):
            raise DivergedError(f"What a peer would send in epoch {epoch} is not finite.")
        return self.averaged, weight

    def end_round(self, average: Vector) -> None:
        for tensor, averaged in zip(self.averaged, average, strict=True):
            tensor.copy_(averaged)

    def step(self) -> None:
        self.state.step()

    def close(self) -> None:
        self.state.close()


class SparseRounds:
    """An `Averaging`: peers with error feedback, of which each sends the largest values of its progress.

    `k` of every 4,096 values; `decay` is that of the error feedback.
    """

    def __init__(self, k: int, decay: float) -> None:
        self._k, self._decay = k, decay
        self._feedback: list[ErrorFeedback] = []
        self.bytes_per_value: list[float] = []
        """Bytes of each message, over the number of values that it is about."""

    def __call__(self, vectors: Sequence[Vector], weights: Sequence[float]) -> Vector:
        """See `Averaging`. Peers without samples contribute nothing."""
        codec = SparseCodec([tensor.shape for tensor in vectors[0]], k=self._k)
        if not self._feedback:
            self._feedback = [ErrorFeedback(codec, self._decay) for _ in vectors]
        peers = zip(self._feedback, vectors, weights, strict=True)
        payloads = [own.compress(vector, int(num_samples)) for own, vector, num_samples in peers if num_samples]
        self.bytes_per_value += [len(payload) / codec.layout.num_values for payload in payloads]
        return mean(codec, [codec.decode(payload) for payload in payloads], [weight for weight in weights if weight])


class SimulatedSwarm:
    """Peers of a run that take part in every round. Use it as a context manager."""

    def __init__(
        self, task: TrainingTask, num_peers: int, averaging: Averaging | None = None, *, compiled: bool = False
    ) -> None:
        """`averaging`: what a round computes, instead of the run's own codec and rule.

        Compiled, gradients take two thirds of the time, and their last bits are others.
        """
        self._averaging = averaging
        self.run, self.peers = task.run, list[_Peer]()
        for _ in range(num_peers):
            has_twin = self.peers and self.run.local_steps == 1
            self.peers.append(_Peer(task, self.peers[0] if has_twin else None, compiled=compiled))
        # Each has a model and a state of its own, or all have the first one's.
        self._stepping = self.peers if self.run.local_steps > 1 else self.peers[:1]
        self.num_epochs = 0
        self.last_gradients: list[Vector] = []
        """What each peer sent into the last round, before the codec."""

        self.last_average: Vector = ()

    @property
    def model(self) -> torch.nn.Module:
        """The model of the first peer; between two epochs its parameters are everybody's."""
        return self.peers[0].model

    def epoch(self, batches: Sequence[Sequence[Batch]], arrival: ArrivalOrder | None = None) -> None:
        """Let each peer compute its micro-batches, average, and step; raises DivergedError."""
        for peer, own in zip(self.peers, batches, strict=True):
            peer.train(own, self.num_epochs)
        sent = [peer.begin_round(self.num_epochs) for peer in self.peers]
        self.last_gradients = [[tensor.clone() for tensor in vector] for vector, _ in sent]
        average = self._averaging or partial(averaged, run=self.run, arrival=arrival)
        self.last_average = average(*zip(*sent, strict=True))
        for peer in self.peers:
            peer.end_round(self.last_average)
        for peer in self._stepping:
            peer.step()
        for peer in self.peers:
            peer.gathering.end_epoch()
        self.num_epochs += 1

    def __enter__(self) -> "SimulatedSwarm":
        return self

    def __exit__(self, *exception: object) -> None:
        for peer in self._stepping:
            peer.close()


def averaged(
    vectors: Sequence[Vector],
    weights: Sequence[float],
    run: TrainingRun,
    *,
    compression: CompressionBase | None = None,
    read: ReadPart = read_part,
    arrival: ArrivalOrder | None = None,
) -> list[torch.Tensor]:
    """Return what all members of a group take from a round: tensors as the reducers' answers give them.

    `compression`: another codec than the run's, with what reads it.
    """
    compression = averaging_compression(run) if compression is None else compression
    containers = [TensorPartContainer(vector, (1.0,), compression, PART_BYTES) for vector in vectors]
    # All parts as if one peer reduced them: who does makes no difference.
    parts_of_peers = [container._input_parts_by_peer[0].copy() for container in containers]

    def through(part: torch.Tensor, info: CompressionInfo) -> torch.Tensor:
        return read(compression.compress(part, info, allow_inplace=False), compression, info, part.shape)

    outcome = []
    for number, (tensor, num_parts) in enumerate(zip(vectors[0], containers[0].num_parts_by_tensor, strict=True)):
        order = range(len(vectors)) if arrival is None else arrival(number)
        answers = []
        for _ in range(num_parts):
            parts = [own.popleft() for own in parts_of_peers]
            arrived = {peer: through(*parts[peer]) for peer in order}
            answers.append(through(_reduced(arrived, weights, run), parts[0][1]))
        outcome.append(torch.cat(answers).view(tensor.shape))
    return outcome


def _reduced(parts: dict[int, torch.Tensor], weights: Sequence[float], run: TrainingRun) -> torch.Tensor:
    rule = aggregation_rule(run)
    effective = bounded_weights({peer: weights[peer] for peer in parts}, {}, rule.max_weight_ratio)
    return aggregate(torch.stack(list(parts.values())), list(effective.values()), rule).values


class Cells:
    """Finished figures of a long measurement, by name, in a JSON file; running it again continues."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}

    def get(self, name: str, measure: Callable[[], Any]) -> Any:
        """Return the named figure; measure and keep it if there is none."""
        if name not in self.values:
            self.values[name] = measure()
            write_text_whole(self._path, json.dumps(self.values, indent=1) + "\n")
        return self.values[name]
