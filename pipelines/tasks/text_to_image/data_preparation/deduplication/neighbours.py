"""Which of many fingerprints come again: exactly by sorting, nearly by faiss. Pure, in bounded memory."""

import faiss
import numpy as np

LARGEST_DISTANCE = 3
"""Bits. Of four bands of 16 bits of the structure, two fingerprints that differ in three bits share one at least."""
NUM_BANDS, BAND_BITS = 4, 16
QUERIES_AT_ONCE = 8192


def first_of_equals(values: np.ndarray) -> np.ndarray:
    """For each value the index of the first one that is equal: (n,) of any sortable kind -> (n,) int64."""
    _, first, inverse = np.unique(values, return_index=True, return_inverse=True)
    return first[inverse.reshape(-1)]


def first_of_neighbours(fingerprints: np.ndarray, distance: int) -> np.ndarray:
    """For each fingerprint the one that is kept for it: itself, or an earlier kept one at most `distance` bits away.

    fingerprints: (n, 16) uint8 -> (n,) int64. What is not kept is near to the one that is: there are no chains.
    """
    # NumPy sorts texts of bytes faster than anything else of this width; of one length, zeros at the end do not matter.
    kept_for = first_of_equals(np.ascontiguousarray(fingerprints).view(f"S{fingerprints.shape[1]}").reshape(-1))
    different = np.flatnonzero(kept_for == np.arange(len(kept_for)))
    if distance == 0 or len(different) < 2:
        return kept_for
    leaders = _leaders(np.ascontiguousarray(fingerprints[different]), distance)
    representative = np.arange(len(fingerprints))
    representative[different] = different[leaders]
    return representative[kept_for]


def _leaders(fingerprints: np.ndarray, distance: int) -> np.ndarray:
    """For each of different fingerprints the earlier one that is kept for it, or itself."""
    index = faiss.IndexBinaryMultiHash(8 * fingerprints.shape[1], NUM_BANDS, BAND_BITS)
    index.add(fingerprints)
    leaders = np.arange(len(fingerprints))
    for begin in range(0, len(fingerprints), QUERIES_AT_ONCE):
        limits, distances, found = index.range_search(fingerprints[begin : begin + QUERIES_AT_ONCE], distance + 1)
        queries = begin + np.repeat(np.arange(len(limits) - 1), np.diff(limits).astype(np.int64))
        is_earlier = (found < queries) & (distances <= distance)
        order = np.lexsort((found[is_earlier], queries[is_earlier]))
        for query, earlier in zip(queries[is_earlier][order], found[is_earlier][order], strict=True):
            if leaders[query] == query and leaders[earlier] == earlier:
                leaders[query] = earlier
    return leaders
