"""Drawings of a run as what a server offers: its checkpoints in memory, measured, and the services over them."""

import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import cast

from transformers import PreTrainedModel

from hub_tools.counted import memory_size
from hub_tools.run_files import MODEL_FILES
from pipelines.core.peer.pausing import PauseSwitch
from pipelines.core.peer.volunteer import EventHandler
from pipelines.core.run.compute_options import GIBIBYTE
from pipelines.core.swarm.streams.quotas import Quota
from pipelines.core.swarm.streams.server import Service
from pipelines.features.publishing.repository.snapshot import RunSnapshot
from pipelines.features.serving.draw.checkpoints import ServedCheckpoint, ServedCheckpoints, load_served
from pipelines.features.serving.draw.engine import DrawEngine
from pipelines.features.serving.draw.modalities.choice import modality_of, modality_of_task
from pipelines.features.serving.draw.modalities.pictures import PICTURES
from pipelines.features.serving.draw.ranking.service import RankService
from pipelines.features.serving.draw.requests import MOST_CANDIDATES
from pipelines.features.serving.draw.service import DrawService
from pipelines.features.serving.entering import SwarmConnection, weights_name
from pipelines.features.serving.memory import free_memory, memory_for_others
from pipelines.features.serving.offer import Offer, ServingOptions
from pipelines.tasks.text_to_image.generation.image_generation import DrawingContext, clip_name, with_clip

SECONDS_OF_MEASURING = 4.0
MEASURED_CANDIDATES = 8
PLACES = 8 * MOST_CANDIDATES
"""Candidates that wait or are drawn."""


@dataclass(frozen=True, kw_only=True)
class ServingReport:
    """What a server that draws is doing."""

    state: str
    epoch: int
    codes_per_second: float
    num_drawn: int
    num_clients: int
    free_places: int


class DrawingOffer(Offer):
    """See `Offer`: whole pictures or texts, and the ranking of pictures."""

    rate: float
    """Codes a second."""

    service: DrawService

    def __init__(self, snapshot: RunSnapshot, options: ServingOptions, device: str) -> None:
        self.modality = modality_of_task(snapshot.repository, snapshot.run.task)
        if options.ranks and self.modality is not PICTURES:
            raise ValueError(
                f"{snapshot.repository} makes {self.modality.product}s, and CLIP ranks pictures. Leave out --ranking."
            )
        self._first, self._options, self._device = snapshot, options, device

    def choose(self, _place: SwarmConnection, _on_event: EventHandler) -> Mapping[str, object]:
        """See `Offer.choose`: there is nothing to choose."""
        return dict(revision=weights_name(self._first), epoch=self._first.epoch or 0)

    def open(self, stack: ExitStack, on_event: EventHandler, switch: PauseSwitch) -> list[Service]:
        options, first = self._options, self._load(self._first)
        ranking = None
        if options.ranks:
            parts = cast("DrawingContext", first.parts)
            ranking = with_clip(self._first.repository, parts.processor, parts.codec)
        on_event("measuring")
        rate = measured_rate(first.parts.model)
        self.rate = min(rate, options.most_codes_per_second or rate)
        memory = memory_for_others(options.memory_gibibytes, free_memory(self._device))
        room = drawing_room(first.parts.model, memory)
        engine = stack.enter_context(DrawEngine(most_codes_per_second=options.most_codes_per_second))
        switch.on_switch = engine.pause
        checkpoints = ServedCheckpoints(first, options.precision)
        self.service = DrawService(checkpoints, engine, room, self._places("candidates"))
        if ranking is None:
            return [self.service]
        places = self._places("candidates to rank")
        ranks = RankService(clip_name(ranking.processor), ranking, places, lambda: engine.is_paused)
        stack.callback(ranks.close)
        return [self.service, ranks]

    def record(self) -> Mapping[str, object]:
        current, service = self.service.checkpoints.current, self.service
        return dict(
            state=self._state(),
            revision=current.revision,
            epoch=current.epoch,
            draw_rate=float(self.rate),
            free_places=service.places.free,
            num_drawn=service.engine.num_drawn,
            ranks=self._options.ranks,
        )

    def report(self) -> ServingReport:
        return ServingReport(
            state=self._state(),
            epoch=self.service.checkpoints.current.epoch,
            num_drawn=self.service.engine.num_drawn,
            free_places=self.service.places.free,
            codes_per_second=self.rate,
            num_clients=self.service.places.num_peers,
        )

    def renew(self, newest: RunSnapshot | None) -> Mapping[str, object] | None:
        checkpoints = self.service.checkpoints
        if newest is not None:
            checkpoints.replace(self._load(newest))
        checkpoints.drop_unused()
        return None if newest is None else dict(epoch=checkpoints.current.epoch)

    def _state(self) -> str:
        return "draining" if self.service.engine.is_paused else "online"

    def _load(self, snapshot: RunSnapshot) -> ServedCheckpoint:
        folder, precision = snapshot.download_signed(MODEL_FILES), self._options.precision
        return load_served(folder, snapshot.repository, self.modality, precision=precision, device=self._device)

    def _places(self, what: str) -> Quota:
        """Return the quota of candidates that wait or are computed."""
        run = self._first.run
        limits = dict(per_peer=run.candidates_per_peer, per_address=run.candidates_per_address)
        return Quota(what, **limits, in_all=PLACES, code="busy")


def measured_rate(model: PreTrainedModel) -> float:
    """Return the codes a second of some candidates together, measured for a few seconds."""
    drawing = modality_of(model.config).measuring(model, MEASURED_CANDIDATES)
    first = last = next(drawing)
    started = time.monotonic()
    while time.monotonic() - started < SECONDS_OF_MEASURING and (places := next(drawing, None)) is not None:
        last = places
    return MEASURED_CANDIDATES * max(1, last - first) / max(time.monotonic() - started, 1e-6)


def drawing_room(model: PreTrainedModel, memory: int) -> Quota:
    """Return the bytes that drawings may take: one peer, or address, half of them; ValueError if none fits."""
    modality = modality_of(model.config)
    least = modality.most_bytes_of_one(model.config)
    if memory < least:
        raise ValueError(
            f"There are {memory_size(memory)} for drawings, and one {modality.product} of this run takes "
            f"{memory_size(least)}. Give more: --memory {8 * least / GIBIBYTE:.2g}"
        )
    return Quota("bytes for drawings", per_peer=max(memory // 2, least), in_all=memory)
