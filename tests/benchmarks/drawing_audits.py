"""How soon liars among drawing servers are named, whether honest ones are accused, and what audits cost.

Usage: python tests/benchmarks/drawing_audits.py [--quick]

Liars draw at another temperature, with another seed, with 3 or 10 % noise in the weights, or replace a row; each is
audited until it is named. Honest servers of bfloat16 and int8 are audited 64 times each. 1 % noise is reported, not
judged: in bfloat16 it cannot be told from rounding. The cost is that of the audited share beside drawing 1,024 codes.
"""

import sys
import time
from collections.abc import Mapping
from typing import Any

import torch
from false_drawings import drawings_of_liars, honest, in_bfloat16, in_int8, with_noise
from learned_model import captions_and_codes, learned_model
from measurement import Row, write_results
from trained_model import MODEL, TEXT_LENGTH

from modeling_dalle_collab import DalleCollabConfig, DalleCollabForConditionalGeneration
from modeling_dalle_collab.sampling_dalle_collab import SamplingOptions
from pipelines.serving.draw.asking_run import NUM_FOR_HONESTY
from pipelines.serving.draw.audits import POOL, SHARE_AUDITED, AuditBook, Honesty
from pipelines.serving.draw.evidence import excesses, honest_excesses
from pipelines.serving.draw.requests import Wish

NUM_SEEDS, NUM_HONEST, SERVERS_TOGETHER = 20, 200, 5
SAMPLING = ({}, dict(top_k=16), dict(temperature=0.7), dict(temperature=0.9, top_k=16))
ROUNDED = {"float32": lambda model: model, "bfloat16": in_bfloat16, "int8": in_int8}


def a_wish(seed: int, **options: object) -> Wish:
    text, _ = captions_and_codes(1, torch.Generator().manual_seed(1000 + seed))
    return Wish(revision="", precision="", tokenizer="", input_ids=text, seed=seed, options=SamplingOptions(**options))


def named_after(book: AuditBook, server: str, precision: str, measured: list[float]) -> int | None:
    """Return the audited candidate at which a server is named, or None."""
    for number, excess in enumerate(measured, start=1):
        if book.note(server, precision, [excess]):
            return number
    return None


def book_for(
    model: DalleCollabForConditionalGeneration, precision: str, rounded: DalleCollabForConditionalGeneration, **how: Any
) -> AuditBook:
    """Return the book of a client that has measured what honest servers of a precision reach, with its own options."""
    learned = a_wish(500, **how)
    numbers = learned.numbers(range(NUM_FOR_HONESTY), model.config)
    codes = honest(model, learned, NUM_FOR_HONESTY)
    measured = honest_excesses(model, rounded, learned, numbers, codes).tolist()
    return AuditBook({} if precision == "float32" else {precision: Honesty.of(measured)})


def liars_named(model: DalleCollabForConditionalGeneration, rounded: Mapping[str, Any], num_seeds: int) -> list[Row]:
    """Return in how many seeds each kind of liar is named, and after how many audited candidates at most."""
    books = {precision: book_for(model, precision, other) for precision, other in rounded.items()}
    named: dict[str, list[int | None]] = {}
    for seed in range(num_seeds):
        wish = a_wish(seed)
        drawn = drawings_of_liars(model, wish, POOL, seed)
        for share in (0.01, 0.03):
            drawn[f"{100 * share:.0f} % noise"] = honest(with_noise(model, share, seed), wish, POOL)
        for name, candidates in drawn.items():
            measured = excesses(model, wish, wish.numbers(range(POOL), model.config), candidates).tolist()
            for precision, book in books.items():
                case = f"{name}, claimed {precision}"
                named.setdefault(case, []).append(named_after(book, f"{name} {seed}", precision, measured))
    rows = []
    for case, when in sorted(named.items()):
        found = [number for number in when if number is not None]
        rows.append(Row(case=case, metric=f"named, of {num_seeds} seeds", unit="", ours=len(found)))
        if found:
            rows.append(Row(case=case, metric="audited until named, most", unit="candidates", ours=max(found)))
    return rows


def honest_accused(model: DalleCollabForConditionalGeneration, rounded: Mapping[str, Any], number: int) -> list[Row]:
    """Return how many honest servers of each precision are accused, at four ways of sampling and many prompts."""
    rows = []
    for precision, other in rounded.items():
        accused = 0
        for kind, how in enumerate(SAMPLING):
            book = book_for(model, precision, other, **how)
            servers = range(kind, number, len(SAMPLING))
            for start in range(0, len(servers), SERVERS_TOGETHER):
                some = servers[start : start + SERVERS_TOGETHER]
                wish = a_wish(2000 + some[0], **how)
                drawn = honest(other, wish, POOL * len(some))
                numbers = wish.numbers(range(len(drawn)), model.config)
                measured = excesses(model, wish, numbers, drawn, batch_size=64).split(POOL)
                for server, own in zip(some, measured, strict=True):
                    accused += named_after(book, f"honest {server}", precision, own.tolist()) is not None
        rows.append(Row(case=f"honest {precision}", metric=f"accused, of {number} servers", unit="", ours=accused))
    return rows


def cost(quick: bool) -> list[Row]:
    """Return what auditing the usual share costs beside drawing pictures of 1,024 codes, untrained."""
    torch.manual_seed(0)
    model = DalleCollabForConditionalGeneration(DalleCollabConfig(codebook_size=1024, **MODEL)).eval()
    number = 4 if quick else 16
    wish = Wish(revision="", precision="", tokenizer="", input_ids=torch.ones(1, TEXT_LENGTH, dtype=torch.int64))
    started = time.perf_counter()
    codes = honest(model, wish, number)
    drawing = time.perf_counter() - started
    numbers = wish.numbers(range(number), model.config)
    excesses(model, wish, numbers, codes)
    started = time.perf_counter()
    excesses(model, wish, numbers, codes)
    auditing = time.perf_counter() - started
    return [
        Row(case="1,024 codes", metric="an audit beside drawing the same", unit="", ours=auditing / drawing),
        Row(case="1,024 codes", metric="audits of the usual share", unit="", ours=SHARE_AUDITED * auditing / drawing),
    ]


def main() -> None:
    quick = "--quick" in sys.argv
    torch.set_num_threads(1)
    model = learned_model()
    rounded = {precision: make(model) for precision, make in ROUNDED.items()}
    rows = [
        *cost(quick),
        *liars_named(model, rounded, 2 if quick else NUM_SEEDS),
        *honest_accused(model, rounded, 4 if quick else NUM_HONEST),
    ]
    write_results("drawing_audits", rows, is_quick=quick)


if __name__ == "__main__":
    main()
