"""Two residual streams with invertible layers, so that activations are recomputed instead of stored.

After the reversible residual network of Gomez et al., 2017. Axes: batch, position, hidden.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx

from .linear_dalle_collab import add_gradients_to


@dataclass(frozen=True)
class BranchCall:
    """A branch ready to be computed, and the parameters that it uses."""

    compute: Callable[[Tensor], Tensor]
    parameters: tuple[nn.Parameter, ...]
    is_random: bool
    """Whether it draws random numbers (dropout), which recomputation must reproduce."""


def run_layer(first: Tensor, second: Tensor, attention: BranchCall, feed_forward: BranchCall) -> tuple[Tensor, Tensor]:
    """Add a layer's branches to the streams, (batch, position, hidden) each; autograd stores what it needs."""
    first = first + attention.compute(second)
    return first, second + feed_forward.compute(first)


# Compilers of the whole retrace the calls in every pass, which takes seconds: the loop runs uncompiled, and what
# is around it (embedding, stored layers, head, loss) is compiled. `compile_layers` compiles what the calls compute.
@torch.compiler.disable
def run_reversibly(first: Tensor, second: Tensor, calls: list[BranchCall]) -> tuple[Tensor, Tensor]:
    """Add layers' branches (two calls each) to the streams, (batch, position, hidden); store only the end."""
    parameters = dict.fromkeys(parameter for call in calls for parameter in call.parameters)
    return _ReversibleLayers.apply(first, second, calls, *parameters)


class _LayersContext(FunctionCtx):
    calls: list[BranchCall]
    parameters: tuple[Tensor, ...]
    replays: list["_Replay"]
    saved_tensors: tuple[Tensor, ...]


class _ReversibleLayers(torch.autograd.Function):
    """Keeps only the last value of the two streams; the backward pass recomputes every branch from it.

    The parameters are inputs of the function, each once, so that their gradients reach autograd like any others
    (`torch.autograd.grad`, hooks and gradient accumulation work).
    """

    @staticmethod
    def forward(
        ctx: _LayersContext,
        first: Tensor,
        second: Tensor,
        calls: list[BranchCall],
        *parameters: Tensor,
    ) -> tuple[Tensor, Tensor]:
        ctx.calls, ctx.parameters = calls, parameters
        ctx.replays = []
        # The streams and their gradients change in place: what a branch allocates is all given back at its end, so that
        # the next one finds the same memory free. New streams among it cut the free memory to pieces, which at the
        # paper's size on a CPU took more than all tensors together.
        first, second = first.clone(), second.clone()
        for attention, feed_forward in zip(calls[::2], calls[1::2], strict=True):
            ctx.replays.append(_Replay(first.device, attention.is_random))
            first += attention.compute(second)
            ctx.replays.append(_Replay(first.device, feed_forward.is_random))
            second += feed_forward.compute(first)
        ctx.save_for_backward(first, second)
        return first, second

    @staticmethod
    def backward(ctx: _LayersContext, grad_first: Tensor, grad_second: Tensor) -> tuple[Tensor | None, ...]:
        first, second = (stream.clone() for stream in ctx.saved_tensors)
        grad_first, grad_second = grad_first.clone(), grad_second.clone()
        grads = {parameter: torch.zeros_like(parameter) for parameter in ctx.parameters if parameter.requires_grad}
        for index in range(len(ctx.calls) - 2, -1, -2):
            _undo(ctx, index + 1, second, first, grad_second, grad_first, grads)
            _undo(ctx, index, first, second, grad_first, grad_second, grads)
        return grad_first, grad_second, None, *(grads.get(parameter) for parameter in ctx.parameters)


def _undo(
    ctx: _LayersContext,
    index: int,
    target: Tensor,
    source: Tensor,
    grad_target: Tensor,
    grad_source: Tensor,
    grads: dict[Tensor, Tensor],
) -> None:
    """Undo branch `index` in place: `target` is what it was before, `grad_source` has the branch's gradient, too."""
    call = ctx.calls[index]
    wanted = [parameter for parameter in call.parameters if parameter.requires_grad]
    with torch.enable_grad(), add_gradients_to(grads):
        source = source.detach().requires_grad_()
        added = ctx.replays[index](call.compute, source)
    source_grad, *parameter_grads = torch.autograd.grad(added, [source, *wanted], grad_target, allow_unused=True)
    for parameter, parameter_grad in zip(wanted, parameter_grads, strict=True):
        if parameter_grad is not None:  # else its product has already added it
            grads[parameter] += parameter_grad
    target -= added.detach()
    grad_source += source_grad


class _Replay:
    """Computes a branch again under the same conditions: the same autocast and, for dropout, random numbers."""

    def __init__(self, device: torch.device, keep_random_state: bool) -> None:
        self.devices = [device] if device.type == "cuda" else []
        self.random_states = _random_states(self.devices) if keep_random_state else None
        self.autocast: Callable[[], AbstractContextManager] = nullcontext
        if device.type != "meta":
            enabled, dtype = torch.is_autocast_enabled(device.type), torch.get_autocast_dtype(device.type)
            self.autocast = partial(torch.autocast, device.type, dtype=dtype, enabled=enabled)

    def __call__(self, compute: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        with self._same_random_numbers(), self.autocast():
            return compute(x)

    @contextmanager
    def _same_random_numbers(self) -> Iterator[None]:
        if self.random_states is None:
            yield
            return
        with torch.random.fork_rng(devices=self.devices):
            torch.set_rng_state(self.random_states[0])
            for device, state in zip(self.devices, self.random_states[1:], strict=True):
                torch.cuda.set_rng_state(state, device)
            yield


def _random_states(devices: list[torch.device]) -> list[Tensor]:
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state(device) for device in devices)]
