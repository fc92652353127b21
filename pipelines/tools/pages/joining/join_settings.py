"""What a user chooses when contributing a machine to a run from a page or a notebook."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from hub_tools.places import is_repository_name
from pipelines.core.run.compute_options import ComputeOptions
from pipelines.core.swarm.network_options import NetworkOptions


@dataclass(frozen=True, kw_only=True)
class JoinSettings:
    """A run, and this machine's limits in it. Raises ValueError for invalid ones."""

    repository: str
    """The run, `ORG/RUN`."""

    micro_batch_size: int | None = None
    """Samples per local step; None: found by testing."""

    device: str = "auto"
    """`auto`, `cpu`, `cuda` or `cuda:N`."""

    max_hours: float | None = None
    """Leave after this many hours."""

    max_epochs: int | None = None
    """Leave after this many epochs."""

    upload_mbit: float | None = None
    """Upload at most this many Mbit/s."""

    max_load: float | None = None
    """Compute for at most this share of the time, in percent."""

    max_gpu_memory: float | None = None
    """Take at most this many GiB of each GPU."""

    client_mode: bool = False
    """Accept no connections, as behind a firewall."""

    host_addresses: tuple[str, ...] = ()
    """Multiaddresses to listen on; empty: the command's default."""

    def __post_init__(self) -> None:
        check_run_name(self.repository)
        load = {} if self.max_load is None else dict(max_load=self.max_load)
        ComputeOptions(
            micro_batch_size=self.micro_batch_size,
            max_hours=self.max_hours,
            max_epochs=self.max_epochs,
            max_gpu_memory=self.max_gpu_memory,
            **load,
        )
        NetworkOptions(bandwidth_limit_mbit=self.upload_mbit)
        kind, _, number = self.device.partition(":")
        if kind not in ("auto", "cpu", "cuda") or (number and not (kind == "cuda" and number.isdecimal())):
            raise ValueError(f"device is {self.device[:80]!r}; expected auto, cpu, cuda or cuda:N.")

    @classmethod
    def from_fields(
        cls,
        repository: str | None,
        micro_batch: str | None,
        device: str | None,
        max_hours: float | None,
        upload_mbit: float | None,
        client_mode: bool,
        max_load: float | None = None,
        max_gpu_memory: float | None = None,
        *,
        host_addresses: tuple[str, ...] = (),
    ) -> Self:
        """Read the fields of a page: text with spaces around it, `auto` for nothing, 0 for no limit."""
        text = (micro_batch or "").strip().lower()
        if text not in ("", "auto") and not text.isdecimal():
            raise ValueError(f"The micro-batch is {text[:80]!r}; expected auto or a whole number.")
        return cls(
            repository=(repository or "").strip(),
            micro_batch_size=int(text) if text.isdecimal() else None,
            device=(device or "auto").strip() or "auto",
            max_hours=max_hours or None,
            upload_mbit=upload_mbit or None,
            client_mode=bool(client_mode),
            max_load=max_load or None,
            max_gpu_memory=max_gpu_memory or None,
            host_addresses=host_addresses,
        )

    def join_arguments(self) -> list[str]:
        """Return the arguments of `dalle-collab` with which this machine joins."""
        limits = {
            "--max-hours": self.max_hours,
            "--max-epochs": self.max_epochs,
            "--bandwidth-limit": self.upload_mbit,
            "--max-load": None if self.max_load == 100 else self.max_load,
        }
        given = [part for name, value in limits.items() if value is not None for part in (name, str(value))]
        return ["join", *self._shared_arguments(), *given]

    def doctor_arguments(self) -> list[str]:
        """Return the arguments of `dalle-collab` that examine this machine for the run."""
        return ["doctor", *self._shared_arguments()]

    def _shared_arguments(self) -> list[str]:
        size = [] if self.micro_batch_size is None else ["--micro-batch-size", str(self.micro_batch_size)]
        hosts = [part for address in self.host_addresses for part in ("--host", address)]
        memory = [] if self.max_gpu_memory is None else ["--max-gpu-memory", str(self.max_gpu_memory)]
        client_mode = ["--client-mode"] if self.client_mode else []
        return [self.repository, "--device", self.device, *size, *memory, *hosts, *client_mode]


def check_run_name(repository: str) -> None:
    """Raise ValueError unless the text could be the name of a run."""
    if not repository:
        raise ValueError("No run is named. Write its name on the Hub: ORG/RUN.")
    if not is_repository_name(repository):
        raise ValueError(f"{repository[:80]!r} is not the name of a run. Write it as on the Hub: ORG/RUN.")


def hosts_from(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the multiaddresses that the variable HOST names, separated by commas."""
    return tuple(filter(None, (part.strip() for part in environment.get("HOST", "").split(","))))
