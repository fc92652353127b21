"""What peers must compute alike has the frozen bits, whatever the instructions and the number of threads."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from emulated_arm import arm_command
from freeze import FOLDER, read_frozen

PROGRAM = FOLDER / "frozen_arithmetic.py"
# Of glibc and numpy, which choose instructions themselves; what they do not know they ignore.
WITHOUT_FMA = dict(
    GLIBC_TUNABLES="glibc.cpu.hwcaps=-FMA,-FMA4,-AVX2,-AVX512F,-FMA_Usable,-AVX2_Usable",
    NPY_DISABLE_CPU_FEATURES="FMA3 AVX2 AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL AVX512_ICL AVX512_SPR",
)
VARIANTS = {
    "DEFAULT": dict(threads=1, MKL_CBWR="COMPATIBLE", ONEDNN_MAX_CPU_ISA="SSE41", **WITHOUT_FMA),
    "AVX2": dict(threads=2, MKL_CBWR="AVX2", ONEDNN_MAX_CPU_ISA="AVX2"),
    "AVX512": dict(threads=5, MKL_CBWR="AVX512", ONEDNN_MAX_CPU_ISA="AVX512_CORE"),
}
"""Settings by what torch calls the processor's capability; a processor has those up to its own."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "capability", ["DEFAULT", *(pytest.param(name, marks=pytest.mark.long) for name in ("AVX2", "AVX512"))]
)
def test_the_arithmetic_of_peers_has_the_frozen_bits_with_these_instructions(capability):
    own = torch.backends.cpu.get_cpu_capability()
    known = list(VARIANTS)[: list(VARIANTS).index(own) + 1] if own in VARIANTS else [own]
    if capability not in known:
        pytest.skip(f"this processor has {', '.join(known)}; without {capability} its instructions are unknown to it")
    settings = {"ATEN_CPU_CAPABILITY": capability.lower(), **VARIANTS[capability]}
    seen_capability, seen = run_program(str(settings.pop("threads")), settings)
    assert seen_capability == capability
    assert seen == read_frozen()["arithmetic"]


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_arithmetic_of_peers_has_the_frozen_bits_on_an_emulated_arm(request):
    try:
        command = arm_command(Path(request.config.cache.mkdir("emulated_arm")))
    except OSError as error:
        pytest.skip(f"no emulated ARM here: {error}")
    _, seen = run_program("2", {}, command)
    assert seen == read_frozen()["arithmetic"]


def run_program(
    threads: str, settings: dict[str, str], command: tuple[str, ...] = (sys.executable,)
) -> tuple[str, dict[str, dict[str, str]]]:
    """Return the processor's capability and all digests, as computed with this number of threads."""
    done = subprocess.run(
        [*command, "-W", "ignore", str(PROGRAM)],
        env={**os.environ, **settings, "OMP_NUM_THREADS": threads},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    seen_capability, _, digests = done.stdout.partition(" ")
    return seen_capability, json.loads(digests)
