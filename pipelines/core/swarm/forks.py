"""Forks: the locks of peers that are forks of one process, and what a peer's own forks leave behind in months.

Python looks through all that a process holds only when a quarter has been added to it, and a process that has imported
torch holds 600,000 objects, as do its forks. Until then, garbage that refers to itself keeps pipes, sockets and shared
memory open: one more in ten epochs. And then a fork gets a copy of its own of the memory that it has shared with its
parent: 140 MB.
"""

import asyncio
import ctypes
import gc
import mmap
import multiprocessing
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import hivemind
import torch
from hivemind.dht.node import DHTNode
from hivemind.p2p import P2P
from hivemind.utils import mpfuture

ZEROS_IN_FORKS, VALUES_IN_FORKS = 18, 19
"""Linux's MADV_WIPEONFORK and MADV_KEEPONFORK."""


@contextmanager
def left_out_of_forks(tensors: Iterable[torch.Tensor]) -> Iterator[None]:
    """Let processes that fork in this block find zeros in place of these tensors, which they must not need.

    Else a fork keeps the values that its parent has replaced: 2.4 GB in a peer with the paper's model. Shared memory
    stays shared.
    """
    storages = [tensor.untyped_storage() for tensor in tensors if tensor.device.type == "cpu"]
    spans = dict(_whole_pages(storage.data_ptr(), storage.nbytes()) for storage in storages)
    try:
        _advise(spans, ZEROS_IN_FORKS)
        yield
    finally:
        _advise(spans, VALUES_IN_FORKS)


def _whole_pages(start: int, num_bytes: int) -> tuple[int, int]:
    """Return address and size of the pages on which nothing else lies."""
    first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
    return first, (start + num_bytes) // mmap.PAGESIZE * mmap.PAGESIZE - first


def _advise(spans: dict[int, int], advice: int) -> None:
    if sys.platform != "linux":
        return
    advise = ctypes.CDLL(None).madvise
    for start, size in spans.items():
        if size > 0:  # the kernel refuses it for shared memory, which is meant to be shared
            advise(ctypes.c_void_p(start), ctypes.c_size_t(size), advice)


def take_own_locks() -> None:
    """Replace hivemind's locks, which all forks would share: a peer killed while it holds one would stop the rest."""
    mpfuture.SharedBytes._lock = multiprocessing.Lock()
    mpfuture.MPFuture._initialization_lock = multiprocessing.Lock()
    mpfuture.MPFuture._update_lock = multiprocessing.Lock()


def set_aside_what_exists() -> None:
    """Take what exists so far out of garbage collection; call it before this process forks, and again in the fork."""
    gc.freeze()
    gc.collect()  # of nothing: Python remembers how much it has gone through, and waits for a quarter of that


async def tidy_node(dht: hivemind.DHT, node: DHTNode) -> None:
    """Do both in the DHT's process; a coroutine for `hivemind.DHT.run_coroutine`."""
    set_aside_what_exists()
    forget_ended_calls(node.p2p)


def forget_ended_calls(p2p: P2P) -> None:
    """Keep only calls that are being answered, of those that come from now on.

    hivemind 1.1.12 keeps each one for ever that its caller cancels, or that nobody answers: at every time-out, or as
    fast as somebody hostile can call.
    """
    control = p2p._client.control
    if not isinstance(control._handler_tasks, CallsInProgress):
        control._handler_tasks = CallsInProgress(control._handler_tasks)


class CallsInProgress(dict[object, asyncio.Task[None]]):
    """Tasks that answer calls, by the call's id; those that have ended are not in it."""

    def __setitem__(self, call: object, task: asyncio.Task[None]) -> None:
        """Add a task until it ends, in whatever way."""
        super().__setitem__(call, task)
        task.add_done_callback(lambda _task: self.pop(call, None))
