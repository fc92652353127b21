"""Which part of a preparation a job makes."""

import re
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, kw_only=True)
class Part:
    """One of several parts."""

    index: int
    """From 1."""
    num_parts: int
    """All of them."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """The part that `3/8` means; ValueError for anything else."""
        found = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text, re.ASCII)
        if found is None or not 1 <= int(found[1]) <= int(found[2]):
            raise ValueError(f"--part is {text!r}; expected I/N with I from 1 to N, such as 3/8.")
        return cls(index=int(found[1]), num_parts=int(found[2]))

    def __str__(self) -> str:
        return f"{self.index}/{self.num_parts}"
