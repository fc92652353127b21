"""What one peer comes to alone, what the reducer makes of fixed parts, and what fixed tensors are on the wire.

Digests are of what all processors compute alike; see `frozen_arithmetic.py`. What a model's gradients come to is given
in numbers, which are compared but for rounding.
"""

import asyncio
import contextlib
import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from hivemind.compression import CompressionInfo
from parts import (
    AGGREGATION_RULES,
    ALL_RECORDS,
    AVERAGING_COMPRESSIONS,
    AggregationRule,
    RobustPartReducer,
    SwarmDHT,
    SwarmRecords,
    averaging_compression,
    made_up_batch,
    made_up_task,
    make_optimizer,
    read_part,
    tiny_run,
)

NUM_STEPS = 20
MAX_ATTEMPTS = 5
RUN_ID = "golden"
GENERATIONS = itertools.count(1)
OPTIMIZERS = {
    "lamb, 32 bits": dict(optimizer_bits=32),
    "lamb, 8 bits": dict(optimizer_bits=8),
    "local steps": dict(local_steps=2, inner_batch_size=16, outer_learning_rate=0.7, outer_momentum=0.9),
}
SHAPES = (torch.Size([300, 20]), torch.Size([77]))
"""Of the parts that the reducer gets."""

WEIGHTS = (16.0, 16.0, 24.0, 8.0, 1e9)
RECORDED_WEIGHTS = {0: 32.0, 1: 32.0, 2: 48.0, 3: 16.0}
TENSOR_SIZES = {"large": 3 * 4096 + 17, "small": 100}


Step = Callable[[Any, torch.nn.Module, int], tuple[float, float]]
"""Gives a model its gradients in the step of that number; returns loss and weight."""


def trained_alone() -> dict[str, Any]:
    """Return what becomes of the parameters of one peer that trains by itself, with each kind of optimizer."""
    with lone_node() as dht:
        return {name: _in_numbers(dht, name) | dict(digests=_in_bits(dht, name)) for name in OPTIMIZERS}


@contextlib.contextmanager
def lone_node(kind: Callable[..., Any] = SwarmDHT) -> Iterator[Any]:
    """Yield a DHT node without others."""
    node = kind(admission=None, host_maddrs=["/ip4/127.0.0.1/tcp/0"], use_ipfs=False, start=True)
    try:
        yield node
    finally:
        node.shutdown()


@contextlib.contextmanager
def lone_optimizer(dht: Any, run: Any, model: torch.nn.Module) -> Iterator[tuple[Any, Any]]:
    """Yield the optimizer of a swarm of one, with the swarm's records."""
    records = SwarmRecords(dht, run.swarm_id, admission=None, kinds=ALL_RECORDS).open()
    optimizer = make_optimizer(run=run, dht=dht, model=model, records=records)
    try:
        yield optimizer, records
    finally:
        optimizer.shutdown()


def _in_numbers(dht: Any, name: str) -> dict[str, Any]:
    model, manifest, losses = _trained(dht, name, _learn)
    return dict(
        epoch=manifest.epoch,
        tensors=[f"{name} {kind}" for name, kind, _ in manifest.tensors],
        losses=losses,
        parameters={name: in_numbers(parameter) for name, parameter in model.named_parameters()},
    )


def _in_bits(dht: Any, name: str) -> dict[str, str]:
    model, manifest, _ = _trained(dht, name, _make_up)
    return dict(state=hashlib.sha256("".join(manifest.hashes()).encode()).hexdigest(), model=digest(model))


def _trained(dht: Any, name: str, step: Step) -> tuple[torch.nn.Module, Any, list[float]]:
    for _ in range(MAX_ATTEMPTS):
        # Each in a swarm of its own: what is left of another one in the DHT would count as another peer's.
        generation = next(GENERATIONS)
        # The tracker looks into the DHT rarely: when it does, an epoch may end a step later than it could.
        run = tiny_run(
            run_id=RUN_ID, generation=generation, num_epochs=2 * NUM_STEPS, progress_expiration_seconds=1000.0,
            **OPTIMIZERS[name],
        )  # fmt: skip
        task = made_up_task(run)
        model = task.new_model()
        if step is _make_up:
            _make_up_weights(model)
        with lone_optimizer(dht, run, model) as (optimizer, _):
            losses = []
            for number in range(NUM_STEPS):
                loss, weight = step(task, model, number)
                optimizer.step(batch_size=weight)
                optimizer.zero_grad()
                losses.append(_rounded(loss))
            if optimizer.local_epoch < NUM_STEPS:
                continue
            return model, optimizer.state.take_snapshot(), losses
    raise RuntimeError(f"{name}: an epoch did not end with its samples in any of {MAX_ATTEMPTS} attempts.")


def _learn(task: Any, model: torch.nn.Module, number: int) -> tuple[float, float]:
    """Take all samples of an epoch at once: its end depends on nothing else then."""
    total, weight = task.loss(model, made_up_batch(task.run, number, task.run.samples_per_epoch))
    loss = total / weight
    loss.backward()
    return loss.item(), weight


@torch.no_grad()
def _make_up_weights(model: torch.nn.Module) -> None:
    for index, parameter in enumerate(model.parameters()):
        parameter.copy_(made_up(parameter.shape, index))


def _make_up(task: Any, model: torch.nn.Module, number: int) -> tuple[float, float]:
    """Take gradients that no processor has computed."""
    for index, parameter in enumerate(model.parameters()):
        parameter.grad = made_up(parameter.shape, 1000 * number + index)
    return 0.0, task.run.samples_per_epoch


def aggregates() -> dict[str, Any]:
    """Return what five senders' parts come to by each rule; the fifth lies."""
    return {rule: asyncio.run(_aggregate(rule)) for rule in AGGREGATION_RULES}


async def _aggregate(rule: str) -> dict[str, Any]:
    reducer = RobustPartReducer(
        SHAPES, range(len(WEIGHTS)), rule=AggregationRule(name=rule), recorded_weights=RECORDED_WEIGHTS
    )
    answers = []
    for number, shape in enumerate(SHAPES):
        common, noise = made_up(shape, number), [made_up(shape, 10 + 10 * number + peer) for peer in range(5)]
        parts = [common + 0.2 * one for one in noise[:4]] + [-1000 * common]
        calls = [
            reducer.accumulate_part(sender, number, part, weight)
            for sender, (part, weight) in enumerate(zip(parts, WEIGHTS, strict=True))
        ]
        answers.append((await asyncio.gather(*calls))[0])
    return dict(
        answers=[in_numbers(answer) for answer in answers],
        typical_value=reducer.typical_value,
        far_off_senders=reducer.far_off_senders,
        excess_weight_senders=sorted(reducer.excess_weight_senders),
    )


def messages() -> dict[str, Any]:
    """Return fixed tensors as they go over the wire, by codec."""
    return {name: {size: _message(name, size) for size in TENSOR_SIZES} for name in AVERAGING_COMPRESSIONS}


def _message(name: str, size: str) -> dict[str, Any]:
    codec = averaging_compression(tiny_run(averaging_compression=name))
    values = made_up(torch.Size([TENSOR_SIZES[size]]), seed=1)
    info = CompressionInfo.from_tensor(values, key=0)
    message = codec.compress(values, info)
    return dict(
        digest=hashlib.sha256(message.SerializeToString(deterministic=True)).hexdigest(),
        codec=message.compression,
        dtype=message.dtype,
        size=list(message.size),
        num_bytes=len(message.buffer),
        mean_byte=sum(message.buffer) / len(message.buffer),
        read=in_numbers(read_part(message, codec, info, values.shape)),
    )


def made_up(shape: torch.Size, seed: int) -> torch.Tensor:
    """Return values with a bell-shaped distribution of deviation 1, the same bits on every processor."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-512, 512, (12, *shape), generator=generator).sum(dim=0) / 1024


def digest(model: torch.nn.Module) -> str:
    """Return the SHA-256 of a model's parameters."""
    return digest_of(model.parameters())


def digest_of(tensors: Iterable[torch.Tensor]) -> str:
    """Return the SHA-256 of the tensors' bytes."""
    return hashlib.sha256(b"".join(tensor.detach().numpy().tobytes() for tensor in tensors)).hexdigest()


def in_numbers(tensor: torch.Tensor) -> dict[str, Any]:
    """Return a tensor's norm and, in units of it, its projections on two fixed directions of norm 1."""
    values = tensor.detach().double().flatten()
    norm = values.norm().item()
    places = torch.arange(1, len(values) + 1, dtype=torch.float64)
    along = [(values @ direction / direction.norm()).item() / (norm or 1.0) for direction in (places, places.sin())]
    return dict(norm=_rounded(norm), along=[_rounded(value) for value in along])


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")
