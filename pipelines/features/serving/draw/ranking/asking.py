"""Having candidates ranked by a server that holds the run's CLIP; its word is not checked."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass

import torch
from torch import Tensor

from pipelines.core.swarm.streams.conversation import Conversation
from pipelines.core.swarm.streams.refusals import PeerGoneError, Refusal
from pipelines.features.serving.draw.client import PATIENCE_SECONDS, DrawingServer
from pipelines.features.serving.draw.ranking.requests import MOST_CANDIDATES, MOST_CHARACTERS, RankRequest

logger = logging.getLogger(__name__)

USUAL_STEP_SECONDS = 1.0
"""Between two frames of a server, whose heartbeats come as often."""

SCORED_IN_PATIENCE = 16
"""Candidates that a server scores at least while one is as patient as with a silent one, or the next one is asked."""


class NobodyRanksError(ConnectionError):
    """No server has scored all candidates."""


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """How well candidates fit their caption, as servers say."""

    scores: Tensor
    """(candidate) float32, as `ClipReranker.scores`."""

    servers: tuple[str, ...]
    """Names of those who have scored some, as they chose them."""


OnRanked = Callable[[int, int], None]
"""Told how many candidates have been scored, and how many there are."""

OpenRanking = Callable[[str], Awaitable[tuple[Conversation, Mapping[str, object]]]]
"""Opens a conversation with a peer's ranking service; returns also what that tells about itself."""


async def ranking_of(
    servers: Sequence[DrawingServer],
    open_stream: OpenRanking,
    clip: str,
    caption: str,
    codes: Tensor,
    *,
    is_banned: Callable[[DrawingServer], bool] = lambda _server: False,
    on_progress: OnRanked | None = None,
    patience_seconds: float = PATIENCE_SECONDS,
) -> Ranking:
    """Return the scores of `codes: (candidate, place)` int64 by the CLIP that a run names; the fastest server first.

    What a server does not finish, the next one does. Who was found to draw falsely, as `is_banned` says, is not asked.

    Raises:
        NobodyRanksError: none of the servers is left; says what each one answered.
    """
    scores, names, failures = torch.empty(0), list[str](), list[str]()
    for server in sorted(servers, key=lambda one: -one.codes_per_second):
        if not server.ranks or is_banned(server):
            continue
        before = len(scores)
        try:
            new = _scored_by(server, open_stream, clip, caption, codes[before:], patience_seconds)
            longest = patience_seconds * (1 + len(codes[before:]) / SCORED_IN_PATIENCE)
            async with asyncio.timeout(longest), aclosing(new):
                async for some in new:
                    scores = torch.cat([scores, some])
                    if on_progress is not None:
                        on_progress(len(scores), len(codes))
        except TimeoutError:
            failures.append(f"{server.name} is too slow.")
        except (PeerGoneError, Refusal) as error:
            logger.debug("%s does not rank: %s", server.peer, error)
            failures.append(
                f"{server.name}: {error.text}" if isinstance(error, Refusal) else f"{server.name} has gone."
            )
        if len(scores) > before:
            names.append(server.name)
        if len(scores) == len(codes):
            return Ranking(scores=scores, servers=tuple(names))
    raise NobodyRanksError(failures[0] if failures else "No server of the run offers it.")


async def _scored_by(
    server: DrawingServer, open_stream: OpenRanking, clip: str, caption: str, codes: Tensor, patience_seconds: float
) -> AsyncGenerator[Tensor]:
    """Yield the next scores, as one server sends them, until all have come; raises what a conversation raises."""
    conversation, about = await open_stream(server.peer)
    async with conversation:
        if about.get("clip") != clip:
            raise Refusal("invalid", f"It ranks with {str(about.get('clip'))[:80]}, not with the run's {clip}.")
        for part in codes.split(MOST_CANDIDATES):
            body, tensors = RankRequest(caption=caption[:MOST_CHARACTERS], codes=part).message()
            await conversation.send(body, tensors)
            missing = len(part)
            while missing:
                answer = await conversation.receive_answer(patience_seconds, USUAL_STEP_SECONDS)
                scores = answer.tensors.get("scores")
                if scores is None or not _are_scores(scores, missing):
                    raise Refusal("malformed", "It answers with something else than scores.")
                missing -= len(scores)
                yield scores


def _are_scores(scores: Tensor, most: int) -> bool:
    fits = scores.dtype == torch.float32 and scores.ndim == 1 and 1 <= len(scores) <= most
    return fits and bool(scores.isfinite().all())
