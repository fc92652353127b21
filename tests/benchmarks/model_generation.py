"""Speed, memory and precision of generation: image codes for one caption, at one and at several candidates."""

import contextlib
import copy
import itertools
import statistics
import time
from collections.abc import Callable

import torch
from measurement import Row, median_seconds
from model_floors import ancestor_cache_bytes, kept_bytes, step_bytes, step_flops
from model_pair import Case, build_ours, build_peer, example_batch
from model_rates import MachineRates
from torch import Tensor, nn

from modeling_dalle_collab import DalleCollabForConditionalGeneration
from modeling_dalle_collab.cache_dalle_collab import GenerationCache

CANDIDATES = (1, 8)
CANDIDATES_OF_A_CAPTION = 128


class _Enough(Exception):
    """Ends the generation when its steps have been timed."""


def code_seconds(
    model: DalleCollabForConditionalGeneration, text: Tensor, num_candidates: int, num_codes: int
) -> list[float]:
    """Return the seconds from one image code to the next, for all candidates together, after the caption is read."""
    marks: list[float] = []

    def mark(done: int, total: int) -> None:
        marks.append(time.perf_counter())
        if len(marks) > num_codes:
            raise _Enough

    with contextlib.suppress(_Enough):
        model.generate_image_codes(
            text,
            num_candidates=num_candidates,
            temperature=0,
            window=1,  # one code at a time; what guesses win depends on the model: decoding.py
            candidate_batch_size=num_candidates,
            on_progress=mark,
        )
    return _gaps(marks)


@torch.no_grad()
def peer_seconds(
    peer: nn.Module, text: Tensor, num_candidates: int, num_codes: int, wait: Callable[[], None] = lambda: None
) -> tuple[float, list[float]]:
    """Return the same for the peer, after the seconds that it reads the repeated caption.

    Its `generate_images` drops its cache; this is the loop in there with the cache handed on. `wait` waits for a GPU.
    """
    text = text.repeat(num_candidates, 1)
    codes, cache, marks = text.new_empty(num_candidates, 0), {}, [time.perf_counter()]
    for _ in range(num_codes + 1):
        logits = peer(text, codes, cache=cache)[:, -1]
        code = logits.argmax(dim=-1, keepdim=True) - peer.num_text_tokens
        codes = torch.cat([codes, code], dim=1)
        wait()
        marks.append(time.perf_counter())
    first, *others = _gaps(marks)
    return first, others


def _gaps(marks: list[float]) -> list[float]:
    return [later - earlier for earlier, later in itertools.pairwise(marks)]


def measure_generation(case: Case, rates: MachineRates, log: Callable[[str], None]) -> list[Row]:
    """Compare codes per second, the reading of a caption, and what a cache holds."""
    peer = build_peer(case.config, optimize_for_inference=True).eval()
    ours = build_ours(case.config, peer)
    text, _ = example_batch(case.config, 1)
    rows = []
    for num_candidates in CANDIDATES:
        steps, peer_steps, peer_reads = [], [], []
        for _ in range(case.num_rounds):
            log(f"{case.name}: image codes of {num_candidates}, ours")
            steps += code_seconds(ours, text, num_candidates, case.num_codes)
            log(f"{case.name}: image codes of {num_candidates}, peer")
            read, others = peer_seconds(peer, text, num_candidates, case.num_codes)
            peer_reads.append(read)
            peer_steps += others
        rates.sample()
        rows.append(_codes_row(case, num_candidates, steps, peer_steps, rates))
    log(f"{case.name}: reading a caption, ours")
    rows += _reading_rows(case, ours, text, statistics.median(peer_reads) / CANDIDATES[-1])
    return [*rows, *_cache_rows(case, ours, text)]


def _codes_row(
    case: Case, num_candidates: int, steps: list[float], peer_steps: list[float], rates: MachineRates
) -> Row:
    places = range(case.num_codes)
    flops = num_candidates * step_flops(case.config, places)
    floor = rates.least_seconds(flops, step_bytes(case.config, places, num_candidates))
    return Row(
        case=f"{case.name}, {_candidates(num_candidates)}",
        metric=f"image codes, first {case.num_codes}",
        unit="1/s",
        ours=num_candidates / statistics.median(steps),
        peer=num_candidates / statistics.median(peer_steps),
        floor=num_candidates / floor,
    )


def _candidates(count: int) -> str:
    return f"{count} candidate{'s' if count > 1 else ''} of a caption"


def _reading_rows(
    case: Case, ours: DalleCollabForConditionalGeneration, text: Tensor, peer_seconds_per_copy: float
) -> list[Row]:
    with torch.no_grad():
        seconds = median_seconds(lambda: ours.read_text(text), 3)
    together, turns = CANDIDATES[-1], CANDIDATES_OF_A_CAPTION // CANDIDATES[-1]
    title = f"{case.name}, caption (peer: each of {together} copies)"
    many = f"{case.name}, {CANDIDATES_OF_A_CAPTION} candidates (peer: {turns} x {together})"
    peer_for_many = CANDIDATES_OF_A_CAPTION * peer_seconds_per_copy
    return [
        Row(case=title, metric="reading the caption", unit="s", ours=seconds, peer=peer_seconds_per_copy),
        Row(case=many, metric="reading the caption", unit="s", ours=seconds, peer=peer_for_many),
    ]


def _cache_rows(case: Case, ours: DalleCollabForConditionalGeneration, text: Tensor) -> list[Row]:
    rows = []
    for num_candidates in CANDIDATES:
        with torch.no_grad():
            cache = GenerationCache(ours.model.stack, ours.read_text(text), num_candidates)
        rows.append(
            Row(
                case=f"{case.name}, {_candidates(num_candidates)}",
                metric="cache of a candidate",
                unit="MiB",
                ours=cache.num_bytes() / num_candidates / 2**20,
                peer=ancestor_cache_bytes(case.config) / 2**20,
                floor=kept_bytes(case.config, num_candidates) / 2**20,
            )
        )
    return rows


def measure_precision(case: Case, log: Callable[[str], None]) -> list[Row]:
    """Say what weights in bfloat16 do to our logits and speed."""
    log(f"{case.name}: weights in bfloat16")
    exact = build_ours(case.config)
    rounded = copy.deepcopy(exact).to(torch.bfloat16)
    text, codes = example_batch(case.config, 1)
    logits, rounded_logits = (_image_logits(model, text, codes) for model in (exact, rounded))
    difference = (logits - rounded_logits).abs()
    title = f"{case.name}, bfloat16 weights"
    figures = {
        "image logits, mean difference": difference.mean(),
        "image logits, largest difference": difference.max(),
        "image logits, standard deviation": logits.std(),
    }
    rows = [Row(case=title, metric=metric, unit="1", ours=figure.item()) for metric, figure in figures.items()]
    for count in CANDIDATES:
        seconds = statistics.median(code_seconds(rounded, text, count, case.num_codes))
        metric = f"image codes, {_candidates(count)}"
        rows.append(Row(case=title, metric=metric, unit="1/s", ours=count / seconds))
    return rows


@torch.no_grad()
def _image_logits(model: DalleCollabForConditionalGeneration, text: Tensor, codes: Tensor) -> Tensor:
    config = model.config
    return model(text, codes).logits[:, config.text_sequence_length :, config.num_text_ids :].float()
