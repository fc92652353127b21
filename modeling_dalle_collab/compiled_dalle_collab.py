"""Functions in compiled code, where there is a compiler that can."""

import logging
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch._dynamo.exc import TorchDynamoException

logger = logging.getLogger(__name__)

MOST_VARIANTS = 64
"""Of a function: three kinds of attention, with gradients and without, for one batch and for any. torch allows 8."""


class CompiledFunction:
    """A function in compiled code; as it is, and the log says so once, where the compiler fails."""

    def __init__(self, function: Callable[..., Any], **options: Any) -> None:
        self._function, self._compiled = function, torch.compile(function, **options)
        self.has_failed = False

    def __call__(self, *args: object, **kwargs: object) -> Any:
        """Compute what the function computes."""
        if not self.has_failed:
            torch._dynamo.config.recompile_limit = MOST_VARIANTS  # of this thread: backward passes have their own
            try:
                return self._compiled(*args, **kwargs)
            except TorchDynamoException as error:
                self.has_failed = True
                reason = " ".join(str(error).split())[:300]
                logger.warning("The compiler failed; %s goes on without: %s", self._function.__name__, reason)
        return self._function(*args, **kwargs)


@cache
def compiled(function: Callable[..., Any]) -> CompiledFunction:
    """Return a function in compiled code, which all models share."""
    return CompiledFunction(function)
