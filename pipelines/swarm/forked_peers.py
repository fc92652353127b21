"""Several peers forked from one process."""

import multiprocessing

from hivemind.utils import mpfuture


def take_own_locks() -> None:
    """Replace hivemind's locks, which all forks would share: a peer killed while it holds one would stop the rest."""
    mpfuture.SharedBytes._lock = multiprocessing.Lock()
    mpfuture.MPFuture._initialization_lock = multiprocessing.Lock()
    mpfuture.MPFuture._update_lock = multiprocessing.Lock()
