"""Drawing at a run's servers as a library call: the recipe of who asks, from the run's name to the candidates."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel

from hub_tools.printing.printable import printable
from hub_tools.run_files import MODEL_FILES
from pipelines.core.peer.volunteer import EventHandler, ignore_events
from pipelines.core.swarm.network_options import NetworkOptions
from pipelines.core.swarm.streams.conversation import Conversation
from pipelines.features.publishing.repository.key_list import TrustedKeys
from pipelines.features.publishing.repository.snapshot import RunSnapshot
from pipelines.features.servers.complaints import ServerComplaint
from pipelines.features.servers.server_record import ServerRecord
from pipelines.features.serving.draw.audits import SHARE_AUDITED, DrawingAudits
from pipelines.features.serving.draw.client import PATIENCE_SECONDS, DrawingServer, Drawn, SwarmDrawing
from pipelines.features.serving.draw.modalities.choice import modality_of, modality_of_task
from pipelines.features.serving.draw.ranking.asking import OnRanked, Ranking, ranking_of
from pipelines.features.serving.draw.ranking.requests import SERVICE as RANK_SERVICE
from pipelines.features.serving.draw.requests import SERVICE, SamplingRequest, tokenizer_name
from pipelines.features.serving.entering import client_connection, weights_name
from pipelines.features.serving.server_blocklist import ServerBlocklist
from pipelines.tasks.text_to_image.generation.image_generation import clip_name

MOST_NAME_CHARACTERS = 48


@dataclass(kw_only=True)
class DrawingClient:
    """A run's processor and configuration, and servers that draw for it, pictures or texts."""

    revision: str
    """SHA-256 of the weights that are asked for."""

    processor: Any
    """Turns prompts into ids; of a language run its tokenizer."""

    config: PretrainedConfig
    precision: str
    is_audited: bool
    """Whether candidates are checked; who does not hold the model cannot."""

    start: Callable[..., Future[Drawn]]
    """`SwarmDrawing.draw`, to be called from any thread; cancelling the future stops the drawing."""

    draw: Callable[..., Drawn]
    """The same, and waits."""

    rank: Callable[..., Ranking]
    """`ranking_of` with the servers of now and the run's CLIP: takes a caption, codes and `on_progress`; waits."""

    servers: Callable[[], list[DrawingServer]]
    """Return who draws now, of any checkpoint and precision."""

    def request(self, caption: str, **values: Any) -> SamplingRequest:
        """Return the request for a caption or the beginning of a text; `values` are fields of `SamplingRequest`."""
        modality = modality_of(self.config)
        values.setdefault("options", modality.usual_options(self.config))
        return SamplingRequest(
            revision=self.revision,
            precision=self.precision,
            tokenizer=tokenizer_name(self.processor, self.config),
            input_ids=modality.ids_of(self.processor, caption),
            every=modality.every(self.config),
            **values,
        )


@contextlib.contextmanager
def connect(
    repository: str,
    *,
    revision: str | None = None,
    precision: str = "float32",
    audits: bool = False,
    share_audited: float = SHARE_AUDITED,
    patience_seconds: float = PATIENCE_SECONDS,
    device: str = "cpu",
    network: NetworkOptions = NetworkOptions(client_mode=True),
    on_event: EventHandler = ignore_events,
) -> Iterator[DrawingClient]:
    """Enter a run's swarm to have its pictures or texts drawn by others; only the processor is downloaded.

    With `audits` the model is too, and a share of the candidates is checked. Call it in the main thread of a process
    that has no other threads: hivemind forks. `on_event` is told `asking`, `loading` and `entered`.

    Raises:
        ValueError: the run has no weights yet, no entry address, or makes nothing that is drawn.
        AdmissionRefusedError: the run's authority does not admit this user.
        ConnectionError: the Hub, the authority or the swarm cannot be reached.
    """
    snapshot = RunSnapshot.read(repository, revision)
    newest = snapshot if revision is None else RunSnapshot.read(repository)
    snapshot = snapshot.trusting(TrustedKeys(newest.run))
    weights = weights_name(snapshot)
    folder = snapshot.download_signed()
    processor, config = modality_of_task(repository, newest.run.task).read(folder)
    blocklist = ServerBlocklist.of_run(repository)
    with contextlib.ExitStack() as stack:
        on_event("asking", run=newest.run)
        place = stack.enter_context(client_connection(newest.run_to_enter, repository, network))
        auditing = None
        if audits:
            on_event("loading")
            model = _model_of(repository, snapshot, device)
            auditing = DrawingAudits(model, precision, blocklist, share=share_audited)

        async def open_stream(peer: str) -> Conversation:
            return (await place.open(peer, SERVICE))[0]

        def servers() -> list[DrawingServer]:
            return drawing_servers(place.servers(), names_users=place.names_users)

        async def draw(sampling: SamplingRequest, candidates: range, **callbacks: Callable[..., None]) -> Drawn:
            if auditing is not None:
                await asyncio.to_thread(auditing.learn_calibration, sampling)
            drawing = SwarmDrawing(
                servers,
                open_stream,
                config,
                blocklist=blocklist,
                audits=auditing,
                patience_seconds=patience_seconds,
                repository=repository,
            )
            drawn = await drawing.draw(sampling, candidates, **callbacks)
            if drawn.complaints:
                found.extend(complaint.claim for complaint in drawn.complaints)
                await asyncio.to_thread(place.complain, found)
            return drawn

        async def rank(caption: str, codes: Tensor, on_progress: OnRanked | None = None) -> Ranking:
            return await ranking_of(
                await asyncio.to_thread(servers),
                partial(place.open, service=RANK_SERVICE),
                clip_name(processor),
                caption,
                codes,
                is_banned=lambda server: blocklist.avoids(server.peer, server.user),
                on_progress=on_progress,
                patience_seconds=patience_seconds,
            )

        found: list[ServerComplaint] = []
        on_event("entered", run=newest.run)
        yield DrawingClient(
            revision=weights,
            processor=processor,
            config=config,
            precision=precision,
            is_audited=auditing is not None,
            start=lambda *asked, **callbacks: place.loop.start(draw(*asked, **callbacks)),
            draw=lambda *asked, **callbacks: place.loop.call(draw(*asked, **callbacks)),
            rank=lambda *asked, **callbacks: place.loop.call(rank(*asked, **callbacks)),
            servers=servers,
        )


def drawing_servers(records: Mapping[bytes, ServerRecord], *, names_users: bool = False) -> list[DrawingServer]:
    """Return who draws now, by the signed records, each peer once. `names_users`: see `ClientConnection`."""
    found = {}
    for record in records.values():
        if record.state == "online" and record.draw_rate > 0:
            found[record.peer_id] = DrawingServer(
                peer=record.peer_id,
                name=shown_name(record.username) or record.peer_id[-8:],
                revision=record.revision,
                epoch=record.epoch,
                precision=record.precision,
                codes_per_second=record.draw_rate,
                ranks=record.ranks,
                user=record.username if names_users else "",
            )
    return list(found.values())


def shown_name(text: str) -> str:
    """Return a stranger's name as it may be shown: in one line, without marks that turn or hide text, and short."""
    shown = " ".join(printable(text).split())
    return shown if len(shown) <= MOST_NAME_CHARACTERS else shown[: MOST_NAME_CHARACTERS - 1] + "…"


def _model_of(repository: str, snapshot: RunSnapshot, device: str) -> PreTrainedModel:
    modality = modality_of_task(repository, snapshot.run.task)
    return modality.load(snapshot.download_signed(MODEL_FILES), precision="float32", device=device).model
