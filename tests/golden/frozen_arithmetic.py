"""Digests of all that peers compute alike, equal on every processor: python tests/golden/frozen_arithmetic.py [PART...]

Needs torch and numpy alone, so that it also runs on an emulated processor. Prints the
processor's capability and the digests as JSON.
"""

import hashlib
import itertools
import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

from pipelines.core.averaging.reduce.robust_aggregation import AggregationRule, aggregate, bounded_weights
from pipelines.core.block_quantisation import dequantise, quantise
from pipelines.core.equal_arithmetic import SPAN, norm, power, product
from pipelines.core.optimizers.choice import OPTIMIZERS, linear_schedule, optimizer_type
from pipelines.core.run.sections import AGGREGATION_RULES
from pipelines.features.local_steps.nesterov import Nesterov
from pipelines.features.sparse.codec import SparseCodec
from pipelines.features.sparse.error_feedback import ErrorFeedback
from pipelines.features.sparse.mean import mean

NUM_STEPS = 200
SHAPES = ((96, 64), (7,), (33, 130), (4097,))
LARGE_SHAPE = (SPAN // 500 + 3, 999)
"""Of a parameter with two spans and a part of one: threads share it."""


def made_up(shape: Iterable[int], seed: int, scale: float = 1.0) -> torch.Tensor:
    """Return values of about the given size, a few of them 0, some of them tiny: from integers, alike everywhere."""
    draw = np.random.Generator(np.random.PCG64(seed))
    whole = draw.integers(-(2**20), 2**20, tuple(shape)).astype(np.float32) * np.float32(2.0**-20 * scale)
    return torch.from_numpy(np.ldexp(whole, draw.integers(-40, 1, tuple(shape))))


def digest(*parts: torch.Tensor | np.ndarray | bytes | float) -> str:
    """Return the SHA-256 of the parts' bytes."""
    whole = hashlib.sha256()
    for part in parts:
        plain = part.detach().numpy() if isinstance(part, torch.Tensor) else part
        whole.update(plain if isinstance(plain, bytes) else np.ascontiguousarray(plain).tobytes())
    return whole.hexdigest()


def of_optimizer(make: Callable[[list], torch.optim.Optimizer], num_steps: int = NUM_STEPS, large: bool = False) -> str:
    """Return the digest of parameters and state after steps with clipping, weight decay and the run's schedule."""
    shapes = (LARGE_SHAPE,) if large else SHAPES
    parameters = [torch.nn.Parameter(made_up(shape, seed)) for seed, shape in enumerate(shapes)]
    optimizer = make(parameters)
    schedule = linear_schedule(optimizer, num_warmup=7, num_total=num_steps + 9)
    for step in range(num_steps):
        for number, parameter in enumerate(parameters):
            parameter.grad = made_up(parameter.shape, 1000 * step + number, 10.0 ** (step % 5 - 3))
        optimizer.step()
        schedule.step()
    state = [optimizer.state[parameter].get(name) for parameter in parameters for name in _names(optimizer, parameter)]
    return digest(*parameters, *state)


def _names(optimizer: torch.optim.Optimizer, parameter: torch.Tensor) -> list[str]:
    return sorted(optimizer.state[parameter])


def optimizers() -> dict[str, str]:
    found = {}
    for name, bits, large in itertools.product(sorted(OPTIMIZERS), (8, 32), (False, True)):
        settings = dict(lr=0.01, betas=(0.9, 0.96), bits=bits, max_gradient_norm=1.0)

        def make(
            parameters: list, kind: type = optimizer_type(name), settings: dict = settings
        ) -> torch.optim.Optimizer:
            groups = [dict(params=[p], weight_decay=0.045, is_orthogonal=p.ndim == 2) for p in parameters]
            return kind(groups, **settings)

        found[f"{name}, {bits} bits{', large' * large}"] = of_optimizer(make, 3 if large else NUM_STEPS, large)
    found["nesterov"] = of_optimizer(lambda parameters: Nesterov(parameters, lr=0.7, momentum=0.9))
    return found


def robust_rules() -> dict[str, str]:
    found = {}
    for rule, lies in itertools.product(AGGREGATION_RULES, (False, True)):
        for number in (4, 7) if lies else (1, 2, 4, 7):
            common = made_up((70_001,), 0)
            inputs = torch.stack([common + made_up(common.shape, 10 + peer, 0.5) for peer in range(number)])
            inputs[:, 100:200] = 0.0
            inputs[::2, 100:200] = -0.0
            if lies:
                inputs[-1] *= -40
                inputs[-2] += 3.0
            weights = bounded_weights(
                {peer: 16.0 + 7.3 * peer for peer in range(number)}, dict.fromkeys(range(number), 30.1), 8.0
            )
            outcome = aggregate(inputs, list(weights.values()), AggregationRule(name=rule))
            figures = np.array([*outcome.excess, outcome.typical_norm])
            found[f"{rule}, {number} peers{', of which some lie' * lies}"] = digest(outcome.values, figures)
    return found


def codecs() -> dict[str, str]:
    found = {}
    for is_signed, block_size in itertools.product((True, False), (256, 4096)):
        values = torch.cat([made_up((3 * 4096 + 17,), 0, scale) for scale in (1.0, 1e-3, 1e-30, 1e-41, 0.0)])
        values = values if is_signed else values.abs()
        kept, scales = torch.empty(len(values), dtype=torch.uint8), torch.empty(-(-len(values) // block_size))
        quantise(values, block_size, is_signed, kept, scales)
        read = dequantise(kept, block_size, is_signed, scales)
        found[f"8 bits {'with' if is_signed else 'without'} sign, blocks of {block_size}"] = digest(kept, scales, read)
    values = torch.cat([made_up((5000,), 0, scale) for scale in (1e6, 1.0, 1e-3, 1e-7)])
    sent = values.clamp(torch.finfo(torch.float16).min, torch.finfo(torch.float16).max).half()  # as hivemind's codec
    found["float16"] = digest(sent, sent.float())
    return found


def sparse_progress() -> dict[str, str]:
    codec, found = SparseCodec(SHAPES, chunk=1024, k=64), {}
    feedback, contents = [ErrorFeedback(codec, 0.97) for _ in range(3)], []
    for round_, (peer, own) in itertools.product(range(4), enumerate(feedback)):
        progress = [made_up(shape, 100 * round_ + 10 * peer + index) for index, shape in enumerate(SHAPES)]
        contents.append(own.compress(progress, 100 + 31 * peer))
        if (round_ + peer) % 3 == 0:
            own.restore(0.3)
    found["contributions"] = digest(*contents)
    found["error feedback"] = digest(*(error for own in feedback for error in own.error))
    updates = [codec.decode(content) for content in contents[-3:]]
    found["mean"] = digest(*mean(codec, updates, [100.0, 131.0, 90.5]), *(update.norm for update in updates))
    return found


def primitives() -> dict[str, str]:
    large = made_up((3 * SPAN + 77,), 0)
    return {
        "norm": digest(*(norm(large * scale) for scale in (1.0, 1e-30, 1e30)), norm(large[:9], large[7:500])),
        "power": digest(*(power(beta, step) for beta in (0.9, 0.96, 0.999) for step in (1, 2, 77, 9_999))),
        "product": digest(product(made_up((37, 4099), 0), made_up((4099, 29), 1))),
    }


PARTS = dict(
    codecs=codecs, optimizers=optimizers, primitives=primitives, robust_rules=robust_rules, sparse=sparse_progress
)


def arithmetic(names: Iterable[str] = PARTS) -> dict[str, dict[str, str]]:
    """Return all digests of the named parts."""
    return {name: PARTS[name]() for name in names}


if __name__ == "__main__":
    print(torch.backends.cpu.get_cpu_capability(), json.dumps(arithmetic(sys.argv[1:] or PARTS)))
