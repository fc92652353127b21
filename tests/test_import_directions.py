"""Imports point one way, and libraries with a price are imported in one place, as CONTRIBUTING.md has it."""

import ast
import sys
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
OURS = ("modeling_dalle_collab", "pipelines", "hub_tools", "spaces")
LIBRARIES = ("modeling_dalle_collab", "hub_tools")
RINGS = {"core": 0, "features": 1, "tasks": 1, "tools": 2, "joining": 2}
"""The rings below `pipelines`; what is named here nowhere, such as `command_line`, puts the others together."""

ROOMS = {
    "core.averaging.group": "",
    "core.block_quantisation": "",
    "core.equal_arithmetic": "",
    "core.swarm_time": "",
    "core.named_features": "",
    "core.admission": "core.named_features core.signing hub_tools",
    "core.signing": "hub_tools",
    "core.run": "core.admission hub_tools",
    "core.swarm": "core.admission core.signing core.swarm_time hub_tools",
    "core.averaging": "core.admission core.equal_arithmetic core.swarm hub_tools",
    "core.averaging.reduce": "core.equal_arithmetic core.run",
    "core.gradients": "core.run",
    "core.optimizers": "core.block_quantisation core.equal_arithmetic core.named_features core.run",
    "core.averaging.wire": "core.averaging.reduce core.block_quantisation core.equal_arithmetic core.run core.signing",
    "core.state": "core.admission core.equal_arithmetic core.optimizers core.signing core.swarm hub_tools",
    "core.epoch": (
        "core.admission core.averaging core.gradients core.named_features core.optimizers core.run core.state "
        "core.swarm hub_tools"
    ),
    "core.peer": ("core.admission core.averaging core.epoch core.gradients core.run core.state core.swarm"),
    "features.torch_devices": "core.run",
    "features.local_computation": "core.gradients core.run features.torch_devices",
    "features.memory_estimate": "core.run hub_tools modeling_dalle_collab",
    "features.memory_estimate.models": "modeling_dalle_collab",
    "features.admission_service": "core.admission core.signing core.swarm_time hub_tools",
    "features.held_out_loss": "core.run",
    "features.optimizers": "core.block_quantisation core.equal_arithmetic core.optimizers",
    "features.machine": "core.run hub_tools",
    "features.publishing.checkpoint_tensors": "core.optimizers hub_tools",
    "features.publishing.publishable_task": "core.run features.memory_estimate",
    "features.reachability": "core.admission core.swarm",
    "features.servers": "core.admission core.swarm",
    "features.audits": "core.averaging core.equal_arithmetic core.swarm",
    "features.bandwidth": "core.averaging core.run core.swarm hub_tools",
    "features.publishing.repository": (
        "core.run core.signing core.swarm_time features.memory_estimate features.publishing.publishable_task hub_tools"
    ),
    "features.local_steps": "core.epoch core.optimizers core.run core.state",
    "features.sparse": (
        "core.admission core.averaging core.epoch core.equal_arithmetic core.gradients core.run core.signing "
        "core.state core.swarm features.local_steps"
    ),
    "features.ledger": (
        "core.gradients core.optimizers core.peer core.run core.signing core.state core.swarm hub_tools"
    ),
    "features.clock": "core.swarm_time",
    "features.all_services": "features.clock features.reachability",
    "features.all_records": "features.ledger features.servers",
    "features.publishing.metrics": (
        "core.run core.swarm features.held_out_loss features.ledger features.publishing.repository hub_tools"
    ),
    "features.anchors": "core.epoch core.signing core.state core.swarm features.publishing.metrics",
    "features.publishing.card": "core.run features.publishing.metrics features.publishing.publishable_task hub_tools",
    "features.serving": (
        "core.admission core.averaging core.epoch core.peer core.run core.swarm features.torch_devices "
        "features.admission_service features.all_records features.all_services features.machine "
        "features.publishing.repository features.servers tasks.text_to_image.generation "
        "tasks.text_to_image.image_codes hub_tools modeling_dalle_collab"
    ),
    "features.publishing.auxiliary": (
        "core.admission core.epoch core.peer core.run core.signing core.state core.swarm core.swarm_time "
        "features.all_records features.all_services features.anchors features.held_out_loss features.ledger "
        "features.publishing.card features.publishing.checkpoint_tensors features.publishing.metrics "
        "features.publishing.publishable_task features.publishing.repository features.servers hub_tools"
    ),
    "features.evaluation": (
        "core.run features.held_out_loss features.memory_estimate features.publishing.metrics "
        "features.publishing.repository tasks.text_to_image tasks.text_to_image.clip "
        "tasks.text_to_image.generation tasks.text_to_image.image_codes hub_tools"
    ),
    "features.hub_rounds": (
        "core.averaging core.gradients core.optimizers core.peer core.run core.signing core.state core.swarm "
        "features.open_runs features.publishing.auxiliary features.publishing.checkpoint_tensors "
        "features.publishing.metrics features.sparse hub_tools"
    ),
    "features.open_runs": "hub_tools",
    "tasks.presets": "",
    "tasks.text_to_image.image_codes": "hub_tools",
    "tasks.text_to_image.clip": "tasks.text_to_image.image_codes hub_tools",
    "tasks.text_to_image.conversion": "tasks.text_to_image.image_codes hub_tools modeling_dalle_collab",
    "tasks.text_to_image.data_preparation": "features.torch_devices tasks.text_to_image.image_codes hub_tools",
    "tasks.required_versions": "core.run",
    "tasks.setting_list": "core.run",
    "tasks.streaming": "core.run hub_tools",
    "tasks.text_to_image.generation": (
        "features.torch_devices features.local_computation features.memory_estimate tasks.text_to_image.clip "
        "tasks.text_to_image.image_codes hub_tools modeling_dalle_collab"
    ),
    "tasks.text_to_image": (
        "core.run features.memory_estimate features.publishing.card features.publishing.metrics "
        "features.publishing.publishable_task tasks.required_versions tasks.setting_list tasks.streaming hub_tools "
        "modeling_dalle_collab"
    ),
    "tasks.text_to_image.finetuning": (
        "core.run features.memory_estimate tasks.text_to_image tasks.text_to_image.image_codes hub_tools "
        "modeling_dalle_collab"
    ),
    "tasks.language_modeling": (
        "core.run features.evaluation features.held_out_loss features.memory_estimate "
        "features.publishing.card features.publishing.metrics features.publishing.publishable_task "
        "tasks.choice tasks.required_versions tasks.setting_list tasks.streaming tasks.text_to_image.image_codes "
        "hub_tools"
    ),
    "tasks.choice": (
        "core.run features.publishing.publishable_task tasks.language_modeling tasks.setting_list tasks.text_to_image"
    ),
    "tasks.device_program": "core.gradients core.run features.local_computation tasks.choice",
    "tools.pages.page_style": "",
    "tools.pages.text": "",
    "tools.pages.table_order": "",
    "tools.process_table": "",
    "tools.demo": "core features tasks tools.process_table hub_tools",
    "tools.demo.scenes": "features hub_tools",
    "tools.doctor": "core features tasks hub_tools",
    "tools.pages.dashboard": "core features tools.pages.run_pages tools.pages.table_order tools.pages.text hub_tools",
    "tools.pages.dataset": "tasks tools.pages.text hub_tools",
    "tools.pages.drawing": "core features tasks hub_tools modeling_dalle_collab",
    "tools.pages.line_program": "hub_tools",
    "tools.pages.memory_calculator": "core.run features hub_tools modeling_dalle_collab",
    "tools.pages.own_pages": "hub_tools",
    "tools.pages.run_pages": "hub_tools",
    "tools.chaos": "core features joining tasks tools.demo tools.process_table hub_tools modeling_dalle_collab",
    "tools.demo.language": "core features tasks tools.demo hub_tools",
    "tools.pages.dashboard.swarm": "core features tools.pages.line_program hub_tools",
    "tools.pages.drawing.volunteers": "features tasks tools.pages.line_program hub_tools modeling_dalle_collab",
    "tools.pages.joining": "core features tasks.text_to_image.generation tools.doctor hub_tools",
    "tools.chaos.faults": "core tools.chaos tools.process_table",
    "joining": "core features",
    "command_line": "pipelines modeling_dalle_collab hub_tools",
}
"""What a room below `pipelines` may import besides itself and what lies in it: rooms, libraries of ours, or a ring."""


MAY_IMPORT = {
    "modeling_dalle_collab": (),
    "hub_tools": (),
    "hub_tools.local_hub.protocol": (),
    "hub_tools.local_hub.store": ("hub_tools.local_hub.protocol",),
    "hub_tools.local_hub.routes": (
        "hub_tools.local_hub.store",
        "hub_tools.local_hub.protocol",
        "hub_tools.printing",
        "hub_tools.counted",
        "hub_tools.foreign",
    ),
    "spaces": ("pipelines", *LIBRARIES),
    **{
        f"pipelines.{room}": tuple(name if name in OURS else f"pipelines.{name}" for name in names.split())
        for room, names in ROOMS.items()
    },
}
"""Which folders a folder may import besides itself and what lies in it."""

MOST_MODULES = 12
"""Modules in a folder besides `__init__`; the model's files travel flat and are excepted."""

MOST_FLOORS = 7
"""Rooms of the core that stand on each other."""

PRICED = {
    "open_clip": ("pipelines/tasks/text_to_image/clip/clip_reranking.py",),
    "bitsandbytes": ("pipelines/core/block_quantisation.py",),
    "peft": ("pipelines/tasks/text_to_image/finetuning/finetuning.py",),
    "torch_fidelity": ("pipelines/features/evaluation/",),
    "torchmetrics": ("pipelines/features/evaluation/",),
    "seqeval": ("pipelines/tasks/language_modeling/evaluation/labelled_samples.py",),
    "accelerate": (
        "pipelines/features/local_computation/device_group.py",
        "pipelines/tasks/text_to_image/finetuning/finetuning.py",
        "pipelines/features/publishing/metrics/trackers.py",
    ),
    "hivemind": (
        "pipelines/core/swarm/",
        "pipelines/features/clock.py",
        "pipelines/features/reachability/",
        "pipelines/features/servers/",
        "pipelines/core/admission/",
        "pipelines/features/audits/",
        "pipelines/features/bandwidth/",
        "pipelines/features/sparse/",
        "pipelines/core/averaging/",
        "pipelines/core/state/anchors.py",
        "pipelines/core/state/exchange.py",
        "pipelines/core/epoch/",
        "pipelines/tools/chaos/faults/hostile_peers.py",
        "pipelines/tools/chaos/attacks/",
        "pipelines/tools/doctor/probing/probe.py",
    ),
    "gradio": ("spaces/",),
}
"""The files, or folders with a final slash, that alone may import a library."""

TRAVELS_WITH = {"torch", "transformers"}
"""All that the model's code may need where it is loaded from the Hub."""

TOO_HEAVY_FOR_HUB_TOOLS = {"torch", "torchvision", "transformers"}


def first_party_files(root: Path) -> list[Path]:
    return [path for name in OURS for path in sorted((root / name).rglob("*.py"))]


def imported_names(path: Path, root: Path) -> Iterator[tuple[int, str]]:
    """Yield line and absolute name of everything that a file imports, inside functions and by string too."""
    package = path.relative_to(root).parent.parts
    for node in _nodes(path):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join((*above, node.module) if node.module else above)
            # A name that is imported from a package may be one of its modules.
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and (name := _name_imported_by_call(node)):
            yield node.lineno, name


@lru_cache(maxsize=4096)
def _nodes(path: Path) -> list[ast.AST]:
    wanted = (ast.Import, ast.ImportFrom, ast.Call)
    tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    return [node for node in ast.walk(tree) if isinstance(node, wanted)]


def _name_imported_by_call(call: ast.Call) -> str | None:
    function = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    argument = call.args[0] if call.args else None
    if function in ("import_module", "__import__") and isinstance(argument, ast.Constant):
        return str(argument.value)
    return None


def part_of(name: str) -> str:
    """Return the folder with a rule in which a dotted name lies, such as `pipelines.core.state`."""
    parts = name.split(".")
    heads = [".".join(parts[:length]) for length in range(len(parts), 0, -1)]
    known = next((head for head in heads if head in MAY_IMPORT), None)
    return known or (heads[0] if len(parts) == 1 else ".".join(parts[:2]))


def is_inside(name: str, parts: tuple[str, ...]) -> bool:
    return any(name == part or name.startswith(f"{part}.") for part in parts)


def violations(root: Path) -> list[str]:
    """Return one line `file:line: what is wrong` for every import that a rule forbids."""
    found = []
    for path in first_party_files(root):
        file = path.relative_to(root).as_posix()
        part = part_of(".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"))
        found += [
            f"{file}:{line}: imports {name}; {objection}"
            for line, name in imported_names(path, root)
            if (objection := object_to(file, part, name))
        ]
    return found


def object_to(file: str, part: str, name: str) -> str | None:
    """Say why the file, which belongs to the part, may not import the name; None where it may."""
    library = name.partition(".")[0]
    if library in OURS:
        # `pipelines/__init__.py` itself belongs to no stage and is empty.
        if part != "pipelines" and part not in MAY_IMPORT:
            return f"{part} has no rule: say in MAY_IMPORT what it may import"
        allowed = MAY_IMPORT.get(part, ())
        return (
            None if is_inside(name, (part, *allowed)) else f"{part} may import {', '.join(allowed) or 'none of ours'}"
        )
    if library in PRICED:
        return None if is_at(file, PRICED[library]) else f"only {', '.join(PRICED[library])} may"
    if part == "modeling_dalle_collab" and library not in TRAVELS_WITH | sys.stdlib_module_names:
        return f"the model travels with {' and '.join(sorted(TRAVELS_WITH))} alone"
    if part == "hub_tools" and library in TOO_HEAVY_FOR_HUB_TOOLS:
        return "hub_tools works without it"
    return None


def is_at(file: str, places: tuple[str, ...]) -> bool:
    return any(file == place or (place.endswith("/") and file.startswith(place)) for place in places)


def test_imports_point_one_way_and_libraries_with_a_price_have_one_place():
    assert violations(ROOT) == []


def test_every_place_where_a_library_may_be_imported_does_import_it():
    for library, places in PRICED.items():
        for place in places:
            files = [ROOT / place] if place.endswith(".py") else sorted((ROOT / place).rglob("*.py"))
            names = {name.partition(".")[0] for path in files for _, name in imported_names(path, ROOT)}
            assert library in names, f"{place} does not import {library}: take it out of PRICED"


@lru_cache(maxsize=4096)
def bound_names(module: Path) -> set[str]:
    """Return what a module defines or imports outside functions and classes."""
    found, waiting = set(), list(ast.parse(module.read_text(encoding="utf-8")).body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {alias.asname or alias.name.partition(".")[0] for alias in node.names}
        else:
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found.add(node.id)
            waiting += ast.iter_child_nodes(node)
    return found


def missing_names(root: Path, files: Iterable[Path]) -> list[str]:
    """Return one line `file:line: name` for every name of ours that is imported and does not exist."""
    found = []
    for path in files:
        for line, name in imported_names(path, root):
            place, _, last = name.rpartition(".")
            package = root.joinpath(*place.split("."))
            if name.partition(".")[0] not in OURS or not place or (package / f"{last}.py").exists():
                continue
            module = package / "__init__.py" if package.is_dir() else package.with_suffix(".py")
            if (package / last).is_dir() or (module.exists() and last in bound_names(module) | {"*"}):
                continue
            found.append(f"{path.relative_to(root).as_posix()}:{line}: {name}")
    return sorted(found)


def test_every_name_of_ours_that_is_imported_exists_also_where_no_test_of_the_day_comes():
    others = [path for place in ("tests", "docs") for path in sorted((ROOT / place).rglob("*.py"))]
    assert missing_names(ROOT, [*first_party_files(ROOT), *others]) == []


def test_a_name_that_is_gone_is_told_with_file_and_line(tmp_path):
    (tmp_path / "pipelines").mkdir()
    (tmp_path / "pipelines" / "a.py").write_text("try:\n    B = 1\nexcept ValueError:\n    C: int = 2\n")
    user = tmp_path / "pipelines" / "user.py"
    user.write_text(
        "import pipelines.a\nfrom pipelines.a import B, C\ndef f():\n    from .a import D\nimport pipelines.e\n"
    )
    assert missing_names(tmp_path, [user]) == ["pipelines/user.py:4: pipelines.a.D", "pipelines/user.py:5: pipelines.e"]


@pytest.mark.parametrize(
    ("file", "source", "message"),
    [
        ("pipelines/core/run/a.py", "import pipelines.features.serving.b", "core.run may import"),
        ("pipelines/core/run/a.py", "from ...features import b", "imports pipelines.features.b"),
        ("pipelines/core/run/a.py", "from pipelines.core.state import b", "imports pipelines.core.state.b"),
        ("pipelines/core/a.py", "import os\nimport pipelines.core.run", "pipelines.core has no rule"),
        ("pipelines/core/state/a.py", "from pipelines.tasks.text_to_image import b", "may import"),
        ("pipelines/core/averaging/reduce/a.py", "from pipelines.core.averaging import runner", "may import"),
        (
            "pipelines/core/swarm/a.py",
            "def f():\n    from pipelines.tools.demo import b",
            ":2: imports pipelines.tools",
        ),
        ("pipelines/features/ledger/a.py", "from pipelines.features.serving import b", "features.ledger may import"),
        ("pipelines/features/serving/a.py", "import pipelines.command_line.main", "features.serving may import"),
        ("hub_tools/local_hub/store/a.py", "from ..routes import b", "imports hub_tools.local_hub.routes.b"),
        ("pipelines/tasks/text_to_image/image_codes/a.py", "from pipelines.tools import demo", "may import hub_tools"),
        ("pipelines/tools/demo/a.py", "import pipelines.command_line.main", "tools.demo may import"),
        ("pipelines/novelty/a.py", "import pipelines.core.b", "pipelines.novelty has no rule"),
        ("hub_tools/local_hub/a.py", "from pipelines.core.run import b", "may import none of ours"),
        ("hub_tools/a.py", "import torch", "hub_tools works without it"),
        ("modeling_dalle_collab/a.py", "import pipelines", "may import none of ours"),
        ("modeling_dalle_collab/a.py", "import einops", "travels with torch and transformers alone"),
        ("pipelines/core/swarm/a.py", "import spaces.landing_page", "imports spaces.landing_page"),
        ("pipelines/tasks/text_to_image/clip/clip_training.py", "import open_clip", "clip_reranking.py may"),
        ("pipelines/core/averaging/averager.py", "import bitsandbytes", "block_quantisation.py may"),
        ("pipelines/features/serving/a.py", "import hivemind.utils", "pipelines/core/epoch/, "),
        ("pipelines/core/run/b.py", "import importlib\nimportlib.import_module('hivemind')", ":2: imports"),
        ("pipelines/command_line/a.py", "import gradio as gr", "only spaces/ may"),
    ],
)
def test_a_forbidden_import_is_named_with_its_file_and_line(tmp_path, file, source, message):
    (tmp_path / file).parent.mkdir(parents=True)
    (tmp_path / file).write_text(source + "\n")
    (found,) = violations(tmp_path)
    assert found.startswith(f"{file}:{1 + source.count(chr(10))}: imports ")
    assert message in found


@pytest.mark.parametrize(
    ("file", "source"),
    [
        (
            "pipelines/core/peer/a.py",
            "from pipelines.core.run import b\nfrom pipelines.core.peer.c import d\nimport os",
        ),
        ("hub_tools/local_hub/a.py", "from .b import c\nfrom ..endpoint import d\nfrom . import e"),
        ("spaces/a/app.py", "import gradio\nfrom pipelines.features.serving import b\nimport hub_tools.endpoint"),
        ("modeling_dalle_collab/__init__.py", "import math\nimport torch\nfrom .b import c"),
    ],
)
def test_an_import_in_the_right_direction_is_fine(tmp_path, file, source):
    (tmp_path / file).parent.mkdir(parents=True)
    (tmp_path / file).write_text(source + "\n")
    assert violations(tmp_path) == []


def test_spaces_is_no_package():
    assert sorted((ROOT / "spaces").rglob("__init__.py")) == []


def test_no_folder_is_too_large_to_be_taken_in_at_a_glance():
    folders = {path.parent for path in first_party_files(ROOT)} - {ROOT / "modeling_dalle_collab"}
    sizes = {folder: len({path.name for path in folder.glob("*.py")} - {"__init__.py"}) for folder in folders}
    assert {str(folder): size for folder, size in sizes.items() if size > MOST_MODULES} == {}


def test_every_folder_says_what_it_is_for():
    inits = [path for name in OURS[:3] for path in sorted((ROOT / name).rglob("__init__.py"))]
    assert [path for path in inits if not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))] == []


def ring_of(room: str) -> int:
    return RINGS.get(room.partition(".")[0], max(RINGS.values()) + 1)


def test_no_ring_imports_a_higher_one():
    """What a room may import is what it does import, so that the table shows every crossing."""
    crossings = {
        (room, name)
        for room, names in ROOMS.items()
        for name in names.split()
        if name not in OURS and ring_of(room) < ring_of(name)
    }
    assert not crossings


def test_every_room_exists_and_imports_what_its_rule_names():
    found: dict[str, set[str]] = {}
    for path in sorted((ROOT / "pipelines").rglob("*.py")):
        room = part_of(".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"))
        found.setdefault(room, set()).update(name for _, name in imported_names(path, ROOT))
    unused = {
        (room, allowed)
        for room in MAY_IMPORT
        if room.startswith("pipelines.") and ring_of(room.partition(".")[2]) in RINGS.values()
        for allowed in MAY_IMPORT[room]
        if not any(is_inside(name, (allowed,)) for name in found.get(room, ()))
    }
    assert unused == set(), "take them out of ROOMS"


def num_floors(room: str) -> int:
    others = [name for name in ROOMS[room].split() if name.startswith("core.")]
    return 1 + max(map(num_floors, others), default=0)


def test_the_core_stands_on_few_floors():
    assert max(num_floors(room) for room in ROOMS if room.startswith("core.")) <= MOST_FLOORS
