"""Is this machine sufficient for the run? Pure decisions about what `machine` has read."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from hub_tools.counted import file_size, memory_size
from pipelines.features.machine import Machine
from pipelines.tools.doctor.check_result import CheckResult, fail, ok, unknown, warn

PACKAGE = "dalle-collab"
ENOUGH_OPEN_FILES = 1024
"""hivemind and its daemon hold several files for every peer; below this a swarm of a few dozen peers runs out."""

COMFORTABLE_OPEN_FILES = 4096


@dataclass(frozen=True, kw_only=True)
class PeerNeeds:
    """What a peer of the run needs, in bytes; None where unknown."""

    memory: int | None
    shared_memory: int | None
    gpu_memory: int | None
    disk: int | None
    num_parameters: int | None = None
    explanation: str = ""
    """What the figures are based on, such as `125 M parameters, micro-batch 4`."""


def check_platform(machine: Machine) -> CheckResult:
    """hivemind forks its processes and starts a Linux daemon."""
    if machine.platform == "linux":
        return ok("platform", "Linux")
    return fail(
        "platform", machine.platform, "linux", "Use Linux, WSL 2 or a container; or join from a notebook in the cloud."
    )


def check_versions(required: Mapping[str, str], installed: Mapping[str, str | None]) -> list[CheckResult]:
    """Compare installed versions with those that the run requires; `python` counts as a package.

    One finding for each mismatch, or a single one if all match.
    """
    found = [
        result
        for name, wanted in sorted(required.items())
        if (result := _check_version(name, wanted, installed.get(name))) is not None
    ]
    if found:
        return found
    if not required:
        return [unknown("versions", "the run's settings name no versions", "")]
    seen = ", ".join(f"{name} {installed[name]}" for name in sorted(required))
    return [ok("versions", seen, ", ".join(f"{name} {wanted}" for name, wanted in sorted(required.items())))]


def _check_version(name: str, wanted: str, installed: str | None) -> CheckResult | None:
    try:
        fits = installed is not None and SpecifierSet(wanted, prereleases=True).contains(Version(installed))
    except (InvalidSpecifier, InvalidVersion) as error:
        return warn(f"version of {name}", f"cannot be compared ({error})", wanted, "Tell the run's organiser.")
    if fits:
        return None
    cure = f"pip install '{name}{wanted}'"
    if name == "python":
        cure = f"Make an environment with a Python {wanted}: uv venv --python '{wanted}'"
    return fail(f"version of {name}", installed or "not installed", wanted, cure)


def check_open_files(machine: Machine) -> CheckResult:
    """Every connection of a peer holds files open; a peer raises its own limit up to the system's."""
    name, seen = "open files", f"{machine.open_files} allowed"
    cure = "ulimit -Hn 65536 as root, LimitNOFILE=65536 in a systemd unit, or docker run --ulimit nofile=65536"
    if machine.open_files < ENOUGH_OPEN_FILES:
        return fail(name, seen, f"at least {ENOUGH_OPEN_FILES}", cure)
    if machine.open_files < COMFORTABLE_OPEN_FILES:
        return warn(name, seen, f"{COMFORTABLE_OPEN_FILES} for swarms of many peers", cure)
    return ok(name, seen, f"at least {ENOUGH_OPEN_FILES}")


def check_shared_memory(machine: Machine, needs: PeerNeeds) -> CheckResult:
    """hivemind keeps the parameters and averaged gradients of all its processes in /dev/shm."""
    cure = (
        "Give it more: docker run --shm-size 8g (or --ipc=host), in Kubernetes an emptyDir of medium Memory at "
        "/dev/shm, else: mount -o remount,size=8G /dev/shm"
    )
    if machine.free_shared_memory is None:
        return fail("shared memory", "there is no /dev/shm", "a file system in memory there", cure)
    return _compare("shared memory", machine.free_shared_memory, needs.shared_memory, needs, "free in /dev/shm", cure)


def check_memory(machine: Machine, needs: PeerNeeds) -> CheckResult:
    """Compare the free memory with the estimate."""
    cure = "Close other programs, choose a machine with more memory, or a smaller --micro-batch-size."
    return _compare("memory", machine.available_memory, needs.memory, needs, "available", cure)


def check_gpu_memory(machine: Machine, needs: PeerNeeds) -> CheckResult | None:
    """Compare the free memory of the GPU with the estimate; None where no GPU is used."""
    if machine.free_gpu_memory is None:
        return None
    cure = (
        "Choose a smaller --micro-batch-size or a larger --max-gpu-memory, stop other programs on this GPU "
        "(nvidia-smi), or use --device cpu."
    )
    return _compare("GPU memory", machine.free_gpu_memory, needs.gpu_memory, needs, "free", cure)


def check_disk(machine: Machine, needs: PeerNeeds) -> CheckResult:
    """Compare the free space in the Hub's cache with what the checkpoint and the daemon need."""
    cure = "Free some space, delete old downloads with `hf cache prune`, or set HF_HOME to a folder on a larger disk."
    return _compare("disk", machine.free_disk, needs.disk, needs, f"free in {machine.cache_folder}", cure, file_size)


def _compare(
    name: str,
    has: int | None,
    needed: int | None,
    needs: PeerNeeds,
    what: str,
    cure: str,
    write: Callable[[float], str] = memory_size,
) -> CheckResult:
    if has is None or needed is None:
        return unknown(name, "not reported by the system" if has is None else f"{write(has)} {what}, need not known")
    expected = write(needed) + (f" ({needs.explanation})" if needs.explanation else "")
    if has < needed:
        return fail(name, f"{write(has)} {what}", f"at least {expected}", cure)
    return ok(name, f"{write(has)} {what}", f"at least {expected}")


def check_hosts(host_addresses: Iterable[str], objections: Mapping[str, str]) -> CheckResult:
    """The ports to listen on must be free; `objections` says by address why one is not."""
    addresses = list(host_addresses)
    if not objections:
        return ok("port", f"can listen on {', '.join(addresses)}")
    seen = "; ".join(f"cannot listen on {address} ({why})" for address, why in objections.items())
    return fail(
        "port",
        seen,
        "an address of this machine and a free port",
        "Another program, perhaps another peer, uses it, or it is not this machine's: choose one with "
        "--host /ip4/0.0.0.0/tcp/PORT, or port 0 for any.",
    )
