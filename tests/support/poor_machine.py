"""Runs `dalle-collab` on a machine that lacks something: `python poor_machine.py '{"open_files": 300}' doctor ORG/RUN`.

`open_files` is a limit of open files; `small_file_systems` maps folders to the bytes of an own file system in memory,
which only this process sees. Leaves with 77 where the kernel does not allow that to this user.
"""

import ctypes
import json
import os
import resource
import sys
from pathlib import Path

NOT_ALLOWED = 77
NEW_MOUNTS, NEW_USER = 0x00020000, 0x10000000
PRIVATE, RECURSIVE = 1 << 18, 1 << 14


def limit_open_files(number: int) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (number, number))


def mount_small_file_systems(sizes: dict[str, int]) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    flags = NEW_MOUNTS if os.geteuid() == 0 else NEW_MOUNTS | NEW_USER
    if libc.unshare(flags) != 0 or libc.mount(b"none", b"/", None, RECURSIVE | PRIVATE, None) != 0:
        sys.exit(NOT_ALLOWED)
    for folder, size in sizes.items():
        Path(folder).mkdir(parents=True, exist_ok=True)
        if libc.mount(b"tmpfs", folder.encode(), b"tmpfs", 0, f"size={size}".encode()) != 0:
            sys.exit(NOT_ALLOWED)


if __name__ == "__main__":
    poverty = json.loads(sys.argv[1])
    os.environ["DALLE_COLLAB_WORKER"] = "1"
    if "open_files" in poverty:
        limit_open_files(poverty["open_files"])
    if "small_file_systems" in poverty:
        mount_small_file_systems(poverty["small_file_systems"])
    sys.argv = ["dalle-collab", *sys.argv[2:]]

    from pipelines.command_line.main import main

    main()
