"""What one machine contributes to a run: devices and time. What peers must share is in `training_run`."""

from dataclasses import dataclass

from hub_tools.checks import check_choice, check_counts, check_positive

GIBIBYTE = 2**30


@dataclass(frozen=True, kw_only=True)
class ComputeOptions:
    """Local choices of one training peer."""

    micro_batch_size: int | None = None
    """Samples per local step and device, without effect on the result; None: found by testing what memory and
    speed allow."""

    device: str = "cpu"
    """Torch device on which gradients are computed."""

    num_devices: int | None = None
    """Devices that compute gradients together as one peer: the GPUs from 0 on, or processes on the CPU; None: one."""

    precision: str = "auto"
    """Precision of the computation: `fp32`, `bf16`, or `fp16` with loss scaling; `auto` takes the device's best.
    Parameters, their averages and what peers exchange are the same for all of them."""

    compile: str = "auto"
    """Compile the model with `torch.compile`: `on`, `off`, or `auto`: where it pays off."""

    cpu_threads: int | None = None
    """Threads for torch; None: what `OMP_NUM_THREADS` says, else as many as are fastest, measured again and again."""

    shuffle_buffer_size: int = 2048
    """Records in the shuffle buffer."""

    max_epochs: int | None = None
    """Leave the run after taking part in this many epochs."""

    max_hours: float | None = None
    """Leave the run, cleanly, after this many hours."""

    max_load: float = 100.0
    """Compute for at most this share of the time, in percent: after each micro-batch the device rests."""

    max_gpu_memory: float | None = None
    """GiB of each GPU that this peer's tensors may take, so that other programs find the rest; None: all that is free.
    CUDA itself takes a few hundred MiB on top."""

    def __post_init__(self) -> None:
        check_counts(self, "micro_batch_size", "num_devices", "shuffle_buffer_size", "cpu_threads", "max_epochs")
        check_positive(self, "max_hours", "max_gpu_memory")
        if not 1 <= self.max_load <= 100:
            raise ValueError(f"max_load is {self.max_load}; expected a percentage from 1 to 100.")
        check_choice("precision", self.precision, ("auto", "fp32", "bf16", "fp16"))
        check_choice("compile", self.compile, ("auto", "on", "off"))
