"""Who takes part in a run over the embedded Hub, each as a process, for `hub_rounds.py`: what it does, and what it saw.

    python tests/benchmarks/hub_peers.py peer|closer|newcomer|crowd FOLDER NAME

`FOLDER/plan.json` says of what run and how; what was measured is written to `FOLDER/NAME.json`. The environment says
where the Hub is, and whose token counts.
"""

import itertools
import json
import os
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.utils import disable_progress_bars

from hub_tools.local_hub.controls.hub_controls import HubControls
from pipelines.core.gradients.computation import BatchLoss
from pipelines.core.run.compute_options import ComputeOptions
from pipelines.core.run.task import Batch, TrainingTask, mean_loss
from pipelines.core.run.training_run import TrainingRun
from pipelines.core.signing.publisher_keys import PublisherKey
from pipelines.core.signing.signed_statement import signature_of, signed_text
from pipelines.features.hub_rounds.closer import CONTENTS_AT_ONCE, RESERVE, RoundCloser
from pipelines.features.hub_rounds.closing import drawn_order
from pipelines.features.hub_rounds.exchange import RoundExchange
from pipelines.features.hub_rounds.files import RoundFiles
from pipelines.features.hub_rounds.peer import HubPeer
from pipelines.features.hub_rounds.reading import RoundReader
from pipelines.features.hub_rounds.statements import Pointer, RoundList, SignedPointer, fingerprint
from pipelines.features.hub_rounds.stepping import ClosedRound, ReplayedState
from pipelines.features.local_computation.local_computation import LocalComputation
from pipelines.tasks.choice import open_task
from pipelines.tasks.text_to_image.image_code_stream import image_code_batch

REPOSITORY, CLOSER = "org/bench", "closer"
SIZE = dict(text_vocab_size=40, codebook_size=32, image_grid_size=4, text_sequence_length=16, recompute="none")
SHAPE = dict(num_hidden_layers=3, num_attention_heads=2, head_dim=16, attention_pattern=["row", "column"])
TINY = {**SIZE, **SHAPE, "hidden_size": 64}
LARGER = {**TINY, "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "head_dim": 64}
"""3.2 million parameters."""

HELD_OUT_SEED, NUM_HELD_OUT = 10**6, 16


@dataclass(frozen=True, kw_only=True)
class HubPlan:
    """A run and its peers. Each has a batch size, and idles until a micro-batch has taken `seconds_of_batch`."""

    model: Mapping[str, Any]
    settings: Mapping[str, Any]
    num_peers: int = 1
    micro_batch: int = 4
    seconds_of_batch: tuple[float, ...] = ()
    """Of each peer; 0: it computes all the time."""

    num_rounds: tuple[int, ...] = ()
    """For newcomers: rounds to repeat."""

    control_token: str = ""
    key: str = ""
    """Public key of who closes rounds."""

    def run(self) -> TrainingRun:
        """Return the run."""
        return TrainingRun(
            run_id="bench", model_config=dict(self.model), dataset_repository="made/up", dataset_revision="none",
            wire="hub", synchronisation="sparse", aggregation_rule="mean", outer_momentum=0,
            bucket=f"{REPOSITORY}-rounds", authorization_service="", optimizer_bits=32, **self.settings,
        )  # fmt: skip

    def write(self, folder: Path) -> None:
        """Write the plan for all who take part."""
        (folder / "plan.json").write_text(json.dumps(asdict(self)), encoding="utf-8")


def batches_of(run: TrainingRun, seed: int, size: int) -> Iterator[Batch]:
    """Yield micro-batches in which there is something to learn: codes that follow from the text."""
    for number in itertools.count():
        generator, config = torch.Generator().manual_seed(seed * 10**7 + number), run.model_config
        shape = (size, config["text_sequence_length"])
        text = torch.randint(2, config["text_vocab_size"], shape, generator=generator)
        codes = (text[:, :1] + torch.arange(config["image_grid_size"] ** 2)) % config["codebook_size"]
        yield image_code_batch(text, codes)


def held_out_loss(task: TrainingTask, model: torch.nn.Module) -> float:
    """Return the mean loss of samples that nobody trains on."""
    batches = itertools.islice(batches_of(task.run, HELD_OUT_SEED, 64), NUM_HELD_OUT)
    loss = mean_loss(task, model, list(batches))
    assert loss is not None
    return loss


class PacedComputation(LocalComputation):
    """Computes micro-batches, and idles until each has taken its time: many peers share few cores."""

    seconds, num_computed = 0.0, 0

    def compute(self, batch: Batch) -> BatchLoss | None:
        """See `LocalComputation`."""
        until = time.monotonic() + self.seconds
        loss = super().compute(batch)
        time.sleep(max(0.0, until - time.monotonic()))
        self.num_computed += loss.weight if loss is not None else 0
        return loss


class TimedHubPeer(HubPeer):
    """Notes where its time goes, and what each round has asked of the Hub."""

    num_offered = 0
    """Samples computed until the last offer."""

    def begin(self, controls: HubControls, user: str) -> None:
        """Begin to note."""
        self.controls, self.name = controls, user
        self.seconds, self.longest = defaultdict[str, float](float), defaultdict[str, float](float)
        self.rounds: list[dict[str, Any]] = []
        self._counts: Counter[str] = self._counted()

    @contextmanager
    def _timed(self, what: str) -> Iterator[None]:
        started = time.monotonic()
        yield
        seconds = time.monotonic() - started
        self.seconds[what] += seconds
        self.longest[what] = max(seconds, self.longest[what])

    def _step(self, batch: Batch) -> float | None:
        with self._timed("computing"):
            return super()._step(batch)

    def _turn(self, stop: threading.Event) -> bool:
        with self._timed("rounds"):
            return super()._turn(stop)

    def _offer(self, deadline: float) -> None:
        self.num_offered = self._computation.num_computed  # type: ignore[attr-defined]  # of a PacedComputation
        with self._timed("offering"):
            super()._offer(deadline)

    def _follow(self, closed: ClosedRound) -> None:
        counts = self._counted()  # nothing is under way: all of it is this round's
        own = any(pointer.user == self.name for pointer in closed.pointers)
        asked = {kind: counts[kind] - self._counts[kind] for kind in ("api", "resolvers", "xet")}
        self.rounds.append(dict(round=closed.closed.round, members=len(closed.pointers), counted=own, **asked))
        self._counts = counts
        with self._timed("following"):
            super()._follow(closed)

    def _counted(self) -> Counter[str]:
        return Counter(self.controls.request_counts().get(self.name, {}))


@dataclass
class Participant:
    """One process of a run: the plan, and the parts that all of them have."""

    folder: Path
    name: str

    def __post_init__(self) -> None:
        self.plan = HubPlan(**json.loads((self.folder / "plan.json").read_text(encoding="utf-8")))
        self.run, self.files = self.plan.run(), RoundFiles(REPOSITORY, self.plan.run())
        self.task = open_task(self.run, REPOSITORY)
        self.reader = self.new_reader()
        self.controls = HubControls(os.environ["HF_ENDPOINT"], self.plan.control_token)
        self.key = PublisherKey.load_or_create(self.folder / f"{self.name}.pem")

    def new_reader(self) -> RoundReader:
        """Return a reader that has heard of no round."""
        return RoundReader(self.files, self.run.contributions_per_round, lambda: [self.plan.key])

    def write(self, **figures: Any) -> None:
        """Write what was measured."""
        (self.folder / f"{self.name}.json").write_text(json.dumps(figures), encoding="utf-8")

    def peer(self, name: str) -> TimedHubPeer:
        """Return a training peer; the number at the end of its name says which."""
        number = int(name[4:])
        compute = ComputeOptions(device="cpu", cpu_threads=1, micro_batch_size=self.plan.micro_batch)
        computation = PacedComputation(self.task, compute)
        computation.__enter__()
        computation.seconds = self.plan.seconds_of_batch[number] if self.plan.seconds_of_batch else 0.0
        peer = TimedHubPeer(
            self.run, ReplayedState(self.run, computation.model), computation, self.reader,
            RoundExchange(self.reader, name, self.key, self.run.window_seconds), user=name, device="cpu",
            package_version="0", limits=compute, fetch_checkpoint=lambda: None,
        )  # fmt: skip
        peer.begin(self.controls, name)
        return peer

    def train(self) -> None:
        """Train until the run is over."""
        self.files.make_bucket(self.name, private=False)
        peer, stop = self.peer(self.name), threading.Event()
        peer.synchronise(stop)
        started = time.monotonic()
        for _ in peer.train(batches_of(self.run, int(self.name[4:]), self.plan.micro_batch), stop):
            pass
        self.write(
            wall=time.monotonic() - started, seconds=peer.seconds, longest=peer.longest, rounds=peer.rounds,
            offered=peer.num_offered,
        )  # fmt: skip
        peer.close()

    def close_rounds(self) -> None:
        """Close the run's rounds until it is over."""
        self.files.make_bucket("rounds", private=False)
        state = ReplayedState(self.run, self.task.new_model())
        closer, rounds = RoundCloser(self.reader, state, self.key), []
        left_out = Counter[str]()

        def note(found: ClosedRound) -> None:
            rounds.append({pointer.user: pointer.samples for pointer in found.pointers})
            left_out.update(one.reason for one in found.closed.left_out)

        closer.on_closed = note
        closer.open()
        while state.epoch < self.run.num_epochs:
            time.sleep(max(0.0, min(1.0, closer.keep_up())))
        self.write(rounds=rounds, left_out=left_out, loss=held_out_loss(self.task, state.model))
        state.close()

    def be_a_newcomer(self) -> None:
        """Make rounds at once, as a closer signs them; then come anew, and go to the newest state."""
        self.files.make_bucket("rounds", private=False)
        state, figures = ReplayedState(self.run, self.task.new_model()), []
        users = {f"user{seed}": self.contribution(state, seed) for seed in range(self.plan.num_peers)}
        for number in range(max(self.plan.num_rounds) + 1):
            order, previous = drawn_order(state.digest, users) if number else [], state.digest if number else ""
            members = tuple(self._pointer(state, user, users[user]) for user in order)
            if number:
                state.step([member.pointer for member in members], [users[user] for user in order])
            closed = RoundList(
                swarm_id=self.run.swarm_id, round=number, previous=previous, state=state.digest, members=members,
                left_out=(), closed_at=0.0, deadline=self.files.clock() + 600, key=self.key.public,
            )  # fmt: skip
            paths = [self.files.list_path(fingerprint(self.key.public), where) for where in (number, None)]
            copies = {
                self.files.copy_path(number, member.pointer.digest): users[member.pointer.user] for member in members
            }
            self.files.put(self.files.run_bucket, dict.fromkeys(paths, signed_text(closed, self.key)) | copies)
            if number in self.plan.num_rounds:
                figures += [dict(rounds=number, late=late, **self._come_anew(state, late)) for late in (0.0, 0.1)]
                self.controls.clear()
        self.write(figures=figures)

    def _come_anew(self, state: ReplayedState, late: float) -> Mapping[str, float]:
        """Return what it takes to come to this state over a Hub that answers so late."""
        self.controls.clear()
        self.controls.answer_late(late)
        self.reader = self.new_reader()
        peer = self.peer("peer0")
        self.controls.reset_request_counts()
        started = time.monotonic()
        peer.synchronise(threading.Event())
        seconds = time.monotonic() - started
        assert peer.state.digest == state.digest
        asked = self.controls.request_counts()[self.name]
        peer.close()
        return dict(seconds=seconds, resolvers=asked["resolvers"])

    def close_a_crowd(self) -> None:
        """Put the pointers of many volunteers, and close their round."""
        self.files.make_bucket("rounds", private=False)
        state, users = ReplayedState(self.run, self.task.new_model()), [f"v{n}" for n in range(self.plan.num_peers)]
        needed = set(drawn_order(state.digest, users)[: self.run.contributions_per_round + RESERVE])
        common = self.contribution(state, 0)

        def put(number: int) -> None:
            user = users[number]
            content = self.contribution(state, number) if user in needed else common
            # Nobody asks for the bytes of the others.
            pointer = self._pointer(state, user, content, digest=None if user in needed else f"{number:064x}")
            files: dict[str, bytes] = {self.files.pointer_path: signed_text(pointer.pointer, self.key)}
            if user in needed:
                files[self.files.offer_path(1, pointer.pointer.digest)] = content
            self.files.make_bucket(user, private=False)
            self.files.put(self.files.bucket_of(user), files)

        with ThreadPoolExecutor(CONTENTS_AT_ONCE) as executor:
            list(executor.map(put, range(len(users))))
        closer, closed = RoundCloser(self.reader, state, self.key), list[ClosedRound]()
        closer.on_closed = closed.append
        late = float(self.plan.settings["window_seconds"]) / 600
        self.controls.answer_late(late)
        closer.open()
        deadline, before = closer._deadline, time.process_time()
        assert deadline is not None
        time.sleep(max(0.0, deadline - self.files.clock()))
        self.controls.reset_request_counts()
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak is what is now
        memory_before = peak_memory()
        while not closed:
            time.sleep(max(0.0, min(1.0, closer.keep_up())))
        asked = self.controls.request_counts()
        self.write(
            late=late, seconds=self.files.clock() - deadline, asked=asked, members=len(closed[0].pointers),
            left_out=len(closed[0].closed.left_out), memory_before=memory_before, memory=peak_memory(),
            cpu=time.process_time() - before,
        )  # fmt: skip

    def contribution(self, state: ReplayedState, seed: int) -> bytes:
        """Return progress that a seed and the state decide."""
        generator = torch.Generator().manual_seed(seed + 1000 * state.epoch)
        values = [1e-4 * torch.randn(shape, generator=generator) for shape in state.codec.layout.shapes]
        return state.codec.encode(values, 64)

    def _pointer(self, state: ReplayedState, user: str, content: bytes, digest: str | None = None) -> SignedPointer:
        pointer = Pointer(
            swarm_id=self.run.swarm_id, user=user, round=state.epoch + 1, state=state.digest,
            digest=digest or sha256(content).hexdigest(), size=len(content), samples=64, total_samples=64, loss=2.0,
            samples_per_second=1.0, device="cpu", package_version="0", key=self.key.public,
        )  # fmt: skip
        return SignedPointer(pointer=pointer, signature=signature_of(pointer, self.key))


def peak_memory() -> float:
    """Return the most that this process has held in memory, in MB."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) / 1024


def main() -> None:
    """Take part."""
    torch.set_num_threads(1)
    disable_progress_bars()
    kind, folder, name = sys.argv[1:]
    participant = Participant(Path(folder), name)
    roles = dict(
        peer=participant.train, closer=participant.close_rounds, newcomer=participant.be_a_newcomer,
        crowd=participant.close_a_crowd,
    )  # fmt: skip
    roles[kind]()


if __name__ == "__main__":
    main()
