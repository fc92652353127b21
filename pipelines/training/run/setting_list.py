"""Every setting that an organiser can choose: name, default and meaning, read from where it is defined."""

import ast
import dataclasses
import inspect
import textwrap
from dataclasses import dataclass
from typing import Any

from pipelines.training.run.sections import SECTIONS
from pipelines.training.run.training_run import TrainingRun

NOT_CHOSEN = frozenset(
    {
        *("task", "task_settings", "model_config", "entry_addresses", "generation", "format_version"),
        *("organiser_key", "authorization_service", "authorization_key"),
        *("dataset_repository", "dataset_revision", "package_version"),
        *("text_vocab_size", "codebook_size", "image_grid_size", "pad_token_id"),
    }
)
"""What `run create` takes from dataset, tokenizer and other options, or other commands write."""

TITLES = {
    "data": "Data",
    "optimizer": "Optimizer",
    "local_steps": "Local steps",
    "averaging": "Averaging",
    "aggregation": "Aggregation",
    "publishing": "Publishing",
    "serving": "Serving",
    "versions": "Versions",
}


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What `run create --set NAME=VALUE` takes."""

    name: str
    default: Any
    meaning: str
    group: str
    """A title for people."""


def settings_of_runs() -> list[Setting]:
    """Return the settings that runs of all tasks have."""
    found = settings_in(TrainingRun, "Run")
    for name, section in SECTIONS.items():
        if name in TITLES:
            found += settings_in(section, TITLES[name])
    return found


def settings_in(kind: Any, group: str) -> list[Setting]:
    """Return the fields that a dataclass itself defines, each with the string below it."""
    body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0].body  # type: ignore[attr-defined]
    found, defaults = [], {item.name: item for item in dataclasses.fields(kind)}
    for node, below in zip(body, [*body[1:], None], strict=True):
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        name = node.target.id
        if name in NOT_CHOSEN or name not in defaults:
            continue
        is_text = isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
        meaning = " ".join(str(below.value.value).split()) if is_text else ""
        found.append(Setting(name=name, default=_default(defaults[name]), meaning=meaning, group=group))
    return found


def _default(item: dataclasses.Field) -> Any:
    if item.default is not dataclasses.MISSING:
        return list(item.default) if isinstance(item.default, tuple) else item.default
    return item.default_factory() if item.default_factory is not dataclasses.MISSING else None
