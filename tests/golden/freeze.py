"""Freezes what must not change by accident. After a change that is meant: python tests/golden/freeze.py

It replaces `digests.json`, which is to be read as a diff and committed together with the change.
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


if __name__ == "__main__":
    text = json.dumps(measure(), indent=1, sort_keys=True, ensure_ascii=False)
    DIGESTS.write_text(text + "\n", encoding="utf-8")
    print(f"Wrote {DIGESTS}; look at: git diff {DIGESTS}")
