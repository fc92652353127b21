"""Makes the table of the memory estimate: the numbers of the models that the calculator knows by name.

Usage: python tests/golden/memory_table.py, from the repository's root, whenever a model's step changes; about ten
minutes. `tests/pipelines/features/memory_estimate/test_memory_table.py` counts one of them anew.
"""

import dataclasses
import itertools
import json

from pipelines.features.memory_estimate.architectures import activation_lines, figures
from pipelines.features.memory_estimate.model_presets import (
    DEFAULT_POSITIONS,
    MODEL_PRESETS,
    TABLE,
    ModelSizes,
    StepKind,
)
from pipelines.features.memory_estimate.settings import RECOMPUTE_CHOICES


def table_entry(sizes: ModelSizes) -> dict:
    """Return the numbers of a model: its figures, and the lines of every kind of step."""
    known = figures(sizes)
    sequence = known.num_positions or DEFAULT_POSITIONS
    devices = ("cuda", "cpu") if sizes.is_ours else ("cuda",)
    kinds = [
        StepKind(sequence_length=sequence, precision=precision, recompute=recompute, device=device)
        for precision, recompute, device in itertools.product(("fp32", "autocast", "pure"), RECOMPUTE_CHOICES, devices)
    ]
    lines = {kind.name: [[round(value) for value in line] for line in activation_lines(sizes, kind)] for kind in kinds}
    return {"figures": dataclasses.asdict(known), "lines": lines}


def main() -> None:
    """Count every model and write the table."""
    entries = {name: table_entry(sizes) for name, sizes in MODEL_PRESETS.items()}
    lines = [f"{json.dumps(name)}: {json.dumps(entry)}" for name, entry in entries.items()]
    TABLE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
