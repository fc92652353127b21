"""How a published model is fine-tuned on your own dataset. Light: no torch, so that mistakes show at once."""

from dataclasses import dataclass

from hub_tools.checks import check_choice, check_counts, check_positive

MIXED_PRECISIONS = ("no", "fp16", "bf16")


@dataclass(frozen=True, kw_only=True)
class FinetuningOptions:
    """How a model is fine-tuned: by a small adapter next to its frozen weights (LoRA), or as a whole."""

    full: bool = False
    """Train all weights instead of an adapter. Needs memory for four times the model."""
    merge: bool = False
    """Also write a whole model with the adapter merged in."""
    num_steps: int = 1000
    """Optimizer steps."""
    micro_batch_size: int = 4
    """Samples computed at once; limited by the device's memory."""
    gradient_accumulation: int = 1
    """Micro-batches per optimizer step. Increase if the loss jumps and memory allows no larger micro-batches."""
    learning_rate: float = 1e-4
    """Highest learning rate of AdamW, reached after the warm-up; then it falls linearly to zero."""
    warmup_share: float = 0.05
    """Share of the steps in which the learning rate rises from zero."""
    weight_decay: float = 0.01
    """AdamW's decay of matrices; vectors do not decay."""
    max_gradient_norm: float = 1.0
    """Global norm to which the gradient is clipped."""
    lora_rank: int = 16
    """Rank of the adapter's matrices. Increase if the loss stays high, decrease if the model forgets too much."""
    lora_alpha: float = 32.0
    """The adapter's output is multiplied by lora_alpha / lora_rank."""
    mixed_precision: str = "no"
    """`bf16` or `fp16` computes in half precision, which needs less memory on GPUs; weights stay float32."""
    save_interval_steps: int = 500
    """Steps between saves."""
    seed: int = 0
    """Seed of the adapter's start and of the order of the records."""

    def __post_init__(self) -> None:
        check_counts(self, "num_steps", "micro_batch_size", "gradient_accumulation", "lora_rank", "save_interval_steps")
        check_positive(self, "learning_rate", "max_gradient_norm", "lora_alpha")
        if not 0 <= self.warmup_share < 1:
            raise ValueError(f"warmup_share is {self.warmup_share}, expected at least 0 and less than 1.")
        if not self.weight_decay >= 0:
            raise ValueError(f"weight_decay is {self.weight_decay}, expected 0 or more.")
        check_choice("mixed_precision", self.mixed_precision, MIXED_PRECISIONS)
        if self.full and self.merge:
            raise ValueError("--merge has no effect with --full, which always writes a whole model. Leave one out.")
