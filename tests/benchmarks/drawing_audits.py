"""How soon liars among drawing servers are named, whether honest ones are accused, and what audits cost.

Usage: python tests/benchmarks/drawing_audits.py [--quick]

Liars draw at another temperature, with another seed, with 3 or 10 % noise in the weights, or replace a row; each is
audited until it is named. Honest servers of bfloat16 and int8 are audited 64 times each. 1 % noise is reported, not
judged: in bfloat16 it cannot be told from rounding. The cost is that of the audited share beside drawing 1,024 codes.
"""

import sys
import time

import torch
from false_drawings import drawings_of_liars, honest, in_bfloat16, in_int8, with_noise
from learned_model import captions_and_codes, learned_model
from measurement import Row, write_results
from trained_model import MODEL, TEXT_LENGTH

from modeling_dalle_collab import DalleCollabConfig, DalleCollabForConditionalGeneration
from modeling_dalle_collab.sampling_dalle_collab import SamplingOptions
from pipelines.serving.draw.audits import POOL, SHARE_AUDITED, AuditBook, Honesty
from pipelines.serving.draw.evidence import excesses, honest_excesses
from pipelines.serving.draw.requests import Wish

NUM_SEEDS, NUM_HONEST, NUM_FOR_HONESTY = 20, 200, 8
ROUNDED = {"float32": lambda model: model, "bfloat16": in_bfloat16, "int8": in_int8}


def a_wish(seed: int, **options: object) -> Wish:
    text, _ = captions_and_codes(1, torch.Generator().manual_seed(1000 + seed))
    return Wish(revision="", precision="", tokenizer="", input_ids=text, seed=seed, options=SamplingOptions(**options))


def named_after(book: AuditBook, server: str, precision: str, measured: list[float]) -> int | None:
    """Return the audited candidate at which a server is named, or None."""
    for number, excess in enumerate(measured, start=1):
        if book.note(server, precision, [excess], now=0.0):
            return number
    return None


def judged(model: DalleCollabForConditionalGeneration, quick: bool) -> list[Row]:
    """Return rows about liars and honest servers of each precision."""
    num_seeds, num_honest = (2, 4) if quick else (NUM_SEEDS, NUM_HONEST)
    rows = []
    for precision, make in ROUNDED.items():
        rounded, learned = make(model), a_wish(500)
        numbers, codes = learned.numbers(range(NUM_FOR_HONESTY), model.config), honest(model, learned, NUM_FOR_HONESTY)
        book = AuditBook({precision: Honesty.of(honest_excesses(model, rounded, learned, numbers, codes).tolist())})
        named: dict[str, list[int | None]] = {}
        for seed in range(num_seeds):
            wish = a_wish(seed)
            drawn = drawings_of_liars(model, wish, POOL, seed)
            for share in (0.01, 0.03):
                drawn[f"{100 * share:.0f} % noise"] = honest(with_noise(model, share, seed), wish, POOL)
            for name, candidates in drawn.items():
                measured = excesses(model, wish, wish.numbers(range(POOL), model.config), candidates).tolist()
                named.setdefault(name, []).append(named_after(book, f"{name} {seed}", precision, measured))
        for name, when in named.items():
            case = f"{name}, claimed {precision}"
            found = [number for number in when if number is not None]
            rows.append(Row(case=case, metric=f"named, of {num_seeds} seeds", unit="", ours=len(found)))
            if found:
                rows.append(Row(case=case, metric="audited until named, most", unit="candidates", ours=max(found)))
        accused = 0
        for server in range(num_honest):
            wish = a_wish(2000 + server, temperature=(1.0, 0.7, 0.9)[server % 3], top_k=(256, 16)[server % 2])
            numbers = wish.numbers(range(POOL), model.config)
            measured = excesses(model, wish, numbers, honest(rounded, wish, POOL)).tolist()
            accused += named_after(book, f"honest {server}", precision, measured) is not None
        rows.append(Row(case=f"honest {precision}", metric=f"accused, of {num_honest} servers", unit="", ours=accused))
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
    rows = [*cost(quick), *judged(learned_model(), quick)]
    write_results("drawing_audits", rows, is_quick=quick)


if __name__ == "__main__":
    main()
