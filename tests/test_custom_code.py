"""Nobody runs the code of a foreign repository, nor takes more of it than is bounded: every call that could."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CALLS = ("from_pretrained", "from_config", "pipeline")
OURS = ("DistributedModel", "VQGANCodec", "ClipReranker", "DalleCollabConfig", "DalleCollabForConditionalGeneration")
"""Read by our own class, which names no other: no configuration chooses a class."""

UNSAFE_MODULES = ("pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal")
"""What reads a value of these runs what its writer chose; only their errors may be named."""

YAML_OF_VALUES = ("safe_load", "safe_dump", "dump", "YAMLError", "SafeLoader", "SafeDumper", "CSafeLoader")

BOUNDED = ("hf_hub_download", "snapshot_download", "list_repo_files", "list_repo_tree", "cached_file")
"""What takes or lists a repository whole, however large; `hub_tools/foreign/downloads.py` asks for sizes first."""

COMMITTING = ("create_commit", "upload_file", "upload_folder", "upload_large_folder", "delete_file", "delete_folder")
"""What changes a repository; `hub_tools/publishing/commits.py` alone does, tries again, and loses nobody's work."""

MAY_DOWNLOAD = (
    "hub_tools/foreign/downloads.py",
    "hub_tools/local_hub/",
    "pipelines/features/admission_service/lists.py",
    "pipelines/features/admission_service/space.py",
    "pipelines/tools/chaos/",
    "pipelines/tools/demo/",
    "pipelines/tasks/text_to_image/image_codes/codec_code.py",
    "pipelines/tasks/text_to_image/image_codes/vqgan_codec.py",
    "pipelines/features/publishing/repository/rollback.py",
    "pipelines/features/open_runs/volunteer_list.py",
)
"""Besides the first, they read repositories of whoever runs them; the codec is copied into repositories, alone; of
a run's volunteers a number of files is listed."""


def _says(call: ast.Call, name: str, value: str) -> bool:
    return any(keyword.arg == name and ast.unparse(keyword.value) == value for keyword in call.keywords)


def _is_unsafe(name: str, owner: str, call: ast.Call) -> bool:
    root = owner.partition(".")[0]
    if name in CALLS and owner not in (*OURS, "cls", "super()", "self.codec_class()"):
        return not _says(call, "trust_remote_code", "False")
    if root == "torch":
        unsafe_hub = owner == "torch.hub" and name != "get_dir"
        return unsafe_hub or (name == "load" and not _says(call, "weights_only", "True"))
    if root in ("np", "numpy") and name in ("load", "fromfile", "loads"):
        return not _says(call, "allow_pickle", "False")
    if root == "yaml":
        return name not in YAML_OF_VALUES
    if name in ("load_dataset", "load_dataset_builder"):
        return any(keyword.arg == "trust_remote_code" for keyword in call.keywords)
    if root == "open_clip" and name in ("create_model", "create_model_and_transforms", "load_checkpoint"):
        # A folder's weights are the safetensors in it; others are pickles, which open_clip loads as weights alone.
        return any(keyword.arg in ("weights_only", "load_weights_only") for keyword in call.keywords)
    allows = any(keyword.arg == "allow_pickle" and ast.unparse(keyword.value) != "False" for keyword in call.keywords)
    return (
        allows
        or root in UNSAFE_MODULES
        or name == "read_pickle"
        or (name in ("eval", "exec", "__import__") and not owner)
    )


def calls_that_allow_custom_code(source: str) -> list[int]:
    """Return the lines of calls that load from elsewhere without refusing custom code, and of names that hide some."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in (*UNSAFE_MODULES, "yaml"):
            found.append(node.lineno)
        if isinstance(node, ast.ImportFrom) and node.module in ("torch", "numpy", "torch.hub", "torch.serialization"):
            found += [node.lineno for alias in node.names if alias.name in ("load", "hub", "load_state_dict_from_url")]
        if isinstance(node, ast.Import) and any(
            alias.asname and alias.name.partition(".")[0] in (*UNSAFE_MODULES, "yaml") for alias in node.names
        ):
            found.append(node.lineno)
        if isinstance(node, ast.Call):
            owner = ast.unparse(node.func.value) if isinstance(node.func, ast.Attribute) else ""
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if _is_unsafe(name, owner, node):
                found.append(node.lineno)
    return sorted(set(found))


def unbounded_datasets(source: str) -> list[int]:
    """Return the lines that open a dataset outside of `opening_dataset`, which asks for its files first."""
    tree = ast.parse(source)
    blocks = [node for node in ast.walk(tree) if isinstance(node, ast.With) and "opening_dataset(" in ast.unparse(node)]
    bounded = {id(inner) for block in blocks for inner in ast.walk(block)}
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and id(node) not in bounded]
    return [call.lineno for call in calls if re.search(r"datasets\.(load_|get_)dataset", ast.unparse(call.func))]


def unbounded_downloads(source: str) -> list[int]:
    """Return the lines that name a function of the Hub's client which takes or lists a repository whole."""
    names = {node: getattr(node, "id", getattr(node, "attr", "")) for node in ast.walk(ast.parse(source))}
    return sorted(
        node.lineno
        for node, name in names.items()
        if name in BOUNDED or (name == "from_pretrained" and ast.unparse(node) == "VQGANCodec.from_pretrained")
    )


def lines_that_name(functions: tuple[str, ...], source: str) -> list[int]:
    """Return the lines that name one of these functions of the Hub's client."""
    names = ((node, getattr(node, "id", getattr(node, "attr", ""))) for node in ast.walk(ast.parse(source)))
    return sorted(node.lineno for node, name in names if name in functions)


@pytest.mark.parametrize(
    "line",
    [
        "AutoTokenizer.from_pretrained(name)",
        "AutoModel.from_pretrained(name, trust_remote_code=True)",
        "transformers.AutoProcessor.from_pretrained(name, trust_remote_code=choice)",
        "pipeline('text-generation', model=name)",
        "load_dataset(name, trust_remote_code=True)",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "torch.hub.load('org/name', 'model')",
        "torch.hub.load_state_dict_from_url(address)",
        "from torch import load",
        "np.load(path)",
        "numpy.load(path, allow_pickle=True)",
        "pickle.loads(content)",
        "from pickle import loads",
        "import pickle as p",
        "pickle.Unpickler(file).load()",
        "joblib.load(path)",
        "pandas.read_pickle(path)",
        "yaml.load(text)",
        "yaml.load(text, Loader=yaml.Loader)",
        "yaml.unsafe_load(text)",
        "yaml.full_load(text)",
        "open_clip.create_model(name, load_weights_only=False)",
        "eval(text)",
    ],
)
def test_the_search_finds(line):
    assert calls_that_allow_custom_code(line) == [1]


def test_the_search_leaves_the_rest_alone():
    safe = """
AutoTokenizer.from_pretrained(name, trust_remote_code=False)
VQGANCodec.from_pretrained(name)
torch.load(path, weights_only=True)
np.load(path, allow_pickle=False)
yaml.safe_load(text)
load_dataset(name, streaming=True)
error = pickle.UnpicklingError
model.eval()
"""
    assert calls_that_allow_custom_code(safe) == []
    assert unbounded_downloads("api.hf_hub_download(name)\nfetch_file(name)\nsnapshot_download(name)") == [1, 3]
    opened = "with opening_dataset(name, None):\n    datasets.load_dataset(name)\n"
    assert unbounded_datasets(opened + "datasets.load_dataset_builder(name)") == [3]
    assert unbounded_downloads("open_codec(name)\nVQGANCodec.from_pretrained(name)") == [2]
    assert lines_that_name(COMMITTING, "api.create_commit(name)\ncommit_on(head)\nupload_folder") == [1, 3]


def test_every_call_that_loads_from_a_repository_refuses_custom_code_and_is_bounded_and_one_place_commits():
    files = [path for folder in ("hub_tools", "pipelines", "spaces") for path in (ROOT / folder).rglob("*.py")]
    seen = []
    for path in files:
        name, source = str(path.relative_to(ROOT)), path.read_text()
        seen += [f"{name}:{line}" for line in calls_that_allow_custom_code(source)]
        if not name.startswith(MAY_DOWNLOAD):
            seen += [f"{name}:{line} downloads" for line in unbounded_downloads(source) + unbounded_datasets(source)]
        if name != "hub_tools/publishing/commits.py" and not name.startswith("hub_tools/local_hub/"):
            seen += [f"{name}:{line} commits" for line in lines_that_name(COMMITTING, source)]
    assert not seen
