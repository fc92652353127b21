"""Candidates are ranked by real peers over libp2p; whoever lies, breaks off or is gone, the next one finishes it."""

import asyncio
from types import SimpleNamespace

import pytest
import torch
from hivemind.p2p import P2P
from stream_peer import HOST
from tiny_run_parts import write_tiny_clip_and_codec

from pipelines.core.swarm.streams.asking import open_conversation
from pipelines.core.swarm.streams.introductions import Introductions
from pipelines.core.swarm.streams.quotas import Quota
from pipelines.core.swarm.streams.refusals import Refusal
from pipelines.core.swarm.streams.server import StreamServer
from pipelines.features.serving.draw.client import DrawingServer
from pipelines.features.serving.draw.ranking.asking import NobodyRanksError, ranking_of
from pipelines.features.serving.draw.ranking.requests import SERVICE
from pipelines.features.serving.draw.ranking.service import RankService
from pipelines.tasks.text_to_image.clip.clip_reranking import ClipReranker

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

CLIP, CAPTION, NUM_CANDIDATES = "org/the-clip", "a small red star", 70


class Liar:
    """Answers a request with the same tensors again and again, then breaks off."""

    name, most_tensor_bytes = SERVICE, 2**22

    def __init__(self, *answers, clip=CLIP):
        self._answers, self._clip = answers, clip

    def about(self):
        return dict(clip=self._clip)

    async def serve(self, conversation):
        await conversation.receive(60)
        for answer in self._answers:
            await conversation.send({}, answer)
        raise Refusal("failed", "I have had enough.")


LIARS = {
    "no numbers": Liar(dict(scores=torch.full((4,), float("nan")))),
    "too many": Liar(dict(scores=torch.zeros(65))),
    "none": Liar(dict(scores=torch.zeros(0))),
    "doubles": Liar(dict(scores=torch.zeros(2, dtype=torch.float64))),
    "a table": Liar(dict(scores=torch.zeros(2, 2))),
    "something else": Liar(dict(codes=torch.zeros(2))),
    "another clip": Liar(dict(scores=torch.zeros(4)), clip="org/another-clip"),
    "no clip": Liar(dict(scores=torch.zeros(4)), clip=None),
    "full": Liar(),
}


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("parts")
    _, codec = write_tiny_clip_and_codec(folder)
    return SimpleNamespace(codec=codec, reranker=ClipReranker.from_pretrained(folder / "clip"))


def a_server(name, rate=1.0, *, ranks=True):
    return DrawingServer(
        peer=name, name=name, revision="", epoch=1, precision="float32", codes_per_second=rate, ranks=ranks
    )


def ranked(services, codes, servers, **options):
    """Have candidates ranked by services of one peer, each in a namespace of its own, which stands for its peer."""

    async def work():
        answering = await P2P.create(host_maddrs=[HOST], startup_timeout=120)
        asking = await P2P.create(
            initial_peers=[str(one) for one in await answering.get_visible_maddrs()],
            host_maddrs=[HOST],
            startup_timeout=120,
        )
        try:
            for name, service in services.items():
                await StreamServer(answering, name, Introductions(None)).offer(service)

            async def open_stream(name):
                return await open_conversation(asking, answering.peer_id, name, SERVICE, Introductions(None))

            return await ranking_of(servers, open_stream, CLIP, CAPTION, codes, **options)
        finally:
            await asking.shutdown()
            await answering.shutdown()

    return asyncio.run(work())


def test_who_does_not_rank_as_he_should_is_left_and_the_next_one_goes_on(parts):
    config = parts.codec.config
    codes = torch.randint(config.codebook_size, (NUM_CANDIDATES, config.num_codes))
    expected = parts.reranker.scores(CAPTION, parts.codec.decode(codes))
    places = Quota("candidates to rank", per_peer=64, in_all=64)
    honest = RankService(CLIP, parts, places, is_paused=lambda: False)
    services = LIARS | {"halfway": Liar(dict(scores=expected[:5]), dict(scores=expected[5:7])), "honest": honest}
    servers = [a_server(name, rate=100.0) for name in (*LIARS, "gone")]
    servers += [a_server("halfway", rate=10.0), a_server("honest"), a_server("draws", rate=1e6, ranks=False)]
    seen = []
    ranking = ranked(services, codes, servers, on_progress=lambda done, total: seen.append((done, total)))
    assert ranking.servers == ("halfway", "honest")
    assert torch.allclose(ranking.scores, expected, atol=1e-4)
    assert seen[0] == (5, NUM_CANDIDATES) and seen[-1] == (NUM_CANDIDATES, NUM_CANDIDATES)
    assert places.taken == 0
    honest.close()


class Scores:
    """A conversation with a server that scores one candidate after the other, in this share of the patience."""

    def __init__(self, share):
        self._share = share

    async def __aenter__(self):
        return self

    async def __aexit__(self, *exception):
        return None

    async def send(self, body, tensors):
        """Any request."""

    async def receive_answer(self, patience_seconds, usual_step_seconds):
        await asyncio.sleep(self._share * patience_seconds)
        return SimpleNamespace(tensors=dict(scores=torch.zeros(1)))


def test_who_scores_one_candidate_after_the_other_for_ever_is_left():
    async def open_stream(name):
        return Scores(0.25 if name == "trickle" else 0), dict(clip=CLIP)

    servers = [a_server("trickle", rate=1e9), a_server("honest")]
    codes = torch.zeros(32, 4, dtype=torch.int64)
    ranking = asyncio.run(ranking_of(servers, open_stream, CLIP, CAPTION, codes, patience_seconds=0.2))
    assert ranking.servers == ("trickle", "honest") and len(ranking.scores) == len(codes)


def test_where_nobody_is_left_the_error_tells_what_was_answered(parts):
    codes = torch.zeros(4, parts.codec.config.num_codes, dtype=torch.int64)
    paused = RankService(CLIP, parts, Quota("candidates", per_peer=64, in_all=64), is_paused=lambda: True)
    with pytest.raises(NobodyRanksError, match=r"No server of the run offers it"):
        ranked({}, codes, [a_server("draws", ranks=False)])
    with pytest.raises(NobodyRanksError, match=r"paused: The server is paused by its owner"):
        ranked({"paused": paused}, codes, [a_server("paused")])
    with pytest.raises(NobodyRanksError, match=r"No server of the run offers it"):
        ranked({"paused": paused}, codes, [a_server("paused")], is_banned=lambda server: server.peer == "paused")
    paused.close()
