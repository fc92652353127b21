"""What a round of a run will take on a link."""

import math
from typing import TYPE_CHECKING

from hub_tools.counted import file_size
from pipelines.core.run.training_run import TrainingRun
from pipelines.core.swarm.upload_limit import BYTES_PER_MEGABIT

if TYPE_CHECKING:
    from pipelines.core.averaging.division import Link

BYTES_PER_VALUE = {"none": 4, "float16": 2, "blockwise_8bit": 1}
"""On the wire, by the run's `averaging_compression`."""


SPARSE_CHUNK, SPARSE_BITS_BESIDE_INDEX = 4096, 3.5
"""Of each value that a sparse round sends: a code of 2 bits, and what the index takes above log2 of the chunk over
those sent (`features/sparse/codec.py:SparseCodec`; right to 3 %)."""


def least_mbit(run: TrainingRun, num_parameters: int) -> float:
    """Return the uplink, in Mbit/s, below which a peer's vector does not arrive before an attempt at a round ends."""
    num_bytes = round_bytes(run, num_parameters)
    return num_bytes / BYTES_PER_MEGABIT / (run.averaging_timeout_seconds / 2)


def round_line(run: TrainingRun, num_parameters: int, link: "Link", source: str) -> str:
    """Return one line about how long a round takes; `source`: where the link's rates, in Mbit/s, come from.

    A peer sends its vector at least, if the others reduce, and twice as much at most, in a large group of equals. In a
    sparse round it gives what it contributes once, and takes what each other one does.
    """
    rates = f"{link.up:.3g} Mbit/s up, {link.down:.3g} down"
    num_bytes = round_bytes(run, num_parameters)
    if run.synchronisation == "sparse":
        up, down = (num_bytes / (rate * BYTES_PER_MEGABIT) for rate in (link.up, link.down))
        return f"{up:.2g} s to give {file_size(num_bytes)} and {down:.2g} s for each other peer's at {rates} ({source})"
    seconds = num_bytes / (min(link.up, link.down) * BYTES_PER_MEGABIT)
    return f"{seconds:.2g} to {2 * seconds:.2g} s for {file_size(num_bytes)} at {rates} ({source})"


def round_bytes(run: TrainingRun, num_parameters: int) -> float:
    """Return the bytes of a peer's vector in a round, on the wire."""
    if run.synchronisation == "sparse":
        return sparse_bytes(num_parameters, run.sparse_values_per_chunk)
    return num_parameters * BYTES_PER_VALUE[run.averaging_compression]


def sparse_bytes(num_parameters: int, values_per_chunk: int) -> float:
    """Return about how many bytes a contribution to a sparse round has."""
    bits = math.log2(SPARSE_CHUNK / values_per_chunk) + SPARSE_BITS_BESIDE_INDEX
    return num_parameters * values_per_chunk / SPARSE_CHUNK * bits / 8
