"""Freezes what must not change by accident. After a change that is meant: python tests/golden/freeze.py

It replaces `digests.json`, which is to be read as a diff and committed together with the change. Numbers that this
processor has only rounded otherwise stay as they were.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
DIGESTS = FOLDER / "digests.json"
COMMAND = "python tests/golden/freeze.py"
SECONDS = 240
ROUNDING = 1e-4
"""Of numbers of order 1; AVX2, AVX-512 and neither of them differ by 1e-6."""


def measure() -> dict[str, Any]:
    """Work out everything that is frozen, in a process of its own with one thread."""
    with tempfile.TemporaryDirectory(prefix="golden-") as folder:
        output = Path(folder) / "measured.json"
        done = subprocess.run(
            [sys.executable, "-W", "ignore", str(FOLDER / "measure.py"), str(output)],
            env={**os.environ, "PYTHONPATH": str(FOLDER.parents[1])},
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"measure.py ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        return json.loads(output.read_text(encoding="utf-8"))


def read_frozen() -> dict[str, Any]:
    """Return what was frozen."""
    return json.loads(DIGESTS.read_text(encoding="utf-8"))


def is_equal(path: tuple[Any, ...], seen: Any, expected: Any) -> bool:
    """Return whether two leaves at this path are the same but for rounding."""
    if not (isinstance(seen, float) and isinstance(expected, float)):
        return seen == expected and type(seen) is type(expected)
    least = 1e-12 if "norm" in path else ROUNDING
    return abs(seen - expected) <= max(ROUNDING * abs(expected), least)


def without_rounding(seen: Any, frozen: Any, path: tuple[Any, ...] = ()) -> Any:
    """Return what was seen, with the frozen value wherever that is equal but for rounding."""
    if isinstance(seen, dict) and isinstance(frozen, dict):
        return {key: without_rounding(value, frozen.get(key), (*path, key)) for key, value in seen.items()}
    if isinstance(seen, list) and isinstance(frozen, list) and len(seen) == len(frozen):
        return [without_rounding(*pair, path) for pair in zip(seen, frozen, strict=True)]
    return frozen if is_equal(path, seen, frozen) else seen


if __name__ == "__main__":
    text = json.dumps(without_rounding(measure(), read_frozen()), indent=1, sort_keys=True, ensure_ascii=False)
    DIGESTS.write_text(text + "\n", encoding="utf-8")
    print(f"Wrote {DIGESTS}; look at: git diff {DIGESTS}")
