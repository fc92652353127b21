"""Your own training loop in a swarm: model, loss and data stay as they are, two lines change."""

import atexit
import contextlib
import dataclasses
import logging
import shutil
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

import torch

from pipelines.core.epoch.assembly import make_optimizer
from pipelines.core.epoch.hivemind_options import reply_seconds
from pipelines.core.epoch.optimizer import SwarmOptimizer
from pipelines.core.optimizers.choice import optimizer_parts
from pipelines.core.peer.entering import admitted
from pipelines.core.peer.handing_over import hand_over
from pipelines.core.run.training_run import TrainingRun
from pipelines.core.swarm.network_options import NetworkOptions
from pipelines.core.swarm.node import open_dht, visible_addresses
from pipelines.core.swarm.records import SwarmRecords
from pipelines.features.all_records import ALL_RECORDS
from pipelines.features.all_services import ALL_SERVICES
from pipelines.joining.own_optimizer import own_optimizer_parts

logger = logging.getLogger(__name__)

INTERRUPTED_EXIT_CODE = 130
SHARED_MEMORY, SHARED_BYTES_PER_PARAMETER = "/dev/shm", 8
"""Where hivemind keeps float32 parameters and gradients for all processes of a peer."""


_ONE_AT_A_TIME = threading.Lock()


class UnsuitableModelError(ValueError):
    """The swarm cannot train this model; the message says why and what to do."""


class Collaboration(torch.optim.Optimizer):
    """The swarm as an optimizer of your model, wherever one is expected: a loop, transformers' `Trainer`, accelerate.

    Its learning rates say what the swarm steps with; setting them, as a scheduler does, changes nothing.
    """

    def __init__(
        self,
        optimizer: SwarmOptimizer,
        groups: Iterable[Mapping[str, object]],
        addresses: Sequence[str],
        samples_per_step: int | None,
    ) -> None:
        super().__init__([dict(group) for group in groups], dict(lr=0.0))
        self.optimizer, self.samples_per_step = optimizer, samples_per_step
        self.addresses = tuple(addresses)
        """Multiaddresses at which others find this peer: their `entry_addresses`."""

    @property
    def epoch(self) -> int:
        """Optimizer steps made by the swarm."""
        return self.optimizer.local_epoch

    @property
    def num_peers(self) -> int:
        """Peers training now, including this one."""
        return self.optimizer.progress().num_peers

    @property
    def is_over(self) -> bool:
        """Whether the run has reached its last epoch."""
        return self.optimizer.is_over

    @property
    def last_gradient_counted(self) -> bool:
        """Whether the last gradient counts: not if it was not finite, or computed with an outdated state."""
        return self.optimizer.last_gradient_was_used

    def step(  # type: ignore[override]  # torch's has overloads by `closure`
        self, closure: Callable[[], torch.Tensor] | None = None, *, num_samples: int | None = None
    ) -> torch.Tensor | None:
        """Count the gradient of a mean over so many samples, or the run's unit, and clear it.

        At the end of an epoch, averages with the others and steps. `num_samples` is by default `samples_per_step`.
        Returns what `closure`, which computes the gradient, returns.

        Raises:
            ValueError: nothing says how many samples there were.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        weight = self.samples_per_step if num_samples is None else num_samples
        if isinstance(weight, bool) or not isinstance(weight, int) or weight < 1:
            raise ValueError(
                f"The step's number of samples is {weight}; expected a number above 0: "
                "collaborate(..., samples_per_step=16), or step(num_samples=16) where they differ."
            )
        self.optimizer.step(batch_size=weight)
        self.optimizer.zero_grad()
        for shown, own in zip(self.param_groups, self.optimizer.state.optimizer.param_groups, strict=True):
            shown["lr"] = own["lr"]
        return loss


@contextlib.contextmanager
def collaborate(
    run: TrainingRun,
    model: torch.nn.Module,
    *,
    optimizer: torch.optim.Optimizer | None = None,
    samples_per_step: int | None = None,
    entry_addresses: Sequence[str] = (),
    network: NetworkOptions = NetworkOptions(),
    name: str = "",
) -> Iterator[Collaboration]:
    """Train `model`, whose parameters are float32, together with peers that have the same run and the same parameters.

    The swarm steps as `optimizer` would, one of `torch.optim` or of its kind, the same on all peers, with its learning
    rates times the factor of the run's schedule, once for the `target_batch_size` samples of all peers; by default it
    is the optimizer that the run names. `samples_per_step` is how many samples each of your steps is the mean over.

    Joins the swarm at these addresses or the run's own; without any it starts the run. The swarm's newest state
    is downloaded first. Initial parameters must be equal on all peers: seed them. Call it in the main thread of a
    process that has no other threads: hivemind forks. `name` is the run's name for messages and its authority.

    If the run is over at the end of the block, this peer stays for up to 20 s, so that the others get the last state,
    too; if they have another one, it takes that over. See `hand_over`.

    Ctrl-C leaves the swarm and the program, with one line and exit code 130; to do something before, catch
    KeyboardInterrupt within the block. A second one does not wait for the others. When one of hivemind's processes
    dies, the program ends with a line that says so, and exit code 1.

    Raises:
        ValueError: the run's wire is the Hub.
        UnsuitableModelError: the model's parameters are not all float32, or something else of it cannot be averaged.
        UnsuitableOptimizerError: the optimizer is not the model's, or its state cannot be shared.
        OSError: there is too little shared memory for the model.
        ConnectionError: no peer answers at the addresses.
        RuntimeError: this process trains in another swarm.
        AdmissionRefusedError: the run has an authority that does not admit this user, or no longer does.
    """
    run.check_has_swarm(name or run.run_id, "For your own training loop, create one with: --set wire=p2p")
    check_model(model)
    stepping = optimizer_parts(run, model) if optimizer is None else own_optimizer_parts(run, model, optimizer)
    check_shared_memory(model, shutil.disk_usage(SHARED_MEMORY).free)
    _quieten_hivemind()
    name, addresses = name or run.run_id, tuple(entry_addresses) or run.entry_addresses
    with _the_only_one(name), _ended_by_ctrl_c(), contextlib.ExitStack() as stack:
        network, admission = stack.enter_context(admitted(run, name, network))
        dht = stack.enter_context(
            open_dht(
                name,
                addresses,
                network,
                admission=admission,
                reply_seconds=reply_seconds(run),
                own_group=True,
                services=ALL_SERVICES,
            )
        )
        records = SwarmRecords(dht, run.swarm_id, admission=admission, kinds=ALL_RECORDS).open()
        swarm = make_optimizer(
            run=dataclasses.replace(run, entry_addresses=addresses),
            dht=dht,
            model=model,
            records=records,
            bandwidth_limit_mbit=network.bandwidth_limit_mbit,
            children=dht.children,
            stepping=stepping,
        )
        stack.callback(swarm.shutdown)
        if swarm.state_transfer.look().newest_epoch() > 0:
            swarm.load_state_from_peers()
        swarm.share_state()
        with _ended_by_ctrl_c():  # said before leaving, which takes seconds
            yield Collaboration(swarm, cast(Any, stepping["params"]), visible_addresses(dht), samples_per_step)
            swarm.wait_for_updates()
            if swarm.is_over:
                hand_over(swarm, records, threading.Event(), settles=True)


def check_model(model: torch.nn.Module) -> None:
    """Refuse what would fail in the middle of the training; it is not changed.

    Raises:
        UnsuitableModelError: a parameter is not float32 or has no values yet, its gradients are sparse or its memory is
            another one's too, or there is nothing to train.
    """
    parameters = dict(model.named_parameters())
    for name, parameter in parameters.items():
        if isinstance(parameter, torch.nn.parameter.UninitializedParameter) or parameter.is_meta:
            raise UnsuitableModelError(
                f"The parameter {name} has no values yet. Give the model its values first: pass one batch through a "
                "lazy model, and load or initialise one on the meta device."
            )
        if parameter.dtype != torch.float32:
            raise UnsuitableModelError(
                f"The parameter {name} is {str(parameter.dtype).removeprefix('torch.')}, and the swarm averages "
                "float32. Call model.float(), and compute in short precision under torch.autocast."
            )
        if parameter.layout != torch.strided:
            raise UnsuitableModelError(f"The parameter {name} is sparse; the swarm averages dense ones: to_dense().")
    _check_memory(parameters)
    if not any(parameter.requires_grad for parameter in parameters.values()):
        raise UnsuitableModelError("No parameter of the model has requires_grad=True: there is nothing to train.")
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Embedding | torch.nn.EmbeddingBag) and module.sparse:
            raise UnsuitableModelError(
                f"The layer {name or 'itself'} gives sparse gradients, and the swarm averages dense ones. Create it "
                "with sparse=False."
            )


def check_shared_memory(model: torch.nn.Module, free: int) -> None:
    """Refuse to start where the shared memory has too few free bytes: the kernel would kill the program later.

    Raises:
        OSError: the model does not fit.
    """
    needed = SHARED_BYTES_PER_PARAMETER * sum(parameter.numel() for parameter in model.parameters())
    if free < needed:
        raise OSError(
            f"The model needs {needed / 2**20:,.0f} MiB of shared memory, and {free / 2**20:,.0f} MiB are free in "
            f"{SHARED_MEMORY}. Give it more: docker run --shm-size 8g, else: mount -o remount,size=8G {SHARED_MEMORY}"
        )


def _check_memory(parameters: Mapping[str, torch.nn.Parameter]) -> None:
    """Refuse two parameters of one memory: each would be averaged and stepped by itself, and the last one be kept."""
    first: dict[tuple[int, Any], str] = {}
    for name, parameter in parameters.items():
        place = parameter.untyped_storage().data_ptr(), parameter.storage_offset()
        if parameter.numel() and first.setdefault(place, name) != name:
            raise UnsuitableModelError(
                f"The parameters {first[place]} and {name} share one memory, but are two. Tie them: assign the same "
                "torch.nn.Parameter to both."
            )


@contextlib.contextmanager
def _the_only_one(name: str) -> Iterator[None]:
    """Refuse a second swarm within the first one's block: hivemind forks, and would wait for ever among its threads."""
    if not _ONE_AT_A_TIME.acquire(blocking=False):
        raise RuntimeError(
            f"This process trains in a swarm already. Leave its block first, or join {name} from a process of its own."
        )
    try:
        yield
    finally:
        _ONE_AT_A_TIME.release()


@contextlib.contextmanager
def _ended_by_ctrl_c() -> Iterator[None]:
    """End the program with one line where Ctrl-C has ended the block."""
    try:
        yield
    except KeyboardInterrupt:
        _ignore_hiveminds_last_words()  # it may have been interrupted anywhere
        logger.warning("Stopped by Ctrl-C: leaving the swarm, which goes on without this peer.")
        raise SystemExit(INTERRUPTED_EXIT_CODE) from None


def _quieten_hivemind() -> None:
    """Leave out what hivemind says of everyday events, unless another level than its own was chosen."""
    logs = logging.getLogger("hivemind")
    if logs.level == logging.INFO:
        logs.setLevel(logging.CRITICAL)
    # Its loops end with the process, in the middle of what they do.
    logging.getLogger("asyncio").addFilter(lambda record: not record.getMessage().startswith("Task was destroyed"))
    atexit.register(_ignore_hiveminds_last_words)


def _ignore_hiveminds_last_words() -> None:
    """Say nothing of errors of hivemind's destructors from now on: at the end of Python they miss their modules."""
    say = sys.unraisablehook

    def say_of_others(unraisable: Any) -> None:
        if not str(getattr(unraisable.object, "__module__", "")).startswith("hivemind"):
            say(unraisable)

    sys.unraisablehook = say_of_others
