"""Nobody runs the code of a foreign repository: every call that could says so."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1]
CALLS = ("from_pretrained", "from_config", "pipeline")
OURS = ("DistributedModel", "VQGANCodec", "ClipReranker", "DalleCollabConfig", "DalleCollabForConditionalGeneration")
"""Read by our own class, which names no other: no configuration chooses a class."""


def calls_that_allow_custom_code(source: str) -> list[int]:
    """Return the lines of calls that load from elsewhere without refusing custom code."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        owner = ast.unparse(node.func.value) if isinstance(node.func, ast.Attribute) else ""
        refuses = any(
            keyword.arg == "trust_remote_code" and ast.unparse(keyword.value) == "False" for keyword in node.keywords
        )
        if name in CALLS and owner not in (*OURS, "cls", "super()", "self.codec_class()") and not refuses:
            found.append(node.lineno)
        unsafe = name == "load" and owner == "torch" and "weights_only=True" not in ast.unparse(node)
        if unsafe or (name == "load" and owner in ("np", "numpy") and "allow_pickle=False" not in ast.unparse(node)):
            found.append(node.lineno)
    return found


def test_every_call_that_loads_from_a_repository_refuses_custom_code() -> None:
    assert calls_that_allow_custom_code("AutoTokenizer.from_pretrained(name)") == [1]
    files = [path for folder in ("hub_tools", "pipelines", "spaces") for path in (ROOT / folder).rglob("*.py")]
    seen = [
        f"{path.relative_to(ROOT)}:{line}" for path in files for line in calls_that_allow_custom_code(path.read_text())
    ]
    assert not seen
