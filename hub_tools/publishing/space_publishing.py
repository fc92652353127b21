"""Publishing this project's Spaces: files, variables, secrets and hardware of one, or all of a run, linked."""

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, cast

from hub_tools.foreign.json_texts import read_json

from ..run_files import CARD_FILE, TRAINING_RUN_FILE
from .folder_publishing import Published, open_repository, publish_folder
from .page_settings import SETTINGS_FILE, check_repository
from .space_bundling import bundle_space, find_space

if TYPE_CHECKING:
    from huggingface_hub import HfApi, SpaceHardware

SPACE_SUFFIXES = {
    "landing_page": "together",
    "training_dashboard": "dashboard",
    "text_to_image_demo": "draw",
    "memory_calculator": "memory",
    "join_training": "join",
}
"""Spaces of a run by the project's name for them, and what is appended to the run's name."""


@dataclass(frozen=True, kw_only=True)
class SpacePlan:
    """What to publish."""

    name: str
    """The project's name for the Space."""

    repository: str
    """`ORG/NAME` on the Hub."""

    settings: Mapping[str, str] = field(default_factory=dict)
    """For a static Space: lines of its `settings.json`. For others: public variables."""

    secrets: tuple[str, ...] = ()
    """Names of secrets. Their values come from this process's environment and are stored nowhere else."""

    hardware: str | None = None
    """Hardware to request, such as `cpu-upgrade` or `t4-small`; None: what the Space has."""

    private: bool = False

    @property
    def is_static(self) -> bool:
        """Whether the Space is a page without a program, which has settings in a file and no variables."""
        return (find_space(self.name) / SETTINGS_FILE).is_file()


def check_plan(plan: SpacePlan) -> None:
    """Raise ValueError for what is wrong with the plan, before anything is written."""
    check_repository("the Space", plan.repository)
    if plan.is_static and (plan.secrets or plan.hardware):
        raise ValueError(f"{plan.name} is a static Space: it runs no program, so it takes no secrets and no hardware")
    for name, value in plan.settings.items():
        if not plan.is_static and not _is_variable_name(name):
            raise ValueError(f"--set got the name {name!r}, expected one such as MODEL_REPOSITORY")
        if name in plan.secrets or looks_like_a_token(value):
            raise ValueError(
                f"The value of {name} would be public. Keep it in the environment and give its name: --secret {name}"
            )
    if missing := [name for name in plan.secrets if not os.environ.get(name)]:
        raise ValueError(f"--secret {missing[0]} takes its value from the environment, where it is unset. Export it")


def publish_space(plan: SpacePlan) -> Published:
    """Bundle a Space and publish it in one commit; then update its variables, secrets and hardware where they differ.

    Raises:
        ValueError: the plan cannot work; nothing was written.
    """
    from huggingface_hub import HfApi

    from .commits import patiently

    check_plan(plan)
    with tempfile.TemporaryDirectory() as temporary:
        bundle = Path(temporary) / plan.name
        bundle_space(plan.name, bundle, plan.settings if plan.is_static else None)
        if not plan.is_static:
            api = HfApi()
            # Before the files: a Space that starts without its settings would stop with an error.
            open_repository(plan.repository, "space", private=plan.private, space_sdk="gradio")
            changed = patiently(lambda: _set_up(api, plan))
        else:
            changed = False
        published = publish_folder(
            bundle, plan.repository, repo_type="space", private=plan.private,
            message=f"Publish the Space {plan.name}", replace=True,
        )  # fmt: skip
    return Published(url=published.url, changed=published.changed or changed)


def describe_plan(plan: SpacePlan) -> list[str]:
    """Return lines that say what `publish_space` would do; a secret is named, its value is not."""
    check_plan(plan)
    with tempfile.TemporaryDirectory() as temporary:
        bundle = Path(temporary) / plan.name
        files = bundle_space(plan.name, bundle, plan.settings if plan.is_static else None)
        size = sum((bundle / file).stat().st_size for file in files)
    kind, privacy = "setting" if plan.is_static else "variable", ", private" if plan.private else ""
    return [
        f"{plan.repository}: {plan.name}, {len(files)} files, {size / 1e3:,.0f} kB{privacy}",
        *(f"  {kind} {name}={value}" for name, value in plan.settings.items()),
        *(f"  secret {name}, from the environment" for name in plan.secrets),
        *([f"  hardware {plan.hardware}"] if plan.hardware else []),
    ]


def settings_of_spaces(run: str, spaces: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Return, by the project's name for a Space, its settings about the run and the other Spaces.

    `spaces` gives their places: `ORG/NAME` on the Hub, or web addresses.
    """
    links = {name: space for name, space in spaces.items() if name != "landing_page"}
    return {
        "landing_page": dict(run=run, **links),
        "training_dashboard": dict(
            RUN=run,
            DEMO_SPACE=spaces["text_to_image_demo"],
            JOIN_SPACE=spaces["join_training"],
            CALCULATOR_SPACE=spaces["memory_calculator"],
        ),
        "text_to_image_demo": dict(MODEL_REPOSITORY=run),
        "memory_calculator": dict(RUN=run),
        "join_training": dict(RUN=run, DEMO_SPACE=spaces["text_to_image_demo"], LANDING_PAGE=spaces["landing_page"]),
    }


def plans_of_run(run: str, *, private: bool = False) -> list[SpacePlan]:
    """Return the plans for a run's five Spaces: `ORG/RUN-dashboard` and so on, linked to each other."""
    check_repository("the run", run)
    spaces = {name: f"{run}-{suffix}" for name, suffix in SPACE_SUFFIXES.items()}
    return [
        SpacePlan(name=name, repository=spaces[name], settings=settings, private=private)
        for name, settings in settings_of_spaces(run, spaces).items()
    ]


def missing_parts(run: str) -> list[str]:
    """Return sentences about what a run lacks on the Hub before people should see it, each with its cure.

    Raises:
        ValueError: there is no such run.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import RemoteEntryNotFoundError, RepositoryNotFoundError

    from hub_tools.foreign.downloads import fetch_file

    api, create = HfApi(), "Create it first: dalle-collab run create"
    try:
        dataset = read_json(fetch_file(run, TRAINING_RUN_FILE))["settings"]["data"]["dataset_repository"]
        check_repository("the run's dataset", dataset)
    except (RepositoryNotFoundError, RemoteEntryNotFoundError) as error:
        raise ValueError(f"{run} is not a training run that you may read. {create}") from error
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{TRAINING_RUN_FILE} of {run} is damaged ({error}). {create}") from error
    missing = []
    if not api.file_exists(run, CARD_FILE):
        missing.append(f"{run} has no card yet. Its auxiliary peer writes one: dalle-collab run assist {run}")
    if not api.repo_exists(dataset, repo_type="dataset"):
        missing.append(f"Its dataset {dataset} does not exist. Publish it: hub-tools publish dataset FOLDER {dataset}")
    elif not api.file_exists(dataset, CARD_FILE, repo_type="dataset"):
        missing.append(f"Its dataset {dataset} has no card. Write one: hub-tools publish dataset FOLDER {dataset}")
    return missing


def looks_like_a_token(value: str) -> bool:
    """Tell whether a text is a token of the Hub."""
    return value.startswith("hf_") and len(value) > 20


def _set_up(api: "HfApi", plan: SpacePlan) -> bool:
    """Set variables that differ, all secrets (nobody can read which they are), and hardware that differs."""
    present = {name: item.value for name, item in api.get_space_variables(plan.repository).items()}
    changed = {name: value for name, value in plan.settings.items() if present.get(name) != value}
    for name, value in changed.items():
        api.add_space_variable(plan.repository, name, value)
    for name in plan.secrets:
        api.add_space_secret(plan.repository, name, os.environ[name])
    if plan.hardware and _hardware_of(api, plan.repository) != plan.hardware:
        api.request_space_hardware(plan.repository, cast("SpaceHardware", plan.hardware))  # sent as it is
        return True
    return bool(changed)


def _hardware_of(api: "HfApi", repository: str) -> str | None:
    runtime = api.get_space_runtime(repository)
    return runtime.requested_hardware or runtime.hardware


def _is_variable_name(name: str) -> bool:
    return name.isidentifier() and name.isascii()


def publish_all(plans: Sequence[SpacePlan]) -> dict[str, Published]:
    """Publish several Spaces; all plans are checked before the first is touched."""
    for plan in plans:
        check_plan(plan)
    return {plan.repository: publish_space(plan) for plan in plans}
