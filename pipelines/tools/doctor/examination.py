"""The full examination of a machine for a run, check by check, and the short one that `join` starts with."""

import dataclasses
import importlib.metadata
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from hub_tools.run_files import WEIGHTS_FILE
from pipelines.core.run.compute_options import ComputeOptions
from pipelines.core.run.training_run import TrainingRun
from pipelines.core.swarm.dialling import parse_address
from pipelines.core.swarm.network_options import NetworkOptions
from pipelines.features.machine import Machine, read_machine
from pipelines.features.publishing.publishable_task import PublishableTask
from pipelines.features.publishing.repository.snapshot import RunSnapshot
from pipelines.features.reachability.tcp_calls import port_objection
from pipelines.tasks.choice import open_task
from pipelines.tools.doctor import hub_checks, machine_checks
from pipelines.tools.doctor.admission_checks import check_admission
from pipelines.tools.doctor.check_result import CheckResult, ok, unknown
from pipelines.tools.doctor.machine_checks import PACKAGE, PeerNeeds
from pipelines.tools.doctor.peer_needs import checkpoint_bytes, peer_needs, server_needs
from pipelines.tools.doctor.round_checks import check_rounds

CERTAIN_FAILURES = ("platform", "version of ", "wire codec", "Hub", "shared memory")
CURE_OF_SERVERS = "Close other programs, or serve some layers alone: --blocks auto"


@dataclass(frozen=True, kw_only=True)
class OpenedRun:
    """A run whose settings were read and whose task this package knows."""

    snapshot: RunSnapshot
    """The run's repository when the examination started."""

    task: PublishableTask

    @property
    def run(self) -> TrainingRun:
        """The run's settings, with the entry addresses that count."""
        return self.snapshot.run_to_enter


@dataclass(kw_only=True)
class Examination:
    """What the checks successively learn about one run on one machine."""

    repository: str
    network: NetworkOptions
    compute: ComputeOptions
    now: Callable[[], float] = time.time
    """This machine's clock, in seconds since 1970."""

    announce: Callable[[str], None] = lambda name: None
    """Called with the name of the next check."""

    opened: OpenedRun | None = None
    """The run, once it is read; passed to the checks that need it."""

    fits: bool = False
    """Whether dataset, processor and model match."""

    is_over: bool = False
    """Whether the run has reached its last epoch: nobody is expected in its swarm."""

    caller: dict[str, object] | None = None
    hub_clock_offset: float | None = None


def run_checks(
    repository: str,
    network: NetworkOptions,
    compute: ComputeOptions,
    *,
    announce: Callable[[str], None] = lambda name: None,
    now: Callable[[], float] = time.time,
) -> Iterator[CheckResult]:
    """Yield one finding after the other about this machine and the run; takes up to a few minutes, changes nothing.

    `announce` is called with the name of the next check. Checks that depend on a failed one are skipped or `unknown`.
    """
    examination = Examination(repository=repository, network=network, compute=compute, now=now, announce=announce)
    announce("Hub")
    yield from check_hub_and_run(examination)
    announce("machine")
    yield from check_machine(examination)
    opened = examination.opened
    if examination.is_over:
        yield from _servers_of(examination)
        return
    if opened is not None and opened.run.wire == "hub":
        announce("own bucket")
        yield from check_rounds(opened.snapshot, opened.run, needs_of(examination).num_parameters)
        announce("dataset and data stream")
        yield from check_data(examination, opened.task)
        return
    yield check_ports(network)
    if opened is None or sys.platform != "linux":
        return
    from pipelines.tools.doctor import swarm_examination

    yield swarm_examination.check_link(examination, opened.run)
    announce("dataset and data stream")
    yield from check_data(examination, opened.task)
    yield from swarm_examination.check_swarm(examination, opened.run)


def _servers_of(examination: Examination) -> Iterator[CheckResult]:
    """Yield what those say who serve a run that is over; that nobody does is no fault: it can be downloaded."""
    opened = examination.opened
    if opened is None or not opened.run.entry_addresses or sys.platform != "linux":
        return
    from pipelines.tools.doctor import swarm_examination

    for result in swarm_examination.check_swarm(examination, opened.run):
        if result.status == "ok":
            yield result


def quick_checks(snapshot: RunSnapshot, network: NetworkOptions, compute: ComputeOptions) -> list[CheckResult]:
    """Return the findings that take little more than a second: this machine, the versions, and the Hub's clock."""
    task = open_task(snapshot.run, str(snapshot.download_signed()))
    examination = Examination(
        repository=snapshot.repository,
        network=network,
        compute=compute,
        opened=OpenedRun(snapshot=snapshot, task=task),
    )
    hub, clock_offset = hub_checks.check_hub(examination.now)
    found = [hub, *check_machine(examination)]
    if snapshot.run.wire == "hub":  # its rounds go by the Hub's clock
        return found
    from pipelines.tools.doctor.swarm_checks import check_clock

    return [*found, check_clock({}, clock_offset)]


def quick_checks_of_server(snapshot: RunSnapshot, device: str, *, holds_all: bool) -> list[CheckResult]:
    """Return the findings that take about a second, of a machine that serves a run's model.

    `holds_all`: it downloads the weights and has them in memory; a server of some layers reads those alone.
    """
    from pipelines.tools.doctor.swarm_checks import check_clock

    machine, (hub, clock_offset) = read_machine(device), hub_checks.check_hub(time.time)
    found = [
        hub,
        machine_checks.check_platform(machine),
        *check_versions(snapshot.run, machine),
        machine_checks.check_open_files(machine),
        check_clock({}, clock_offset),
    ]
    if holds_all and hub.status != "fail":
        needs = server_needs(checkpoint_bytes(snapshot, WEIGHTS_FILE), device)
        on_device = (machine_checks.check_memory(machine, needs), machine_checks.check_gpu_memory(machine, needs))
        found += [dataclasses.replace(one, cure=one.cure and CURE_OF_SERVERS) for one in on_device if one is not None]
        found.append(machine_checks.check_disk(machine, needs))
    return found


def is_certain(result: CheckResult) -> bool:
    """Tell whether training certainly cannot work: estimates and the Hub's clock can be wrong."""
    return result.status == "fail" and result.name.startswith(CERTAIN_FAILURES)


def check_hub_and_run(examination: Examination) -> Iterator[CheckResult]:
    """Check the Hub, the token and the run's settings; the results are kept in the examination."""
    result, examination.hub_clock_offset = hub_checks.check_hub(examination.now)
    yield result
    if result.status == "fail":
        yield unknown("training run", "cannot be read while the Hub is down")
        return
    result, examination.caller = hub_checks.check_token()
    yield result
    if result.status == "fail":
        yield unknown("training run", "cannot be read with a refused token")
        return
    try:
        snapshot = hub_checks.retried(lambda: RunSnapshot.read(examination.repository))
        task, run = open_task(snapshot.run, str(snapshot.download_signed())), snapshot.run_to_enter
    except hub_checks.USER_ERRORS as error:
        yield hub_checks.failure("training run", error)
        return
    examination.opened = OpenedRun(snapshot=snapshot, task=task)
    yield ok("training run", f"{run.run_id}, created with {PACKAGE} {run.package_version}")
    result, examination.is_over = hub_checks.check_state(snapshot, examination.now())
    yield result
    yield from check_admission(examination.repository, run, examination.caller)


def check_machine(examination: Examination) -> Iterator[CheckResult]:
    """Check this machine on its own, against the run's needs as far as they are known."""
    machine = read_machine(examination.compute.device, examination.compute.max_gpu_memory)
    if examination.opened is None or examination.opened.run.wire != "hub":
        yield machine_checks.check_platform(machine)
    if (opened := examination.opened) is not None:
        yield from check_versions(opened.run, machine)
    needs = needs_of(examination)
    if opened is None or opened.run.wire != "hub":
        if opened is not None and machine.platform == "linux":
            from pipelines.tools.doctor.swarm_examination import check_wire_codec

            yield check_wire_codec(opened.run)
        yield machine_checks.check_open_files(machine)
        yield machine_checks.check_shared_memory(machine, needs)
    yield machine_checks.check_memory(machine, needs)
    if (result := machine_checks.check_gpu_memory(machine, needs)) is not None:
        yield result
    yield machine_checks.check_disk(machine, needs)


def check_versions(run: TrainingRun, machine: Machine) -> list[CheckResult]:
    """Compare installed versions with the run's requirements; an older run names only this package's version."""
    required = run.required_versions or {PACKAGE: f"=={'.'.join(run.package_version.split('.')[:2])}.*"}
    return machine_checks.check_versions(required, {name: installed_version(name) for name in required})


def installed_version(name: str) -> str | None:
    """Return the installed version of a package, or of Python itself; None if there is none."""
    if name == "python":
        return ".".join(map(str, sys.version_info[:3]))
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def check_ports(network: NetworkOptions) -> CheckResult:
    """Try to listen where the peer will."""
    objections = {}
    for text in network.host_addresses:
        try:
            objection = port_objection(parse_address(text))
        except ValueError as error:
            objection = str(error)
        if objection is not None:
            objections[text] = objection
    return machine_checks.check_hosts(network.host_addresses, objections)


def check_data(examination: Examination, task: PublishableTask) -> Iterator[CheckResult]:
    """Check that the dataset is there, fits the run, and that records arrive."""
    result = hub_checks.check_dataset(task)
    yield result
    examination.fits = result.status == "ok"
    if examination.fits:
        yield hub_checks.check_stream(task, examination.compute.micro_batch_size or 1)


def needs_of(examination: Examination) -> PeerNeeds:
    """Return what a peer of the examined run needs, nothing where it is not known."""
    nothing = PeerNeeds(memory=None, shared_memory=None, gpu_memory=None, disk=None)
    if (opened := examination.opened) is None:
        return nothing
    try:
        return peer_needs(opened.task, examination.compute, checkpoint_bytes(opened.snapshot))
    except hub_checks.USER_ERRORS:
        return nothing
