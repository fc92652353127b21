"""A Python with torch and numpy on an emulated ARM processor, from Debian's packages and PyPI; needs no root."""

import contextlib
import platform
import shutil
import subprocess
import sys
from pathlib import Path

EMULATOR = "usr/bin/qemu-aarch64-static"
DEBIAN_PACKAGES = (
    *("python3.11-minimal", "libpython3.11-minimal", "libpython3.11-stdlib", "libc6", "libexpat1", "zlib1g", "libssl3"),
    *("libffi8", "libbz2-1.0", "liblzma5", "libsqlite3-0", "libreadline8", "libtinfo6", "libncursesw6", "libuuid1"),
    *("libgcc-s1", "libstdc++6", "libdb5.3", "libcrypt1", "libgomp1"),
)
"""Of the release whose Python is 3.11."""

PYTHON_PACKAGES = (
    # The last torch for aarch64 on PyPI that does not ask for CUDA.
    *("torch==2.9.1", "numpy==2.3.5", "typing_extensions", "sympy", "mpmath", "filelock", "jinja2", "markupsafe"),
    *("networkx", "fsspec", "setuptools"),
)
PLATFORMS = ("manylinux_2_28_aarch64", "manylinux_2_17_aarch64", "manylinux2014_aarch64")
SECONDS = 1200


def arm_command(folder: Path) -> tuple[str, ...]:
    """Return what runs a Python program on ARM; made in the folder (0.9 GB, minutes) unless it is there.

    Raises:
        OSError: it cannot be had here; one line says why.
    """
    done = folder / "done"
    if not done.exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        try:
            _make(folder)
        except FileNotFoundError as error:
            raise OSError(f"there is no {error.filename}, which brings Debian's packages") from error
        except subprocess.SubprocessError as error:
            said = (getattr(error, "stderr", "") or str(error)).strip().splitlines()
            raise OSError(said[-1] if said else str(error)) from error
        done.touch()
    emulator = ("-L", str(folder), "-E", f"PYTHONHOME={folder}/usr", "-E", f"PYTHONPATH={folder}/site")
    return (str(folder / EMULATOR), *emulator, str(folder / "usr/bin/python3.11"))


def _make(folder: Path) -> None:
    packages = folder / "packages"
    for name in ("state/lists/partial", "cache/archives/partial", "site", "packages"):
        (folder / name).mkdir(parents=True)
    (folder / "state/status").touch()
    host = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    own = dict(Dir__State=folder / "state", Dir__Cache=folder / "cache", Dir__State__status=folder / "state/status")
    options = [f"-o{name.replace('__', '::')}={value}" for name, value in own.items()]
    options += [f"-oAPT::Architectures::={kind}" for kind in (host, "arm64")] + ["-oAPT::Sandbox::User="]
    _run(["apt-get", *options, "update"], folder)
    wanted = ["qemu-user-static", *(f"{name}:arm64" for name in DEBIAN_PACKAGES)]
    _run(["apt-get", *options, "download", *wanted], packages)
    for package in sorted(packages.glob("*.deb")):
        _run(["dpkg", "-x", str(package), str(folder)], folder)
    kinds = [f"--platform={kind}" for kind in PLATFORMS]
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder / "site"), *kinds]
    _run([*pip, "--only-binary=:all:", "--python-version=3.11", "--no-deps", *PYTHON_PACKAGES], folder)
    for spent in ("packages", "cache", "state"):
        with contextlib.suppress(OSError):
            shutil.rmtree(folder / spent)


def _run(command: list[str], folder: Path) -> None:
    subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True, timeout=SECONDS)
