"""JSON that a stranger may have written: an error for whoever asks, whatever it says, and no number beyond floats."""

import contextlib
import gc
import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MOST_JSON_BYTES = 2**26
"""Of a file."""


@contextlib.contextmanager
def collection_paused() -> Iterator[None]:
    """Collect no garbage within: a text nested to the limit of the stack leaves none for the finalizers of others.

    One that fails in its middle leaves its owner in disorder; `multiprocessing` then gives out no memory any more.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def parse_json(text: str | bytes | bytearray) -> Any:
    """Return the value of a text; NaN is one.

    Raises:
        ValueError: it is not JSON, is nested too deeply, or has an infinite number or one that no float holds.
    """
    try:
        with collection_paused():
            return json.loads(text, parse_int=_whole, parse_float=_finite, parse_constant=_finite)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read_json(path: Path, most_bytes: int = MOST_JSON_BYTES) -> Any:
    """Return the value of a file; raises what `parse_json` does, also for one that is too large, and OSError."""
    if (size := path.stat().st_size) > most_bytes:
        raise ValueError(f"{path.name} has {size} bytes, expected at most {most_bytes}")
    return parse_json(path.read_text(encoding="utf-8"))


def _whole(text: str) -> int:
    number = int(text)
    if abs(number) > sys.float_info.max:
        raise ValueError(f"{text[:20]}... has {len(text)} digits")
    return number


def _finite(text: str) -> float:
    if math.isinf(number := float(text)):
        raise ValueError(f"{text[:20]} is not a finite number")
    return number
