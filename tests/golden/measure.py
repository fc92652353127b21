"""Works out everything that is frozen, in a process of its own: python tests/golden/measure.py OUTPUT.json."""

import json
import os
import platform
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from hub_tools.local_hub import LocalHub  # no Hub client comes with it: they read the environment when imported

PACKAGES = ("torch", "numpy", "bitsandbytes", "matplotlib", "tokenizers", "transformers")


def main(output: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="golden-") as folder, LocalHub(Path(folder) / "hub") as hub:
        hub.alice_token = hub.create_user("alice")
        hub.create_organization("org", members={"alice": "admin"})
        os.environ |= hub.environment(hub.alice_token)
        output.write_text(json.dumps(_measure(hub, Path(folder))), encoding="utf-8")


def _measure(hub: LocalHub, folder: Path) -> dict:
    import torch

    torch.set_num_threads(1)
    import frozen_arithmetic
    import frozen_protocol
    import frozen_training
    from parts import guard_process_group, prepare_hub_client

    os.setpgid(0, 0)
    guard_process_group()  # what is forked from here on ends with this process, whatever happens
    prepare_hub_client()
    import frozen_files

    return dict(
        environment=dict(
            processor=_processor(torch.backends.cpu.get_cpu_capability()),
            **{name: version(name) for name in PACKAGES},
        ),
        arithmetic=frozen_arithmetic.arithmetic(),
        protocol=frozen_protocol.protocol(),
        training=frozen_training.trained_alone(),
        aggregation=frozen_training.aggregates(),
        messages=frozen_training.messages(),
        files=frozen_files.published_files(hub, folder),
    )


def _processor(capability: str) -> str:
    """Return what a model's first weights depend on: AVX2 and AVX-512 multiply and add in one rounding."""
    return "AVX2 or more" if capability in ("AVX2", "AVX512") else f"{platform.machine()} {capability}"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
