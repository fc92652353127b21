"""Downloads a training state from several donors at once and trusts none of them: every tensor's hash is checked.

A donor that stalls, vanishes or lies is dropped for this download; its complete tensors are kept, the rest is requested
from the others. Because the hashes belong to the state and not to the donor, it does not matter who delivers what.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from pipelines.core.equal_arithmetic import is_finite
from pipelines.core.state.digest import StateManifest, TensorSpec, check_manifest
from pipelines.core.state.snapshot import StateSnapshot
from pipelines.core.state.votes import cut_into_jobs

logger = logging.getLogger(__name__)

Request = Mapping[str, object]
OpenStream = Callable[[str, Request], AsyncGenerator[bytes, None]]
"""Asks a peer, by its libp2p id, and yields the bytes of its answer."""

FIRST_MANIFEST_BYTES, MANIFEST_BYTES_PER_TENSOR = 65_536, 1024
"""No honest manifest is larger: a tensor takes some 150 bytes."""

WANTS = WANT_MANIFEST, WANT_TENSORS = "manifest", "tensors"


@dataclass(frozen=True, kw_only=True)
class DownloadLimits:
    """Time-outs of a state download."""

    chunk_seconds: float
    """A donor that sends nothing for this long, or has not sent all hashes, is dropped. Increase if healthy donors are
    dropped on slow links."""

    job_seconds: float
    """A donor that takes longer for one job is dropped, so that a trickle blocks nobody."""

    job_bytes: int = 2**22
    """Size of a job: the most that is lost with a donor, unless a single tensor is larger."""

    num_donors_at_once: int = 3


@dataclass(frozen=True, kw_only=True)
class DonorReport:
    """What each donor delivered."""

    num_bytes: int = 0
    """Bytes received, including discarded ones."""

    tensors_by_donor: dict[str, int] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    """Dropped donors, with the reason."""

    liars: tuple[str, ...] = ()
    """Donors that delivered data not matching the digest."""

    moved_on: tuple[str, ...] = ()
    """Donors that have another state by now, which is not an offence."""


class StateDownloadError(ConnectionError):
    """The state could not be downloaded from these donors; others, or a later state, may work."""

    def __init__(self, message: str, report: DonorReport) -> None:
        super().__init__(message)
        self.report = report


class StateRefusedError(ValueError):
    """The state matches its digest, but it is unusable."""

    def __init__(self, message: str, report: DonorReport) -> None:
        super().__init__(message)
        self.report = report


class LyingDonorError(ValueError):
    """A donor delivered data not matching the digest."""


class MovedOnError(ConnectionError):
    """A donor does not serve this state, or no longer does."""

    def __init__(self) -> None:
        super().__init__("It does not serve this state, or no longer does.")


def manifest_request(digest: str) -> Request:
    """Return the request for the hashes of the state with this digest."""
    return dict(want=WANT_MANIFEST, digest=digest)


def tensors_request(digest: str, indices: Sequence[int]) -> Request:
    """Return the request for tensors of the state with this digest, by their numbers."""
    return dict(want=WANT_TENSORS, digest=digest, indices=list(indices))


def read_request(request: Request, num_tensors: int) -> tuple[str, str, list[int]]:
    """Return what is requested, of which digest, and which tensors.

    Raises:
        ValueError: the request is invalid.
    """
    want, digest, indices = request.get("want"), str(request.get("digest")), request.get("indices", [])
    if want not in WANTS or not isinstance(indices, list) or len(indices) > num_tensors:
        raise ValueError(f"This is not a request for a state: {want!r}.")
    if not all(type(index) is int and 0 <= index < num_tensors for index in indices):
        raise ValueError(f"A request names tensors that do not exist; there are {num_tensors}.")
    return want, digest, indices


class StateDownload:
    """One download into a snapshot, which is replaced as soon as a donor has answered. `run` once."""

    def __init__(
        self,
        snapshot: StateSnapshot,
        donors: Sequence[str],
        open_stream: OpenStream,
        limits: DownloadLimits,
        *,
        digest: str,
        epoch: int,
    ) -> None:
        self._snapshot, self._open_stream, self._limits = snapshot, open_stream, limits
        self._digest, self._epoch, self._donors = digest, epoch, donors
        self._idle = deque(donors)
        self._failures: dict[str, str] = {}
        self._liars: set[str] = set()
        self._moved_on: set[str] = set()
        self._delivered = dict.fromkeys(donors, 0)
        self._num_bytes = 0
        self.num_done = 0
        """Bytes of the state that are here: received, which may count some twice, or of an earlier attempt."""

    async def run(self) -> StateManifest:
        """Download, check and write all tensors that the snapshot does not have yet; return their manifest.

        Raises:
            StateDownloadError: no donor is left; what has arrived stays in the snapshot for a retry.
            StateRefusedError: a tensor has values that are not finite, or the state is of another model.
        """
        manifest = await self._fetch_manifest()
        self._snapshot.begin()  # not before: a peer whose donors are all gone continues to offer what it has
        hashes, layout = manifest.hashes(), self._snapshot.layout
        held = self._snapshot.verified
        missing = {i: spec.num_bytes for i, spec in enumerate(layout) if held.get(i) != hashes[i]}
        self.num_done += self._snapshot.num_bytes - sum(missing.values())
        await self._fetch_all(deque(cut_into_jobs(missing, self._limits.job_bytes)), hashes)
        for spec in layout:
            if not is_finite(self._snapshot.tensors[spec.name]):
                raise StateRefusedError(
                    f"{spec.name} of the state of epoch {manifest.epoch} is not finite.", self.report()
                )
        return manifest

    def report(self) -> DonorReport:
        """Return what each donor has delivered so far."""
        return DonorReport(
            num_bytes=self._num_bytes,
            tensors_by_donor={donor: number for donor, number in self._delivered.items() if number},
            failures=dict(self._failures),
            liars=tuple(sorted(self._liars)),
            moved_on=tuple(sorted(self._moved_on)),
        )

    async def _fetch_manifest(self) -> StateManifest:
        while self._idle:
            donor = self._idle[0]
            try:
                text = await self._fetch_manifest_text(donor)
                if not text:
                    raise MovedOnError
                manifest = StateManifest.decode(text)
                if manifest.digest != self._digest or manifest.encode() != text:
                    raise LyingDonorError("Its manifest does not match its digest.")
            except Exception as error:  # peers fail in many ways; each is dropped and reported
                self._give_up(donor, error)
                self._idle.popleft()
                continue
            try:
                check_manifest(manifest, self._snapshot.layout, swarm_id=self._snapshot.swarm_id, epoch=self._epoch)
            except ValueError as error:
                message = f"The state of epoch {self._epoch} does not fit this peer's: {error}"
                raise StateRefusedError(message, self.report()) from error
            return manifest
        raise self._no_donor_left()

    async def _fetch_manifest_text(self, donor: str) -> bytes:
        most, text = FIRST_MANIFEST_BYTES + MANIFEST_BYTES_PER_TENSOR * len(self._snapshot.layout), bytearray()
        chunks = self._timed(donor, manifest_request(self._digest))
        # As long as for one chunk: it is small, and donors are asked for it one after the other.
        async with asyncio.timeout(self._limits.chunk_seconds), contextlib.aclosing(chunks):
            async for chunk in chunks:
                text += chunk
                if len(text) > most:
                    raise LyingDonorError(f"Its manifest has more than {most} bytes.")
        return bytes(text)

    async def _fetch_all(self, jobs: deque[list[int]], hashes: Sequence[str]) -> None:
        running: dict[asyncio.Task, tuple[str, list[int]]] = {}
        try:
            while jobs or running:
                while jobs and self._idle and len(running) < self._limits.num_donors_at_once:
                    donor, job = self._idle.popleft(), jobs.popleft()
                    running[asyncio.create_task(self._fetch(donor, job, hashes))] = (donor, job)
                if not running:
                    raise self._no_donor_left()
                done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    donor, job = running.pop(task)
                    if (error := task.exception()) is None:
                        # Before those who have delivered nothing: however many they are, they hold up few jobs.
                        self._idle = deque(sorted([*self._idle, donor], key=self._donors.index))
                        continue
                    self._give_up(donor, error)
                    held = self._snapshot.verified
                    if lost := [index for index in job if held.get(index) != hashes[index]]:
                        jobs.append(lost)
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def _fetch(self, donor: str, job: list[int], hashes: Sequence[str]) -> None:
        async with asyncio.timeout(self._limits.job_seconds):
            chunks = self._timed(donor, tensors_request(self._digest, job))
            rest = b""
            for index in job:
                spec = self._snapshot.layout[index]
                rest = await self._receive(spec, rest, chunks)
                found = await asyncio.get_running_loop().run_in_executor(None, self._snapshot.hash, spec)
                if found != hashes[index]:
                    raise LyingDonorError(f"It delivered bytes for {spec.name} that do not match the digest.")
                self._snapshot.verified[index] = found
                self._delivered[donor] += 1
            if rest or await anext(chunks, None) is not None:
                raise LyingDonorError("It delivered more than was requested.")

    async def _receive(self, spec: TensorSpec, rest: bytes, chunks: AsyncIterator[bytes]) -> bytes:
        """Write one tensor's bytes; return what remains."""
        memory, position = self._snapshot.memory(spec), 0
        while position < spec.num_bytes:
            if not rest and (rest := await anext(chunks, b"")) == b"":
                raise MovedOnError
            taken = rest[: spec.num_bytes - position]
            memory[position : position + len(taken)] = taken
            position, rest = position + len(taken), rest[len(taken) :]
        return rest

    async def _timed(self, donor: str, request: Request) -> AsyncGenerator[bytes, None]:
        """Yield a donor's chunks as long as each comes in time; raises TimeoutError otherwise."""
        stream = self._open_stream(donor, request)
        try:
            while True:
                try:
                    async with asyncio.timeout(self._limits.chunk_seconds):
                        chunk = await anext(stream)
                except StopAsyncIteration:
                    return
                self._num_bytes += len(chunk)
                self.num_done += len(chunk)
                yield chunk
        finally:
            await stream.aclose()

    def _give_up(self, donor: str, error: BaseException) -> None:
        if isinstance(error, LyingDonorError):
            self._liars.add(donor)
        if isinstance(error, MovedOnError):
            self._moved_on.add(donor)
        silent = f"It sent nothing for {self._limits.chunk_seconds:.0f} s, or too little."
        self._failures[donor] = silent if isinstance(error, TimeoutError) else str(error) or repr(error)
        logger.warning("Donor %s was dropped: %s", donor, self._failures[donor])

    def _no_donor_left(self) -> StateDownloadError:
        reasons = "; ".join(f"{donor}: {reason}" for donor, reason in self._failures.items()) or "there was none"
        return StateDownloadError(f"No donor of the state of epoch {self._epoch} is left ({reasons}).", self.report())
