"""Imports point one way, and libraries with a price are imported in one place, as CONTRIBUTING.md has it."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
OURS = ("modeling_dalle_collab", "pipelines", "hub_tools", "spaces")
LIBRARIES = ("modeling_dalle_collab", "hub_tools")
MODEL, HUB, CODES = "modeling_dalle_collab", "hub_tools", "pipelines.image_codes"
ADMISSION, SWARM, MEMORY = "pipelines.admission", "pipelines.swarm", "pipelines.memory_estimate"
RUN, OPTIMIZERS, GRADIENTS, REPOSITORY, AVERAGING, METRICS, STATE, SWARM_OPTIMIZER, PEER, AUXILIARY, TASK = (
    f"pipelines.training.{room}"
    for room in (
        *("run", "optimizers", "gradients", "repository", "averaging", "metrics", "state", "swarm_optimizer"),
        *("peer", "auxiliary", "tasks.text_to_image"),
    )
)
CARD = "pipelines.training.card"
TASKS = "pipelines.training.tasks"
BLOCKS = ("pipelines.image_codes.dataset_shards", "pipelines.image_codes.shard_blocks")
STREAMING, LANGUAGE = "pipelines.training.tasks.streaming", "pipelines.training.tasks.language_modeling"
DEVICES, PROGRESS, THREADS = "pipelines.torch_devices", "pipelines.stage_progress", "pipelines.thread_choice"
CHILDREN, TIME = "pipelines.child_watch", "pipelines.swarm_time"
PROCESSES = "pipelines.process_table"
ARITHMETIC = ("pipelines.equal_arithmetic", "pipelines.block_quantisation")
REDUCE = f"{AVERAGING}.reduce"
LEDGER = "pipelines.training.ledger"
SERVERS, SIGNING, JOINING = "pipelines.features.servers", "pipelines.training.signing", "pipelines.joining"
ALL_RECORDS = "pipelines.all_records"
PUBLISHABLE = "pipelines.training.publishing.publishable_task"
SPARSE = "pipelines.training.sparse"

MAY_IMPORT = {
    "modeling_dalle_collab": (),
    "hub_tools": (),
    "hub_tools.local_hub.protocol": (),
    "hub_tools.local_hub.store": ("hub_tools.local_hub.protocol",),
    "hub_tools.local_hub.routes": ("hub_tools.local_hub.store", "hub_tools.local_hub.protocol", "hub_tools.printing"),
    DEVICES: (),
    PROGRESS: (HUB,),
    CHILDREN: (),
    TIME: (),
    PROCESSES: (),
    ARITHMETIC[0]: (),
    ARITHMETIC[1]: (),
    CODES: (HUB,),
    ADMISSION: (CHILDREN, HUB),
    SWARM: (f"{HUB}.printing", ADMISSION, CHILDREN, TIME),
    MEMORY: LIBRARIES,
    f"{MEMORY}.models": (MODEL,),
    RUN: (f"{ADMISSION}.settings", HUB),
    PUBLISHABLE: (RUN, f"{MEMORY}.settings"),
    OPTIMIZERS: (RUN, *ARITHMETIC),
    GRADIENTS: (RUN, THREADS),
    SIGNING: (HUB,),
    REPOSITORY: (RUN, PUBLISHABLE, SIGNING, TIME, MEMORY, HUB),
    SERVERS: (ADMISSION, SWARM),
    ALL_RECORDS: (SERVERS, LEDGER),
    REDUCE: (RUN, *ARITHMETIC),
    f"{AVERAGING}.wire": (RUN, REDUCE, *ARITHMETIC),
    f"{AVERAGING}.group": (RUN,),
    f"{AVERAGING}.bandwidth": (RUN, SWARM, HUB),
    SPARSE: ARITHMETIC,
    AVERAGING: (RUN, SPARSE, ADMISSION, SWARM, CHILDREN, *ARITHMETIC),
    METRICS: (RUN, REPOSITORY, SIGNING, SWARM, LEDGER, HUB),
    CARD: (RUN, PUBLISHABLE, METRICS, HUB),
    STATE: (OPTIMIZERS, SIGNING, ADMISSION, SWARM, AVERAGING, HUB),
    LEDGER: (RUN, SIGNING, SWARM, STATE, GRADIENTS, OPTIMIZERS, f"{PEER}.data_lease", HUB),
    SWARM_OPTIMIZER: (RUN, OPTIMIZERS, GRADIENTS, SPARSE, ADMISSION, SWARM, AVERAGING, STATE, CHILDREN),
    STREAMING: (RUN, HUB),
    TASK: (RUN, PUBLISHABLE, STATE, METRICS, CARD, STREAMING, MEMORY, CODES, *LIBRARIES),
    LANGUAGE: (RUN, PUBLISHABLE, STATE, METRICS, CARD, STREAMING, MEMORY, HUB, *BLOCKS),
    PEER: (
        *(RUN, ADMISSION, OPTIMIZERS, GRADIENTS, SWARM, AVERAGING, STATE, SWARM_OPTIMIZER),
        *(DEVICES, THREADS, f"{HUB}.processes"),
    ),
    JOINING: ("pipelines.training", ADMISSION, SWARM, ALL_RECORDS),
    AUXILIARY: (
        *(SERVERS, SIGNING, ALL_RECORDS, PUBLISHABLE),
        *(
            RUN,
            PEER,
            ADMISSION,
            OPTIMIZERS,
            REPOSITORY,
            SWARM,
            METRICS,
            CARD,
            STATE,
            LEDGER,
            SWARM_OPTIMIZER,
            TIME,
            HUB,
        ),
    ),
    TASKS: (RUN, PUBLISHABLE, GRADIENTS),
    "pipelines.data_preparation": (CODES, DEVICES, HUB),
    "pipelines.clip": (CODES, PROGRESS, HUB),
    "pipelines.generation": ("pipelines.clip", CODES, MEMORY, PROGRESS, DEVICES, THREADS, *LIBRARIES),
    "pipelines.evaluation": (
        "pipelines.generation",
        "pipelines.clip",
        MEMORY,
        REPOSITORY,
        METRICS,
        RUN,
        TASKS,
        TASK,
        CODES,
        PROGRESS,
        *LIBRARIES,
    ),
    "pipelines.finetuning": (RUN, TASK, CODES, MEMORY, *LIBRARIES),
    "pipelines.conversion": (CODES, MODEL, f"{HUB}.printing"),
    "pipelines.doctor": ("pipelines.training", SERVERS, ADMISSION, SWARM, MEMORY, CODES, *LIBRARIES),
    "pipelines.serving": (
        *("pipelines.training", "pipelines.generation", "pipelines.doctor"),
        *(SERVERS, ALL_RECORDS, ADMISSION, SWARM, DEVICES, PROGRESS, CODES, *LIBRARIES),
    ),
    "pipelines.pages.dashboard.swarm": (
        *("pipelines.training", "pipelines.pages.line_program", SERVERS, ALL_RECORDS, ADMISSION, SWARM, HUB),
    ),
    "pipelines.pages.dashboard": ("pipelines.training", f"{SERVERS}.layers", "pipelines.pages.text", HUB),
    "pipelines.pages.dataset": ("pipelines.data_preparation", "pipelines.pages.text", CODES, HUB),
    "pipelines.pages.drawing.volunteers": (
        *("pipelines.serving.draw", "pipelines.generation", f"{PEER}.process_group", "pipelines.pages.line_program"),
        *LIBRARIES,
    ),
    "pipelines.pages.drawing": (
        *("pipelines.generation", "pipelines.serving.draw.requests"),
        *(MODEL, DEVICES, CODES, HUB),
    ),
    "pipelines.pages.joining": ("pipelines.training", "pipelines.doctor", SWARM, HUB),
    "pipelines.pages": (f"{HUB}.printing", f"{HUB}.processes"),
    "pipelines.pages.memory_calculator": (MEMORY, *LIBRARIES),
    "pipelines.demo.scenes": ("pipelines.evaluation", CODES, HUB),
    "pipelines.demo.language": ("pipelines.demo", "pipelines.training", HUB),
    "pipelines.demo": (
        *("pipelines.data_preparation", "pipelines.generation", "pipelines.training"),
        *(PROCESSES, CODES, *LIBRARIES),
    ),
    "pipelines.chaos.faults": ("pipelines.chaos.attacks", PROCESSES, AVERAGING, SWARM_OPTIMIZER),
    "pipelines.chaos": (
        "pipelines.demo",
        "pipelines.data_preparation",
        "pipelines.training",
        "pipelines.serving",
        "pipelines.generation",
        ADMISSION,
        JOINING,
        SWARM,
        PROCESSES,
        CODES,
        *LIBRARIES,
    ),
    "pipelines.command_line": ("pipelines", *LIBRARIES),
    "spaces": ("pipelines", *LIBRARIES),
}
"""Which folders a folder may import besides itself and what lies in it."""

MOST_MODULES = 12
"""Modules in a folder besides `__init__`; the model's files travel flat and are excepted."""

MOST_FLOORS = 9
"""Folders of `training` that stand on each other."""

PRICED = {
    "open_clip": ("pipelines/clip/clip_reranking.py",),
    "bitsandbytes": ("pipelines/training/optimizers/block_statistics.py",),
    "peft": ("pipelines/finetuning/finetuning.py",),
    "torch_fidelity": ("pipelines/evaluation/",),
    "torchmetrics": ("pipelines/evaluation/",),
    "seqeval": ("pipelines/evaluation/",),
    "accelerate": (
        "pipelines/training/gradients/device_group.py",
        "pipelines/finetuning/finetuning.py",
        "pipelines/training/metrics/trackers.py",
    ),
    "hivemind": (
        "pipelines/swarm/",
        "pipelines/features/servers/",
        "pipelines/admission/",
        "pipelines/training/averaging/",
        "pipelines/training/state/",
        "pipelines/training/swarm_optimizer/",
        "pipelines/chaos/faults/hostile_peers.py",
        "pipelines/chaos/attacks/",
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
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), filename=str(path))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join((*above, node.module) if node.module else above)
            # A name that is imported from a package may be one of its modules.
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and (name := _name_imported_by_call(node)):
            yield node.lineno, name


def _name_imported_by_call(call: ast.Call) -> str | None:
    function = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    argument = call.args[0] if call.args else None
    if function in ("import_module", "__import__") and isinstance(argument, ast.Constant):
        return str(argument.value)
    return None


def part_of(name: str) -> str:
    """Return the folder with a rule in which a dotted name lies, such as `pipelines.training.state`."""
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


@pytest.mark.parametrize(
    ("file", "source", "message"),
    [
        (
            "pipelines/training/run/a.py",
            "import pipelines.generation.b",
            "training.run may import pipelines.",
        ),
        ("pipelines/training/run/a.py", "from ...generation import b", "imports pipelines.generation.b"),
        ("pipelines/training/run/a.py", "from pipelines.training.state import b", "imports pipelines.training.state.b"),
        ("pipelines/training/a.py", "import os\nimport pipelines.training.run", "pipelines.training has no rule"),
        ("pipelines/training/state/a.py", "from pipelines.training.tasks.text_to_image import b", "may import"),
        ("pipelines/training/averaging/reduce/a.py", "from pipelines.training.averaging import runner", "may import"),
        ("pipelines/swarm/a.py", "def f():\n    from pipelines.demo import b", ":2: imports pipelines.demo.b"),
        ("hub_tools/local_hub/store/a.py", "from ..routes import b", "imports hub_tools.local_hub.routes.b"),
        ("pipelines/generation/a.py", "from pipelines import data_preparation", "imports pipelines.data_preparation"),
        ("pipelines/image_codes/a.py", "from pipelines.clip import b", "may import hub_tools"),
        ("pipelines/demo/a.py", "import pipelines.command_line.main", "pipelines.demo may import"),
        ("pipelines/novelty/a.py", "import pipelines.training.b", "pipelines.novelty has no rule"),
        ("hub_tools/local_hub/a.py", "from pipelines.image_codes import b", "may import none of ours"),
        ("hub_tools/a.py", "import torch", "hub_tools works without it"),
        ("modeling_dalle_collab/a.py", "import pipelines", "may import none of ours"),
        ("modeling_dalle_collab/a.py", "import einops", "travels with torch and transformers alone"),
        ("pipelines/swarm/a.py", "import spaces.landing_page", "imports spaces.landing_page"),
        ("pipelines/clip/clip_training.py", "import open_clip", "clip_reranking.py may"),
        ("pipelines/training/averaging/averager.py", "import bitsandbytes", "block_statistics.py may"),
        ("pipelines/generation/a.py", "import hivemind.utils", "pipelines/training/swarm_optimizer/, "),
        (
            "pipelines/training/run/training_run.py",
            "import importlib\nimportlib.import_module('hivemind')",
            ":2: imports",
        ),
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
            "pipelines/training/state/a.py",
            "from pipelines.training.averaging.wire import b\nfrom pipelines.training.state.c import d\nimport os",
        ),
        ("hub_tools/local_hub/a.py", "from .b import c\nfrom ..endpoint import d\nfrom . import e"),
        ("spaces/some_space/app.py", "import gradio\nfrom pipelines.generation import b\nimport hub_tools.endpoint"),
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
    assert [path.name for path in (ROOT / "pipelines" / "training").glob("*.py")] == ["__init__.py"]


def test_every_folder_says_what_it_is_for():
    inits = [path for name in OURS[:3] for path in sorted((ROOT / name).rglob("__init__.py"))]
    assert [path for path in inits if not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))] == []


def rooms_above(root: Path, house: str) -> dict[str, set[str]]:
    """Return which rooms of a folder each of its rooms imports."""
    files = sorted((root / house.replace(".", "/")).rglob("*.py"))
    found: dict[str, set[str]] = {}
    for path in files:
        room = path.relative_to(root / house.replace(".", "/")).parts[0]
        for _, name in imported_names(path, root):
            if name.startswith(f"{house}.") and (other := name.split(".")[2]) != room:
                found.setdefault(room, set()).add(other)
    return found


def num_floors(arrows: dict[str, set[str]], room: str) -> int:
    return 1 + max((num_floors(arrows, other) for other in arrows.get(room, ())), default=0)


def test_training_stands_on_few_floors():
    arrows = rooms_above(ROOT, "pipelines.training")
    assert max(num_floors(arrows, room) for room in arrows) <= MOST_FLOORS
