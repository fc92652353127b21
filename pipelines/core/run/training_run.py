"""What all peers of a training run must share, kept as `training_run.json` in the run's Model Hub repository."""

import dataclasses
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from hub_tools.foreign.json_texts import read_json
from hub_tools.places import is_repository_name
from hub_tools.run_files import TRAINING_RUN_FILE
from hub_tools.setting_ranges import MOST_BYTES, check_ranges
from pipelines.core.admission.settings import PUBLIC_KEY
from pipelines.core.run.sections import (
    SECTIONS,
    AdmissionSettings,
    AggregationSettings,
    AveragingSettings,
    DataSettings,
    LocalStepSettings,
    OptimizerSettings,
    PublishingSettings,
    ServingSettings,
    VersionSettings,
    WireSettings,
)

FORMAT_VERSION = 2

MOST_ADDRESSES = 64
ADDRESS = re.compile(r"(/[A-Za-z0-9.:_-]{1,128}){2,12}")

WINDOWS_OF_THE_LIVING = 2.5
"""A volunteer of a run over the Hub who has contributed to no round for so many windows is away."""

TASKS_THAT_COUNT_TOKENS = ("fill-mask", "text-generation")


@dataclass(frozen=True, kw_only=True)
class TrainingRun(
    DataSettings,
    OptimizerSettings,
    LocalStepSettings,
    AveragingSettings,
    WireSettings,
    AggregationSettings,
    PublishingSettings,
    AdmissionSettings,
    ServingSettings,
    VersionSettings,
):
    """The settings that peers must share: these, and those of all sections."""

    run_id: str
    """Name of the swarm, prefix of its keys in the DHT: letters, digits, `-` and `_`."""

    organiser_key: str = ""
    """Public key of the organiser, who alone changes the list of the run's keys; empty: the list is not signed."""

    task: str = "text-to-image"
    """What is trained, by the Hub's name for it; see `tasks.choice`."""

    task_settings: dict[str, Any] = field(default_factory=dict)
    """Settings that only the task knows, such as the sequence length of a language model."""

    model_config: dict[str, Any] = field(default_factory=dict)
    """Arguments of the model's configuration: `DalleCollabConfig`, or a `model_type` of transformers and its own."""

    entry_addresses: tuple[str, ...] = ()
    """Multiaddresses through which newcomers find the swarm; the auxiliary peer keeps them up to date."""

    seed: int = 0
    """Seed of the initial parameters, which every peer draws itself instead of downloading them."""

    generation: int = 0
    """How often the run was rolled back. Each generation is a separate swarm, so that peers with discarded epochs
    cannot bring them back."""

    format_version: int = FORMAT_VERSION
    """Version of this file's format."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "entry_addresses", tuple(self.entry_addresses))
        _check_format(self.format_version)
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,96}", self.run_id):
            raise ValueError(f"run_id is {self.run_id!r}; expected 1 to 96 letters, digits, '-' or '_'.")
        if not re.fullmatch(f"({PUBLIC_KEY})?", self.organiser_key):
            raise ValueError(
                f"organiser_key is {self.organiser_key!r}; expected nothing, or ed25519: and the base64 of a public "
                "key, which is written by: dalle-collab run create"
            )
        if self.generation < 0:
            raise ValueError(f"generation is {self.generation}; expected 0 or more.")
        for section in SECTIONS.values():
            section.check(self)
        check_ranges(vars(self))
        self._check_names()
        if self.momentum_before_averaging and self.local_steps > 1:
            raise ValueError(
                f"momentum_before_averaging is on and local_steps is {self.local_steps}; peers with local steps "
                "average their progress, to which outer_momentum is applied. "
                "Cure: --set momentum_before_averaging=false"
            )
        self._check_synchronisation()
        self._check_wire()

    def _check_names(self) -> None:
        """Refuse names and addresses that are none: they become paths and requests."""
        if self.dataset_repository and not is_repository_name(self.dataset_repository):
            raise ValueError(f"dataset_repository is {self.dataset_repository!r}; expected a dataset, ORG/NAME.")
        addresses = self.entry_addresses
        if len(addresses) > MOST_ADDRESSES or not all(isinstance(a, str) and ADDRESS.fullmatch(a) for a in addresses):
            raise ValueError(
                f"entry_addresses is {str(addresses)[:80]}; expected at most {MOST_ADDRESSES} multiaddresses, such as "
                "/ip4/203.0.113.7/tcp/31337/p2p/PEER."
            )

    def _check_synchronisation(self) -> None:
        """Refuse settings that have no meaning with sparse synchronisation, rather than ignore them."""
        if self.synchronisation == "dense":
            return
        if self.local_steps == 1:
            raise ValueError(
                "synchronisation is sparse and local_steps is 1; single gradients are not sent sparsely. "
                "Cure: --set local_steps=30, or --set synchronisation=dense"
            )
        for name, wanted, reason in (
            ("outer_momentum", 0, "newcomers get parameters alone"),
            ("aggregation_rule", "mean", "contributions are averaged by samples, none longer than these allow"),
        ):
            if (value := getattr(self, name)) != wanted:
                raise ValueError(
                    f"synchronisation is sparse and {name} is {value}; expected {wanted}: {reason}. "
                    f"Cure: --set {name}={wanted}"
                )

    def _check_wire(self) -> None:
        """Refuse settings with which rounds over the Hub cannot be held."""
        if self.wire != "hub":
            return
        for is_wrong, seen, cure in (
            (self.synchronisation != "sparse", f"synchronisation is {self.synchronisation}", "synchronisation=sparse"),
            (not self.bucket, "the run has no bucket for its rounds", "bucket=ORG/RUN-rounds"),
            (not self.is_open, "the run has an authority: the Hub says who may write", 'authorization_service=""'),
            (
                self.kept_rounds < 2 * self.bucket_interval_epochs,
                f"kept_rounds is {self.kept_rounds}, less than two of bucket_interval_epochs "
                f"({self.bucket_interval_epochs}): newcomers could not follow",
                f"kept_rounds={2 * self.bucket_interval_epochs}",
            ),
        ):
            if is_wrong:
                raise ValueError(f"wire is hub and {seen}. Cure: --set {cure}")

    @property
    def swarm_id(self) -> str:
        """Prefix of the swarm's keys in the DHT: the run's id, and its generation once it was rolled back."""
        return f"{self.run_id}-generation-{self.generation}" if self.generation else self.run_id

    @property
    def unit(self) -> str:
        """What `target_batch_size` and the weights of gradients count: `tokens` that are predicted, or `samples`."""
        return "tokens" if self.task in TASKS_THAT_COUNT_TOKENS else "samples"

    @property
    def stepping_optimizer(self) -> str:
        """Name of the optimizer that steps along gradients: with local steps, the inner one."""
        return self.inner_optimizer if self.local_steps > 1 else self.optimizer

    @property
    def is_open(self) -> bool:
        """Whether everybody may join, with or without an account on the Hub."""
        return not self.authorization_service

    @property
    def samples_per_epoch(self) -> int:
        """Samples that the swarm gathers between two rounds of averaging."""
        return self.target_batch_size * self.local_steps

    @property
    def sign_of_life_seconds(self) -> float:
        """How long a peer's newest sign of life is valid; who gives no other one in half of that is away."""
        if self.wire == "hub":
            return 2 * WINDOWS_OF_THE_LIVING * self.window_seconds
        return self.progress_expiration_seconds

    def check_has_swarm(self, repository: str, instead: str) -> None:
        """Raise ValueError, with what to do `instead`, if peers meet in no swarm: the run's wire is the Hub."""
        if self.wire == "hub":
            raise ValueError(f"The wire of {repository} is the Hub: it has no swarm. {instead}")

    def to_json(self) -> str:
        """Return the text of `training_run.json`."""
        values = dataclasses.asdict(self)
        sections = {
            name: {item.name: values.pop(item.name) for item in dataclasses.fields(section)}
            for name, section in SECTIONS.items()
        }
        return json.dumps(values | {"settings": sections}, indent=2, sort_keys=True) + "\n"

    @classmethod
    def from_mapping(cls, values: Mapping[str, object]) -> Self:
        """Build a run from parsed JSON, with sections or flat; ValueError names an unknown or missing setting."""
        if not isinstance(values, Mapping):
            raise ValueError(f"{TRAINING_RUN_FILE} contains a {type(values).__name__}; expected a JSON object.")
        _check_format(values.get("format_version", FORMAT_VERSION))
        settings = _flat(values)
        known = {item.name for item in dataclasses.fields(cls)}
        if unknown := sorted(set(settings) - known):
            raise ValueError(f"Unknown setting {', '.join(unknown)} in {TRAINING_RUN_FILE}; known: {sorted(known)}.")
        try:
            return cls(**settings)
        except TypeError as error:
            raise ValueError(f"{TRAINING_RUN_FILE} is incomplete or has a value of the wrong type: {error}") from error

    @classmethod
    def from_file(cls, path: Path) -> Self:
        """Read `training_run.json`; raises ValueError if it is not valid."""
        try:
            values = read_json(path, MOST_BYTES)
        except ValueError as error:
            raise ValueError(
                f"{path.name} is not JSON ({error}). Create the run again: dalle-collab run create"
            ) from error
        return cls.from_mapping(values)

    def replace(self, **changes: Any) -> Self:
        """Return a copy with some settings changed."""
        return dataclasses.replace(self, **changes)


def stable_seed(*parts: object) -> int:
    """Return a 63-bit seed that depends only on the text of the parts, on every machine."""
    text = "\0".join(map(str, parts))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def _check_format(version: object) -> None:
    if version != FORMAT_VERSION:
        raise ValueError(
            f"{TRAINING_RUN_FILE} has format {version}, this package knows {FORMAT_VERSION}. "
            "Update the package: pip install -U dalle-collab"
        )


def _flat(values: Mapping[str, object]) -> dict[str, Any]:
    """Return the settings side by side."""
    sections = values.get("settings", {})
    if not isinstance(sections, Mapping):
        raise ValueError(f"settings in {TRAINING_RUN_FILE} is {sections!r}; expected an object of sections.")
    flat = {name: value for name, value in values.items() if name != "settings"}
    for name, section in sections.items():
        if name not in SECTIONS or not isinstance(section, Mapping):
            raise ValueError(
                f"Unknown section {name} in {TRAINING_RUN_FILE}; known: {', '.join(SECTIONS)}. "
                "Update the package: pip install -U dalle-collab"
            )
        known = {item.name for item in dataclasses.fields(SECTIONS[name])}
        if unknown := sorted(set(section) - known):
            raise ValueError(
                f"Unknown setting {', '.join(unknown)} in section {name} of {TRAINING_RUN_FILE}; "
                f"known: {sorted(known)}. Update the package: pip install -U dalle-collab"
            )
        flat |= section
    return flat
