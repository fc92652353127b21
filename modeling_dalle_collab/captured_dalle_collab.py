"""Steps of generation as CUDA graphs. Axes: sample, step (neighbouring places of a sample, read together)."""

from collections.abc import Callable

import torch
from torch import Tensor


class CapturedStep:
    """A step on a GPU, replayed as a CUDA graph for each number of places: launching its kernels takes the longest.

    Inputs are (sample, step) int64; what is returned is overwritten by the next step.
    """

    def __init__(self, step: Callable[[Tensor, Tensor], Tensor]) -> None:
        self._step = step
        self._captured: dict[int, tuple[torch.cuda.CUDAGraph, Tensor, Tensor, Tensor]] = {}

    def __call__(self, codes: Tensor, places: Tensor) -> Tensor:
        """Read codes of places; return what the step returns."""
        if codes.shape[1] not in self._captured:
            self._captured[codes.shape[1]] = self._capture(codes, places)
        graph, own_codes, own_places, out = self._captured[codes.shape[1]]
        own_codes.copy_(codes)
        own_places.copy_(places)
        graph.replay()
        return out

    def _capture(self, codes: Tensor, places: Tensor) -> tuple[torch.cuda.CUDAGraph, Tensor, Tensor, Tensor]:
        codes, places = codes.clone(), places.clone()
        stream = torch.cuda.Stream(codes.device)
        stream.wait_stream(torch.cuda.current_stream(codes.device))
        with torch.cuda.stream(stream):  # libraries prepare in a first run; reading the same places again is harmless
            self._step(codes, places)
        torch.cuda.current_stream(codes.device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # other threads may use the GPU meanwhile
            out = self._step(codes, places)
        return graph, codes, places, out
