"""Petals' own servers and client beside ours: time per token, tokens, and the wait after a server is killed or stopped.

Usage: PETALS_PYTHON=... python tests/benchmarks/petals_beside.py

`PETALS_PYTHON` is a Python of an environment of its own with petals 2.2.0.post1, transformers below 4.35, peft 0.5.0,
bitsandbytes 0.41.1 without triton, pydantic below 2, numpy below 2 and hivemind 1.1.10.post2, in whose
`hivemind/optim/grad_scaler.py` `torch.cuda.amp.grad_scaler` has become `torch.amp.grad_scaler` for a recent torch.
Never link packages of another environment into it: pip writes through links.

Each run has new swarms of three servers on loopback, one to spare, and a client that generates 64 tokens greedily with
the same Llama; ours and Petals' take turns. All processes have one thread for torch and compute in float32, and hidden
states travel in float32, which is the default of both. A run of Petals that has no next token 210 s after a loss is
given up, and 210 s are written down as its wait, so that those figures are bounds; six such runs are made at a time.
"""

import contextlib
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "support"))

import torch
from block_swarm import client_of, serving_peers
from measurement import Row, write_results
from petals_clock import NUM_TOKENS, SPANS, Clock, generated, measured_runs
from transformers import AutoModelForCausalLM, LlamaConfig

from pipelines.serving.blocks.client.distributed_model import DistributedModel

LIMIT_SECONDS = 210
Run = dict[str, Any]
Hit = tuple[int, signal.Signals]


def llama(folder: Path, hidden: int) -> None:
    """Save a model whose config both versions of transformers read."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=1000, hidden_size=hidden, intermediate_size=hidden * 11 // 4, num_hidden_layers=8,
        num_attention_heads=4, max_position_embeddings=256, eos_token_id=None, pad_token_id=0, initializer_range=0.1,
    )  # fmt: skip
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    path = folder / "config.json"
    values = json.loads(path.read_text(encoding="utf-8")) | dict(torch_dtype="float32", rope_theta=10000.0)
    path.write_text(json.dumps(values), encoding="utf-8")


def of_ours(folder: Path, work: Path, hit: Hit | None) -> Run:
    local = AutoModelForCausalLM.from_pretrained(folder)
    with serving_peers(work, folder, SPANS, rates={"spare": 10.0}) as peers, client_of(peers) as swarm:
        across = DistributedModel.from_pretrained(str(folder), swarm=swarm)
        found = measured_runs(local, across)
        if hit is None:
            return found
        clock = Clock(hit[0], lambda: peers["second"].signal(hit[1]))
        return found | {"tokens after": generated(across, clock), "wait": clock.wait()}


def of_petals(folder: Path, work: Path, hit: Hit | None) -> Run:
    program = Path(__file__).with_name("petals_peer.py")
    command = [os.environ["PETALS_PYTHON"], "-W", "ignore", program, folder, work]
    command += [] if hit is None else [str(int(value)) for value in hit]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= dict(OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1")
    found = work / "petals-found.json"
    with found.open("w") as out, (work / "petals-client.log").open("w") as log:
        client = subprocess.Popen(command, env=environment, stdout=out, stderr=log, start_new_session=True)
        try:
            assert client.wait() == 0, Path(log.name).read_text(encoding="utf-8")
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(client.pid, signal.SIGKILL)  # its DHT process outlives it
    return json.loads(found.read_text(encoding="utf-8").splitlines()[-1])


def run_of(side: Callable[[Path, Path, Hit | None], Run], folder: Path, hit: Hit | None = None) -> Run:
    with tempfile.TemporaryDirectory() as work:
        return side(folder, Path(work), hit)


def tokens_off(tokens: list[int], run: Run) -> int:
    return sum(one != other for one, other in zip(tokens, run["tokens"]["local"], strict=True))


def speeds(case: str, folder: Path, repeats: int) -> list[Row]:
    """Time per token here and across two servers, with each side's own version of transformers."""
    pairs = [[run_of(side, folder) for side in (of_ours, of_petals)] for _ in range(repeats)]
    sides = list(zip(*pairs, strict=True))
    rows = []
    for name, label in (("local", "here"), ("across", "across two servers")):
        values = [1e3 * statistics.median(one["seconds"][name] for one in side) for side in sides]
        rows.append(Row(case=case, metric=f"time per token, {label}", unit="ms", ours=values[0], peer=values[1]))
    ratios = [statistics.median(one["seconds"]["across"] / one["seconds"]["local"] for one in side) for side in sides]
    differ = [float(sum(tokens_off(one["tokens"]["across"], one) for one in side)) for side in sides]
    return [
        *rows,
        Row(case=case, metric="time per token, times the local one", unit="x", ours=ratios[0], peer=ratios[1]),
        Row(case=case, metric="tokens that differ from the local ones", unit=f"of {NUM_TOKENS * repeats}",
            ours=differ[0], peer=differ[1]),
    ]  # fmt: skip


def losses(folder: Path, places: Sequence[int], repeats: int) -> list[Row]:
    """What comes after the loss of the second server; Petals', which takes minutes, most of them waiting, once each."""
    rows, hits = [], list(itertools.product(places, (signal.SIGKILL, signal.SIGSTOP)))
    with ThreadPoolExecutor(6) as pool:
        waiting = [pool.submit(run_of, of_petals, folder, hit) for hit in hits]
        ours = [[run_of(of_ours, folder, hit) for _ in range(repeats)] for hit in hits]
        petals = [one.result() for one in waiting]
    for (place, number), runs, peer in zip(hits, ours, petals, strict=True):
        case, went_on = f"{number.name} at token {place} of {NUM_TOKENS}", "tokens after" in peer
        wait = LIMIT_SECONDS if peer["wait"] is None else peer["wait"]
        rows += [
            Row(case=case, metric="next token after", unit="s", ours=statistics.median(one["wait"] for one in runs),
                peer=wait),
            Row(case=case, metric="next token after, longest", unit="s", ours=max(one["wait"] for one in runs)),
            Row(case=case, metric="runs that went on to the end", unit=f"of {repeats}; peer: of 1", ours=repeats,
                peer=float(went_on)),
            Row(case=case, metric="tokens that differ from the local ones", unit=f"of {NUM_TOKENS * repeats}",
                ours=float(sum(tokens_off(one["tokens after"], one) for one in runs)),
                peer=float(tokens_off(peer["tokens after"], peer)) if went_on else None),
        ]  # fmt: skip
    return rows


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "llama")
        llama(folder, 256)
        rows = speeds("Llama, 8 layers of 256", folder, repeats=2)
        rows += losses(folder, (1, 32, 62), repeats=3)
    write_results("petals", rows)


if __name__ == "__main__":
    if "PETALS_PYTHON" not in os.environ:
        sys.exit("PETALS_PYTHON is not set: name a Python that has Petals, as the first lines of this file say.")
    main()
