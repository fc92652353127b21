"""The user's settings of a training step, and the result: bytes on the GPU and in RAM."""

import dataclasses
from dataclasses import dataclass
from typing import Any, Self

from hub_tools.checks import check_choice
from pipelines.features.memory_estimate.models.precision import PRECISIONS

NUM_STATISTICS = {"adam": 2, "adamw": 2, "lamb": 2, "muon": 2, "sgd": 0}
"""Values that an optimizer keeps for each parameter, `muon` for those outside of the layers' matrices. Those of a run's
optimizers are rows here, too."""

OPTIMIZERS = (*NUM_STATISTICS, "adafactor")
OPTIMIZER_BITS = (32, 16, 8)
RECOMPUTE_CHOICES = ("none", "checkpoint", "reversible", "partial")
DEVICES = ("cuda", "cpu")


@dataclass(frozen=True, kw_only=True)
class MemorySettings:
    """The settings. Attention is torch's `scaled_dot_product_attention`, what transformers uses by default."""

    micro_batch_size: int = 1
    """Samples in one forward and backward pass, on each GPU."""

    sequence_length: int | None = None
    """Tokens of one sample; None: the model's own longest. Our model's is fixed by its text and image sizes."""

    precision: str = "fp32"
    """`fp32`; `bf16` or `fp16`: autocast over float32 weights; `pure-bf16` or `pure-fp16`: weights in it as well."""

    optimizer: str = "adam"
    """`adam` and `lamb` keep two statistics for each parameter, `muon` one for those of layers' matrices, `adafactor` a
    row and a column of each matrix."""

    optimizer_bits: int = 32
    """Bits of one statistic of `adam` and `lamb`; 8: block-wise quantised."""

    offload_optimizer: bool = False
    """Keep the optimizer's statistics, and float32 parameters and gradients for it, in RAM."""

    recompute: str = "none"
    """`none` stores all activations; `checkpoint` stores each layer's input; `reversible` stores the last layer's
    output; `partial` is reversible in the first half of the layers."""

    num_shared_groups: int | None = None
    """Sets of layer weights that the layers cycle through (ALBERT); None: the model's own number."""

    num_gpus: int = 1
    """GPUs of this machine that share the micro-batches (data parallel)."""

    shard_over_gpus: bool = False
    """Shard weights, gradients and optimizer across GPUs (ZeRO stage 3, FSDP) instead of copying them to each."""

    collaborative: bool = False
    """Train as a peer of a swarm: hivemind's buffers are counted, and the optimizer is always offloaded."""

    local_steps: bool = False
    """As a peer of a swarm: make inner steps on the device, and average progress; `optimizer` is the inner one."""

    outer_momentum: bool = False
    """With local steps: the swarm's optimizer has momentum."""

    sparse: bool = False
    """With local steps: send the largest values of the progress, and keep the rest for later (error feedback)."""

    delays_averaging: bool = False
    """As a peer of a swarm: compute while a round runs."""

    device: str = "cuda"
    """`cuda`, or `cpu`: everything is in RAM then."""

    def __post_init__(self) -> None:
        for name in ("micro_batch_size", "sequence_length", "num_shared_groups", "num_gpus"):
            value = getattr(self, name)
            optional = name in ("sequence_length", "num_shared_groups")
            if not (optional and value is None) and (type(value) is not int or value < 1):
                raise ValueError(f"{name} is {value!r}; expected a whole number of at least 1.")
        check_choice("precision", self.precision, PRECISIONS)
        check_choice("optimizer", self.optimizer, OPTIMIZERS)
        check_choice("optimizer_bits", self.optimizer_bits, OPTIMIZER_BITS)
        check_choice("recompute", self.recompute, RECOMPUTE_CHOICES)
        check_choice("device", self.device, DEVICES)

    def replace(self, **changes: Any) -> Self:
        """Return a copy with some settings changed."""
        return dataclasses.replace(self, **changes)

    @property
    def keeps_optimizer_in_ram(self) -> bool:
        """Whether the optimizer works on copies in RAM."""
        return self.offload_optimizer or self.collaborative


@dataclass(frozen=True, kw_only=True)
class MemorySplit:
    """Bytes of tensors in one memory."""

    weights: int = 0
    """Parameters; in RAM those that an offloaded optimizer works on."""
    gradients: int = 0
    optimizer: int = 0
    activations: int = 0
    """The highest that everything else in a forward and backward pass reaches: what is stored for the backward pass,
    and temporaries, those of the loss, of a layer that is computed again and autocast's half copies of weights among
    them."""
    buffers: int = 0
    """Accumulated gradients, what other peers have sent and was not added yet, the copy of the state for newcomers,
    what progress is measured from and what of it was not sent; buckets of data parallelism."""

    @property
    def total(self) -> int:
        """All of them."""
        return self.weights + self.gradients + self.optimizer + self.activations + self.buffers

    def __add__(self, other: "MemorySplit") -> "MemorySplit":
        names = [item.name for item in dataclasses.fields(self)]
        return MemorySplit(**{name: getattr(self, name) + getattr(other, name) for name in names})


@dataclass(frozen=True, kw_only=True)
class MemoryEstimate:
    """What a training step needs."""

    gpu: MemorySplit
    """On each GPU."""
    ram: MemorySplit
    """In the machine's memory."""
    num_parameters: int
    """Parameters of the model, shared ones once."""
