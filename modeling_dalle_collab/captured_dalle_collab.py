"""Steps of generation as CUDA graphs. Axes: sample, step (neighbouring places of a sample, read together)."""

import threading
from collections.abc import Callable

import torch
from torch import Tensor

_one_at_a_time = threading.Lock()  # torch allows one capture in a process


class CapturedStep:
    """A step on a GPU, replayed as a CUDA graph for each number of places: launching its kernels takes the longest.

    Inputs are (sample, step) int64; what is returned is overwritten by the next step.
    """

    def __init__(self, step: Callable[[Tensor, Tensor], Tensor], device: torch.device) -> None:
        self._step, self._device = step, device
        self._captured: dict[int, tuple[torch.cuda.CUDAGraph, Tensor, Tensor, Tensor]] = {}
        # Steps follow each other, and each result is used before the next: graphs can share their memory.
        self._memory = torch.cuda.graph_pool_handle()

    def __call__(self, codes: Tensor, places: Tensor) -> Tensor:
        """Read codes of places; return what the step returns."""
        with torch.cuda.device(self._device):
            if codes.shape[1] not in self._captured:
                with _one_at_a_time:
                    self._captured[codes.shape[1]] = self._capture(codes, places)
            graph, own_codes, own_places, out = self._captured[codes.shape[1]]
            own_codes.copy_(codes)
            own_places.copy_(places)
            graph.replay()
        return out

    def _capture(self, codes: Tensor, places: Tensor) -> tuple[torch.cuda.CUDAGraph, Tensor, Tensor, Tensor]:
        codes, places = codes.clone(), places.clone()
        # Of this device: the one that torch takes by itself is of whichever was current at the first capture.
        stream = torch.cuda.Stream(self._device)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # libraries prepare in a first run; reading the same places again is harmless
            self._step(codes, places)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        # Other threads may use the GPU meanwhile.
        with torch.cuda.graph(graph, pool=self._memory, stream=stream, capture_error_mode="thread_local"):
            out = self._step(codes, places)
        return graph, codes, places, out
