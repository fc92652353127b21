"""A decoding process that dies of some pictures: a program for `DecodingPool`.

`KILL` and `SEGFAULT` in a picture do what they say, each time; `ONCE path ` only if the path does not exist yet;
`BABBLE` answers nonsense.
"""

import ctypes
import os
import re
import signal
import sys
from multiprocessing.connection import Connection
from pathlib import Path

from pipelines.tasks.text_to_image.data_preparation.pictures.decoding_process import serve


class DyingConnection(Connection):
    """Reads pictures, and dies of some."""

    def recv_bytes(self, maxlength=None):
        request = super().recv_bytes(maxlength)
        if b"KILL" in request:
            os.kill(os.getpid(), signal.SIGKILL)
        if b"SEGFAULT" in request:
            ctypes.string_at(0)
        if b"BABBLE" in request:
            self.send_bytes(b'[{"width": 3, "height": -1}]\n?')
        for path in re.findall(rb"ONCE (\S+)", request):
            self._die_once(Path(path.decode()))
        return request

    def _die_once(self, path: Path) -> None:
        if not path.exists():
            path.touch()
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    serve(DyingConnection(int(sys.argv[1])))
