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
    import frozen_protocol
    import frozen_training
    from parts import guard_process_group, prepare_hub_client

    os.setpgid(0, 0)
    guard_process_group()  # what is forked from here on ends with this process, whatever happens
    prepare_hub_client()
    import frozen_files

    return dict(
        environment=dict(
            processor=f"{torch.backends.cpu.get_cpu_capability()} {_vendor()}",
            **{name: version(name) for name in PACKAGES},
        ),
        protocol=frozen_protocol.protocol(),
        training=frozen_training.trained_alone(),
        aggregation=frozen_training.aggregates(),
        messages=frozen_training.messages(),
        files=frozen_files.published_files(hub, folder),
    )


def _vendor() -> str:
    """Return who made the processor: libraries take other ways on those of other makers."""
    fields = (line.partition(":") for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines())
    return next((value.strip() for name, _, value in fields if name.strip() == "vendor_id"), "unknown")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
