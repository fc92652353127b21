"""What it costs to run a model across block servers: exactness, time per step, and the time to recover from a loss.

Usage: python tests/benchmarks/served_blocks.py [--quick]

Servers are real processes on one machine, each with one thread, as the client. Petals, the model of this service, keeps
a dead server's request until its time-out of 180 s; the time to recover is beside the limit that was set: half a second
and half of what the lost places had cost (after a stop, or where the link is cut: the deadline of 2 s more).
"""

import itertools
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "support"))

import torch
from block_swarm import ServingPeer, client_of, cuttable_link, serving_peers
from hostile_messages import hostile_sessions, is_refused
from learned_model import captions_and_codes, learned_model
from measurement import Row, write_results
from tiny_models import tiny_dalle, tiny_language_model

from modeling_dalle_collab import DalleCollabConfig, DalleCollabForConditionalGeneration
from pipelines.serving.blocks.client.distributed_model import DistributedModel
from pipelines.serving.blocks.client.stream_swarm import StreamSwarm

PETALS_SECONDS = 180.0
DRAWINGS = {
    "greedy": dict(temperature=0.0, window=1),
    "sampled": dict(window=1),
    "sampled, guesses ahead": dict(window=4),
    "guided": dict(guidance_scale=2.0, window=1),
}
TIMED = dict(
    text_vocab_size=256, text_sequence_length=16, codebook_size=1024, image_grid_size=16, hidden_size=256,
    num_hidden_layers=8, num_attention_heads=8, head_dim=32,
)  # fmt: skip
NUM_CANDIDATES = 8


def relative(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


def embedding_gradient(
    model: DalleCollabForConditionalGeneration, text: torch.Tensor, codes: torch.Tensor
) -> torch.Tensor:
    model.zero_grad()
    model(text, codes).loss.backward()
    return model.model.token_embedding.weight.grad


def opened(folder: Path, swarm: StreamSwarm, codec: str = "float32") -> DistributedModel:
    return DistributedModel.from_pretrained(str(folder), swarm=swarm, codec=codec)


def exactness(work: Path, cuts: tuple[int, ...]) -> list[Row]:
    """Codes, logits, losses and gradients of a model that has learned something."""
    local, folder = learned_model(), work / "learned"
    local.save_pretrained(folder)
    text, codes = captions_and_codes(16, torch.Generator().manual_seed(2))
    spans = {f"layers {start}:{end}": range(start, end) for start, end in itertools.pairwise(cuts)}
    case, rows = f"{len(spans)} servers", []
    with serving_peers(work, folder, spans) as peers, client_of(peers) as swarm:
        model = opened(folder, swarm)
        for name, options in DRAWINGS.items():
            common = dict(num_candidates=4, seed=7) | options
            found, expected = (one.generate_image_codes(text[:4], **common) for one in (model, local))
            rows.append(Row(case=case, metric=f"codes that differ, {name}", unit="of 1024", floor=0.0,
                            ours=float((found != expected).sum())))  # fmt: skip
        found, expected = (
            one.generate_image_codes(text[:4], image_prompt=codes[:4, :20], window=1) for one in (model, local)
        )
        rows.append(Row(case=case, metric="codes that differ, image prompt", unit="of 256", floor=0.0,
                        ours=float((found != expected).sum())))  # fmt: skip
        grads = [embedding_gradient(one, text, codes) for one in (model, local)]
        local.config.recompute = "none"
        exact = embedding_gradient(local, text, codes)
        for name, grad in (("across", grads[0]), ("here, for comparison", grads[1])):
            metric = f"gradient, beside one without recomputation, {name}"
            rows.append(Row(case=case, metric=metric, unit="", floor=1e-6, ours=relative(grad, exact)))
        rows.append(Row(case=case, metric="gradient, across beside here", unit="", floor=1e-6,
                        ours=relative(*grads)))  # fmt: skip
        with torch.no_grad():
            whole = local(text, codes)
            for codec, limit in (("float32", 1e-4), ("float16", 2e-3), ("int8", None)):
                across = opened(folder, swarm, codec)(text, codes)
                seen = whole.logits > torch.finfo(torch.float32).min
                off = float((across.logits - whole.logits)[seen].abs().max())
                rows.append(Row(case=case, metric=f"logits, {codec}, largest difference", unit="", ours=off,
                                peer=float(whole.logits[seen].abs().max()), floor=limit))  # fmt: skip
                change = 100 * abs(float(across.loss / whole.loss) - 1)
                rows.append(Row(case=case, metric=f"held-out loss, {codec}, change", unit="%", ours=change,
                                floor=0.2))  # fmt: skip
    return rows


def language(work: Path) -> list[Row]:
    """A GPT-2 across two servers."""
    local = tiny_language_model(work / "gpt2", "gpt2")
    ids = torch.randint(1, 50, (4, 12), generator=torch.Generator().manual_seed(0))
    with (
        serving_peers(work, work / "gpt2", {"first": range(0, 2), "second": range(2, 4)}) as peers,
        client_of(peers) as swarm,
    ):
        model = opened(work / "gpt2", swarm)
        with torch.no_grad():
            off = float((model(ids).logits - local(ids).logits).abs().max())
        differ = 0
        for options in (dict(do_sample=False), dict(do_sample=True, top_k=10), dict(do_sample=False, num_beams=3)):
            texts = []
            for one in (model, local):
                torch.manual_seed(1)
                texts.append(one.generate(ids, max_new_tokens=40, **options))
            differ += int((texts[0] != texts[1]).sum())
    return [
        Row(case="GPT-2, 2 servers", metric="logits, float32, largest difference", unit="", ours=off, floor=1e-4),
        Row(case="GPT-2, 2 servers", metric="tokens that differ: greedy, sampled, beams", unit="of 480",
            ours=float(differ), floor=0.0),
    ]  # fmt: skip


def timed_model(work: Path) -> tuple[DalleCollabForConditionalGeneration, Path]:
    torch.manual_seed(0)
    model = DalleCollabForConditionalGeneration(DalleCollabConfig(**TIMED)).eval()
    model.save_pretrained(work / "timed")
    return model, work / "timed"


def drawn(
    model: DalleCollabForConditionalGeneration, at: int = -1, strike: Callable[[], None] = lambda: None
) -> tuple[torch.Tensor, list[float]]:
    """Return the codes of some candidates, and when each place was there; a server is hit behind one of them."""
    text = torch.full((1, 16), 5)
    times, stream = [], model.stream_image_codes(text, every=1, num_candidates=NUM_CANDIDATES, window=1)
    while (found := next(stream, None)) is not None:
        codes = found
        times.append(time.perf_counter())
        if len(times) - 1 == at:
            strike()
    return codes, times


def step_times(work: Path, repeats: int) -> list[Row]:
    """Time per step here and across two servers, in turns."""
    local, folder = timed_model(work)
    spans = {"first": range(0, 4), "second": range(4, 8)}
    with serving_peers(work, folder, spans) as peers, client_of(peers) as swarm:
        model, seconds = opened(folder, swarm), {}
        for _ in range(repeats):
            for name, one in (("here", local), ("across", model)):
                _, times = drawn(one)
                gaps = sorted(later - earlier for earlier, later in itertools.pairwise(times))
                seconds.setdefault(name, []).append(gaps[len(gaps) // 2])
    best = {name: min(found) for name, found in seconds.items()}
    return [
        Row(case="2 servers, 8 candidates", metric="time per step", unit="ms", ours=1e3 * best["across"],
            peer=1e3 * best["here"]),
        Row(case="2 servers, 8 candidates", metric="time per step, times the local one", unit="x",
            ours=best["across"] / best["here"], floor=1.6),
    ]  # fmt: skip


def losses(work: Path, quick: bool) -> list[Row]:
    """The second of two servers is killed or stopped, or its link cut; a spare that holds its layers goes on."""
    local, folder = timed_model(work)
    expected, rows = drawn(local)[0], []
    spans = {"first": range(0, 4), "second": range(4, 8), "spare": range(4, 8)}
    for name, place in itertools.product(("SIGKILL", "SIGSTOP", "link cut"), (128,) if quick else (1, 128, 254)):
        with (
            serving_peers(work, folder, spans, rates={"spare": 10.0}) as peers,
            cuttable_link(peers["second"]) as cut,
            client_of(peers) as swarm,
        ):
            number = getattr(signal, name, None)
            strike = cut if number is None else partial(peers["second"].signal, number)
            codes, times = drawn(opened(folder, swarm), place, strike)
        case = f"{name} at place {place} of 256"
        limit = 0.5 + 0.5 * (times[place] - times[0]) + (0.0 if name == "SIGKILL" else 2.0)
        rows += [
            Row(case=case, metric="next code after", unit="s", ours=times[place + 1] - times[place],
                peer=PETALS_SECONDS, floor=limit),
            Row(case=case, metric="codes that differ", unit="of 2048", ours=float((codes != expected).sum()), floor=0),
        ]  # fmt: skip
    return rows


def hostility(work: Path, count: int) -> list[Row]:
    """Hostile messages over streams, while somebody draws."""
    local = tiny_dalle(work / "tiny")
    text = torch.ones(1, 6, dtype=torch.int64)
    expected, refused, sessions = local.generate_image_codes(text, seed=4, window=1), 0, 0
    wrong = 0
    with serving_peers(work, work / "tiny", {"only": range(0, 6)}) as peers, client_of(peers) as swarm:
        model = opened(work / "tiny", swarm)
        before = free_bytes(swarm, peers["only"])
        for messages in hostile_sessions(23, count, peers["only"].revision, range(0, 6)):
            refused += is_refused(swarm.connect(peers["only"].peer), messages)
            sessions += 1
            if sessions % (count // 10) == 0:
                wrong += int((model.generate_image_codes(text, seed=4, window=1) != expected).sum())
        deadline = time.monotonic() + 30
        while (left := before - free_bytes(swarm, peers["only"])) and time.monotonic() < deadline:
            time.sleep(0.1)
    case = f"{count} hostile messages"
    return [
        Row(case=case, metric="refused", unit="", ours=float(refused)),
        Row(case=case, metric="codes of another client that differ, ten drawings", unit="", ours=float(wrong), floor=0),
        Row(case=case, metric="memory of the caches that is not given back", unit="bytes", ours=float(left), floor=0),
    ]


def free_bytes(swarm: StreamSwarm, peer: ServingPeer) -> int:
    link = swarm.connect(peer.peer)
    try:
        return int(link.about["free_cache_bytes"])
    finally:
        link.close()


def main(quick: bool) -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        rows = exactness(work, (0, 2, 4))
        rows += [] if quick else exactness(work, (0, 1, 3, 4))
        rows += language(work)
        rows += step_times(work, 1 if quick else 5)
        rows += losses(work, quick)
        rows += hostility(work, 100 if quick else 1000)
    write_results("served_blocks", rows, is_quick=quick)


if __name__ == "__main__":
    main("--quick" in sys.argv)
