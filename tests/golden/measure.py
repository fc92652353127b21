"""Works out everything that is frozen, in a process of its own: python tests/golden/measure.py OUTPUT.json."""

import json
import os
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
    import golden_protocol
    import golden_training
    from parts import guard_process_group, prepare_hub_client

    os.setpgid(0, 0)
    guard_process_group()  # what is forked from here on ends with this process, whatever happens
    prepare_hub_client()
    import golden_files

    return dict(
        environment=dict(
            processor=torch.backends.cpu.get_cpu_capability(), **{name: version(name) for name in PACKAGES}
        ),
        protocol=golden_protocol.protocol(),
        training=golden_training.trained_alone(),
        aggregation=golden_training.aggregates(),
        messages=golden_training.messages(),
        files=golden_files.published_files(hub, folder),
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
