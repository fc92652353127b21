"""One reader of a published dataset of image codes, in a process of its own: what comes out, and when.

Usage: python stream_readers.py KIND REQUEST, which `data_streams.py` does. The parent is told, and answers, before it
begins and when the first batch is there, so that it can count bytes.
"""

import contextlib
import importlib
import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

BATCH_SIZE = 64
SHUFFLE_BUFFER = 1024
RECORDS_PER_EPOCH = 1024
"""Of the ledger: after so many its anchor hears what was trained on."""

SECONDS_PER_EPOCH = 20.0
"""In virtual time."""

Batches = Iterator[tuple[list[str], torch.Tensor]]
"""Captions, and their codes (batch, num_codes) int64."""

Saved = Callable[[], Any]
"""Returns the state to resume from, as JSON holds it."""


def ours_in_an_own_order(repository: str, num_codes: int, state: Any) -> tuple[Batches, Saved]:
    """The plain stream of a peer that nobody gives a lease. There is no state: it starts again."""
    from pipelines.training.run.span_source import WholeDataset

    blocks, order = _blocks(repository)
    return _image_codes(blocks, WholeDataset(order), num_codes), lambda: None


def ours_with_the_ledger(repository: str, num_codes: int, state: Any) -> tuple[Batches, Saved]:
    """The stream of a peer with a lease, whose anchor books what it has trained on every few batches."""
    from pipelines.training.ledger.batch_gradients import BatchGradient
    from pipelines.training.ledger.lease_book import LeaseBook
    from pipelines.training.ledger.ledger import Ledger, LedgerOptions

    blocks, order = _blocks(repository)
    options = LedgerOptions(epoch_records=RECORDS_PER_EPOCH)
    ledger = Ledger(order, options) if state is None else Ledger.from_json(order, options, state, 0.0)
    book = LeaseBook(order, time.monotonic, float("inf"))

    def batches() -> Batches:
        first = 1 + ledger.booked_epoch("peer")
        for epoch in itertools.count(first):
            if 0 in ledger.finished_passes:
                return
            now = SECONDS_PER_EPOCH * epoch
            ledger.meet({"peer": "user"}, now)
            ledger.grant(now)
            book.renew(ledger.lease_of("peer"), ledger.booked_epoch("peer"))
            for batch, named in itertools.islice(stream, RECORDS_PER_EPOCH // BATCH_SIZE):
                book.gather(BatchGradient(model_epoch=epoch, spans=tuple(named)))
                yield batch
            book.begin_round()
            book.average(epoch)
            ledger.book("peer", epoch, book.report().get(epoch, []), now + SECONDS_PER_EPOCH)

    stream = _named_image_codes(blocks, book, num_codes)
    return batches(), ledger.to_json


def _blocks(repository: str) -> tuple[Any, Any]:
    from pipelines.training.run.block_order import BlockOrder
    from pipelines.training.tasks.text_to_image.image_code_stream import training_blocks

    blocks = training_blocks(repository, "main")
    return blocks, BlockOrder(lambda: len(blocks.shards), blocks.sizes, 0)


def _named_image_codes(blocks: Any, spans: Any, num_codes: int) -> Iterator[tuple[tuple[list[str], Any], Any]]:
    from pipelines.training.tasks.text_to_image.image_code_stream import stream_batches

    def keep(text: list[str]) -> dict[str, list[str]]:
        captions[:] = text
        return {"input_ids": torch.zeros(len(text), 1)}  # ty: ignore

    captions: list[str] = []
    for batch in stream_batches(blocks, spans, keep, num_codes=num_codes, batch_size=BATCH_SIZE, seed=0):
        yield (list(captions), batch["image_codes"]), batch.spans


def _image_codes(blocks: Any, spans: Any, num_codes: int) -> Batches:
    return (batch for batch, _ in _named_image_codes(blocks, spans, num_codes))


def datasets_in_order(repository: str, num_codes: int, state: Any) -> tuple[Batches, Saved]:
    """`datasets`, unshuffled, in the fastest of its formats."""
    return _of_datasets(repository, num_codes, state, is_shuffled=False)


def datasets_shuffled(repository: str, num_codes: int, state: Any) -> tuple[Batches, Saved]:
    """`datasets` with a shuffle buffer."""
    return _of_datasets(repository, num_codes, state, is_shuffled=True)


def _of_datasets(repository: str, num_codes: int, state: Any, *, is_shuffled: bool) -> tuple[Batches, Saved]:
    import datasets

    from pipelines.image_codes.image_code_record import captions_and_codes
    from pipelines.training.tasks.streaming import prepare_streaming

    prepare_streaming()
    stream = datasets.load_dataset(repository, split="train", streaming=True)
    stream = stream.shuffle(seed=0, buffer_size=SHUFFLE_BUFFER) if is_shuffled else stream.with_format("arrow")
    if state is not None:
        stream.load_state_dict(state)

    def batches() -> Batches:
        for rows in stream.iter(BATCH_SIZE):
            captions, codes = captions_and_codes(rows, num_codes=num_codes)
            yield captions, torch.from_numpy(codes).long()

    return batches(), stream.state_dict


def litdata_in_order(repository: str, num_codes: int, state: Any) -> tuple[Batches, Saved]:
    """`litdata` on the same Parquet files of the Hub."""
    return _of_litdata(repository, state, is_shuffled=False)


def litdata_shuffled(repository: str, num_codes: int, state: Any) -> tuple[Batches, Saved]:
    """The same, shuffled."""
    return _of_litdata(repository, state, is_shuffled=True)


def _of_litdata(repository: str, state: Any, *, is_shuffled: bool) -> tuple[Batches, Saved]:
    import litdata
    from litdata.streaming.item_loader import ParquetLoader

    place = f"hf://datasets/{repository}/data"
    loader = ParquetLoader(columns=["caption", "codes"])
    # A state names the folder of its chunks, which every process makes anew.
    stream = litdata.StreamingDataset(
        place, item_loader=loader, shuffle=is_shuffled, seed=0, force_override_state_dict=True
    )

    def joined(rows: list[Any]) -> tuple[list[str], torch.Tensor]:
        captions, codes = zip(*((row["caption"], row["codes"]) for row in rows), strict=True)
        return list(captions), torch.from_numpy(np.asarray(codes)).long()

    batches = litdata.StreamingDataLoader(stream, batch_size=BATCH_SIZE, collate_fn=joined)
    if state is not None:
        batches.load_state_dict(state)
    return iter(batches), batches.state_dict


KINDS: dict[str, Callable[[str, int, Any], tuple[Batches, Saved]]] = {
    "ours, own order": ours_in_an_own_order,
    "ours, ledger": ours_with_the_ledger,
    "datasets, in order": datasets_in_order,
    "datasets, shuffled": datasets_shuffled,
    "litdata, in order": litdata_in_order,
    "litdata, shuffled": litdata_shuffled,
}


IMPORTS = dict(
    ours=("pipelines.training.tasks.text_to_image.image_code_stream", "pipelines.training.ledger.lease_book"),
    datasets=("datasets", "pipelines.training.tasks.streaming"),
    litdata=("litdata", "litdata.streaming.item_loader"),
)
"""By a kind's first word, what is imported before its time begins."""


def main() -> None:
    """Read so many records; print when there was the first one, and at the end what they were and what they cost."""
    from hub_tools.endpoint import prepare_hub_client

    torch.set_num_threads(1)
    kind, request = sys.argv[1], json.loads(sys.argv[2])
    prepare_hub_client()
    for module in IMPORTS[kind.partition(",")[0]]:
        importlib.import_module(module)
    requests = _counted_requests()
    _tell("ready")
    started, cpu_started, held_before = time.perf_counter(), time.process_time(), _bytes_held("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the most memory held counts from here
    batches, saved = KINDS[kind](request["repository"], request["num_codes"], request["state"])
    with _ahead(kind, batches) if request["seconds_computing"] else contextlib.nullcontext(batches) as batches:
        figures = _consume(batches, request["num_records"], request["seconds_computing"], started, requests)
    figures |= dict(
        cpu_seconds=time.process_time() - cpu_started,
        bytes_held=_bytes_held("VmHWM") - held_before,
        num_requests=len(requests),
        state=saved(),
    )
    print(json.dumps(figures, default=_plain), flush=True)


def _ahead(kind: str, batches: Batches) -> contextlib.AbstractContextManager[Batches]:
    """Read ahead as a peer does; the others as they are."""
    if not kind.startswith("ours"):
        return contextlib.nullcontext(batches)
    from pipelines.training.peer.prefetching import prefetched

    return prefetched(lambda: batches, BATCH_SIZE)


def _consume(
    batches: Batches, num_records: int, seconds_computing: float, started: float, requests: list[str]
) -> dict[str, Any]:
    numbers: list[int] = []
    figures: dict[str, Any] = {}
    waited = 0.0
    while len(numbers) < num_records:
        asked = time.perf_counter()
        batch = next(batches, None)
        if batch is None:
            break
        numbers += [int(caption.split()[2]) for caption in batch[0]]
        if not figures:
            figures = dict(seconds_first=time.perf_counter() - started, requests_first=len(requests))
            _tell("first")
        else:
            waited += time.perf_counter() - asked
        time.sleep(seconds_computing)
    return figures | dict(seconds=time.perf_counter() - started, seconds_waited=waited, numbers=numbers)


def _bytes_held(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def _counted_requests() -> list[str]:
    """Return a list that grows with each HTTP request of this process: all readers have the same client."""
    import httpx2

    requests: list[str] = []
    plain = httpx2.HTTPTransport.handle_request

    def counted(transport: Any, request: Any) -> Any:
        requests.append(str(request.url))
        return plain(transport, request)

    httpx2.HTTPTransport.handle_request = counted
    return requests


def _tell(word: str) -> None:
    print(word, flush=True)
    sys.stdin.readline()


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else str(value)


if __name__ == "__main__":
    main()
