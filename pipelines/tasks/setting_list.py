"""Every setting that an organiser can choose: name, default and meaning, read from where it is defined.

Also which of a run's settings have no effect beside the others.
"""

import ast
import dataclasses
import inspect
import textwrap
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from pipelines.core.run.sections import SECTIONS
from pipelines.core.run.training_run import TrainingRun

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
    "wire": "Wire",
    "aggregation": "Aggregation",
    "publishing": "Publishing",
    "serving": "Serving",
    "versions": "Versions",
}


NEEDS: tuple[tuple[str, Callable[[TrainingRun], bool], str], ...] = (
    ("local_steps=1", lambda run: run.local_steps == 1, "optimizer"),
    *(
        ("local_steps above 1", lambda run: run.local_steps > 1, name)
        for name in ("inner_batch_size", "inner_optimizer", "outer_learning_rate", "outer_momentum")
    ),
    ("synchronisation=sparse", lambda run: run.synchronisation == "sparse", "sparse_values_per_chunk"),
    ("synchronisation=sparse", lambda run: run.synchronisation == "sparse", "sparse_error_decay"),
    ("another aggregation_rule than mean", lambda run: run.aggregation_rule != "mean", "tau_ratio"),
    (
        "aggregation_rule=centered_clip",
        lambda run: run.aggregation_rule == "centered_clip",
        "num_clipping_iterations",
    ),
    (
        "averaging_compression=blockwise_8bit",
        lambda run: run.averaging_compression == "blockwise_8bit",
        "min_8bit_elements",
    ),
    *(
        ("wire=hub", lambda run: run.wire == "hub", name)
        for name in ("window_seconds", "contributions_per_round", "kept_rounds", "who_may_contribute")
    ),
    ("a bucket", lambda run: bool(run.bucket), "bucket_interval_epochs"),
    ("reel_prompts", lambda run: bool(run.reel_prompts), "reel_interval_epochs"),
    ("the task fill-mask", lambda run: run.task == "fill-mask", "mask_probability"),
    ("the task fill-mask", lambda run: run.task == "fill-mask", "whole_word_masks"),
)
"""What some settings need to have an effect: in words, whether a run has it, and the setting's name."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What `run create --set NAME=VALUE` takes."""

    name: str
    default: object
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


def settings_in(kind: type, group: str) -> list[Setting]:
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


def _default(item: dataclasses.Field) -> object:
    if item.default is not dataclasses.MISSING:
        return list(item.default) if isinstance(item.default, tuple) else item.default
    return item.default_factory() if item.default_factory is not dataclasses.MISSING else None


def settings_without_effect(run: TrainingRun, chosen: Iterable[str]) -> list[str]:
    """Return a sentence for each chosen setting of a new run that has no effect beside the others."""
    chosen = frozenset(chosen)
    return [f"{name} has no effect: it needs {need}." for need, has, name in NEEDS if name in chosen and not has(run)]
