"""A decoding process that dies of some pictures: a program for `DecodingPool`.

`KILL` and `SEGFAULT` at the start of a picture do what they say, each time; `ONCE path` only if the path does not exist
yet; `BABBLE` answers nonsense; `STOP` never starts.
"""

import ctypes
import os
import signal
import sys
from multiprocessing.connection import Connection
from pathlib import Path

from pipelines.data_preparation.pictures.decoding_process import serve


class DyingConnection(Connection):
    """Reads pictures, and dies of some."""

    def recv_bytes(self, maxlength=None):
        request = super().recv_bytes(maxlength)
        content = request[1:]
        if content.startswith(b"KILL"):
            os.kill(os.getpid(), signal.SIGKILL)
        if content.startswith(b"SEGFAULT"):
            ctypes.string_at(0)
        if content.startswith(b"ONCE "):
            self._die_once(Path(content.split(b"\0")[0][5:].decode()))
            return request[:1] + content.partition(b"\0")[2]
        if content.startswith(b"BABBLE"):
            self.send_bytes(b'{"width": 3, "height": -1}\n?')
        return request

    def _die_once(self, path: Path) -> None:
        if not path.exists():
            path.touch()
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    serve(DyingConnection(int(sys.argv[1])))
