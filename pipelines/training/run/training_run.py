"""What all peers of a training run must share, kept as `training_run.json` in the run's Model Hub repository."""

import dataclasses
import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from hub_tools.checks import check_choice, check_positive
from hub_tools.run_files import TRAINING_RUN_FILE
from pipelines.admission.settings import check_admission_settings

FORMAT_VERSION = 1
AVERAGING_COMPRESSIONS = ("size_adaptive_8bit", "blockwise_8bit", "float16", "none")
AGGREGATION_RULES = ("centered_clip", "mean", "coordinate_median")


@dataclass(frozen=True, kw_only=True)
class TrainingRun:
    """The settings that peers must share. Defaults are those of *Training Transformers Together*, section 3."""

    run_id: str
    """Name of the swarm, prefix of its keys in the DHT: letters, digits, `-` and `_`."""

    task: str = "text-to-image"
    """What is trained, as the Hub names it; see `tasks.choice`."""

    task_settings: dict[str, Any] = field(default_factory=dict)
    """What the task alone knows, such as the sequence length of a language model."""

    model_config: dict[str, Any] = field(default_factory=dict)
    """Arguments of the model's configuration: `DalleCollabConfig`, or a `model_type` of transformers and its own."""

    dataset_repository: str = ""
    """Dataset Hub repository, `ORG/NAME`: image-code shards, or text."""

    dataset_revision: str = ""
    """Commit of the dataset: all peers stream the same records."""

    entry_addresses: tuple[str, ...] = ()
    """Multiaddresses through which newcomers find the swarm; the auxiliary peer keeps them fresh."""

    target_batch_size: int = 4096
    """Samples that the swarm gathers for one epoch, that is, for one optimizer step; tokens where the task counts
    those."""

    num_epochs: int = 31_250
    """Length of the schedule; peers stop when the swarm reaches it."""

    num_warmup_epochs: int = 3_125
    """Epochs of linear warm-up from zero; afterwards the learning rate falls linearly to zero."""

    peak_learning_rate: float = 2.5e-3
    betas: tuple[float, float] = (0.9, 0.96)
    epsilon: float = 1e-6
    weight_decay: float = 0.045

    max_gradient_norm: float = 4.0
    """Global norm to which the averaged gradient is clipped."""

    optimizer_bits: int = 8
    """8: block-wise quantised LAMB statistics; 32: float32 statistics."""

    averaging_compression: str = "size_adaptive_8bit"
    """`size_adaptive_8bit`: 8 bits for tensors of at least `min_8bit_elements`, float16 below; `blockwise_8bit`: the
    same with a scale for every 4096 values, off by 1 % where the former is off by 26 to 48 % on heavy-tailed gradients;
    `float16`; or `none`."""

    min_8bit_elements: int = 2**16
    """Smallest number of elements that is sent in 8 bits (paper, section 3.3)."""

    delay_optimizer_step: bool = True
    """Run the optimizer on the CPU while the next micro-batch is computed; costs one micro-batch of staleness."""

    delay_gradient_averaging: bool = False
    """Average the gradients, too, while the next ones are computed; costs one epoch of staleness, hides the network."""

    local_steps: int = 1
    """Optimizer steps' worth of samples between two synchronisations (DiLoCo, Douillard et al. 2023); 1: average every
    gradient. Otherwise an epoch gathers `local_steps * target_batch_size` samples, peers make inner steps of their own,
    and what they send is how far they came; bytes per sample fall by this factor. Among three or more peers of very
    unlike speed choose `aggregation_rule: mean`: `centered_clip` takes one that came much further for an attacker."""

    inner_batch_size: int = 256
    """With local steps: samples of one inner step. `target_batch_size` over the number of peers makes `local_steps`
    inner steps of every epoch."""

    inner_optimizer: str = "lamb"
    """With local steps: `lamb` or `adamw`, on each peer's device, with `peak_learning_rate` and the settings below it.
    AdamW wants smaller rates, such as 4e-4."""

    outer_learning_rate: float = 0.7
    """With local steps: learning rate of the Nesterov steps along the averaged progress; 1 without momentum: plain
    averaging of the parameters."""

    outer_momentum: float = 0.9
    """With local steps: Nesterov momentum of the outer steps, in [0, 1)."""

    average_state_every: int = 5
    """Epochs between averagings of the parameters, which mend what partly failed rounds have pulled apart."""

    matchmaking_seconds: float = 10.0
    """Time for peers to find each other before a round. Increase if fewer than 90 % of peers join a round."""

    averaging_timeout_seconds: float = 120.0
    """A round that takes longer is given up. Increase on slow links, at least to twice the usual round."""

    progress_expiration_seconds: float = 30.0
    """A peer that is silent for this long no longer counts."""

    checkpoint_interval_epochs: int = 100
    """Epochs between checkpoints on the Model Hub."""

    seed: int = 0
    """Seed of the initial parameters, which every peer draws for itself and so need not download."""

    generation: int = 0
    """How often the run was rolled back. Each generation is a swarm of its own, so that peers which hold epochs that a
    rollback took back cannot bring them in again."""

    keep_optimizer_states: int = 10
    """Newest checkpoints whose optimizer states stay on the Hub; a rollback can reach no further back."""

    max_commits_per_hour: int = 60
    """Commits that the run's auxiliary peer makes at most in an hour; the Hub refuses more than about 128."""

    held_out_share: float = 0.01
    """Share of the dataset's records that nobody trains on, for the evaluation loss; 0: no evaluation, unless the
    dataset has a `validation` or `test` split."""

    num_evaluation_records: int = 256
    """Held-out records that the evaluation loss is the mean over."""

    evaluation_interval_epochs: int = 100
    """Epochs between evaluations."""

    reel_prompts: tuple[str, ...] = ()
    """Captions that are drawn again and again for the progress reel; empty: no reel."""

    reel_interval_epochs: int = 100
    """Epochs between pictures of the progress reel."""

    aggregation_rule: str = "centered_clip"
    """How the peers' gradients become one: `centered_clip`, which is the weighted mean as long as nobody stands out;
    `mean`, of gradients with clipped norms; or `coordinate_median`, which ignores sample counts."""

    momentum_before_averaging: bool = False
    """Peers average exponential means of their gradients, with the first of `betas` as momentum, and LAMB takes them as
    they are. Gradients of single peers are mostly noise, in which colluding attackers can hide; their means are not
    (Karimireddy et al., 2021, section 5). Switch it on where strangers may join, together with `betas` of [0.98, 0.96]
    and a `tau_ratio` of 1: seven hostile peers of sixteen then cost less than 5 % of the final loss
    (`tests/benchmarks/robust_aggregation.py`)."""

    tau_ratio: float = 2.0
    """Distance at which CenteredClip clips, in median distances. Decrease towards 1 if attackers are many; increase if
    honest peers are named as suspects."""

    num_clipping_iterations: int = 100
    """Most iterations of CenteredClip; they cost next to nothing."""

    max_norm_ratio: float = 4.0
    """No peer's gradient counts with more than this multiple of the median norm."""

    max_weight_ratio: float = 8.0
    """No peer counts for more samples than this multiple of the median peer's. Increase if one honest machine is faster
    than that; what a lie about samples can gain increases too."""

    min_share_averaged: float = 0.9
    """A round that averages a smaller share of the gradient is an error: counted, and parameters are averaged next."""

    authorization_service: str = ""
    """Address of the service that admits peers (`run authorize`); empty: the run is open to everybody."""

    authorization_key: str = ""
    """The service's public key: peers talk only to peers whose tokens it has signed."""

    package_version: str = "0.1.0"
    """Version of this package with which the run was created."""

    required_versions: dict[str, str] = field(default_factory=dict)
    """Versions that a peer has to have, by package, as pip writes them: `{"numpy": "<2.4,>=2.0"}`; also `python`."""

    format_version: int = field(default=FORMAT_VERSION)
    """Version of this file's format."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "entry_addresses", tuple(self.entry_addresses))
        object.__setattr__(self, "betas", tuple(self.betas))
        _check_format(self.format_version)
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,96}", self.run_id):
            raise ValueError(f"run_id is {self.run_id!r}; expected 1 to 96 letters, digits, '-' or '_'.")
        check_positive(self, "target_batch_size", "num_epochs", "peak_learning_rate", "epsilon", "max_gradient_norm")
        check_positive(self, "average_state_every", "matchmaking_seconds", "progress_expiration_seconds")
        check_positive(self, "checkpoint_interval_epochs", "min_8bit_elements")
        if not 0 <= self.num_warmup_epochs <= self.num_epochs:
            raise ValueError(
                f"num_warmup_epochs is {self.num_warmup_epochs}; expected 0 to num_epochs ({self.num_epochs})."
            )
        if self.averaging_timeout_seconds <= self.matchmaking_seconds:
            raise ValueError(
                f"averaging_timeout_seconds is {self.averaging_timeout_seconds}; expected more than "
                f"matchmaking_seconds ({self.matchmaking_seconds})."
            )
        check_choice("optimizer_bits", self.optimizer_bits, (8, 32))
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas is {self.betas}; expected two numbers of at least 0 and less than 1.")
        _check_versions(self.required_versions)
        _check_publishing(self)
        _check_averaging(self)
        check_admission_settings(self.authorization_service, self.authorization_key)
        _check_communication(self)

    @property
    def swarm_id(self) -> str:
        """Prefix of the swarm's keys in the DHT: the run's id, and its generation once it was rolled back."""
        return f"{self.run_id}-generation-{self.generation}" if self.generation else self.run_id

    @property
    def is_open(self) -> bool:
        """Whether everybody may join, with or without an account on the Hub."""
        return not self.authorization_service

    @property
    def samples_per_epoch(self) -> int:
        """Samples that the swarm gathers between two rounds of averaging."""
        return self.target_batch_size * self.local_steps

    def to_json(self) -> str:
        """Return the text of `training_run.json`."""
        return json.dumps(dataclasses.asdict(self), indent=2, sort_keys=True) + "\n"

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Self:
        """Build a run from parsed JSON; raises ValueError that names an unknown or missing setting."""
        _check_format(values.get("format_version", FORMAT_VERSION))
        known = {item.name for item in dataclasses.fields(cls)}
        if unknown := sorted(set(values) - known):
            raise ValueError(f"Unknown setting {', '.join(unknown)} in {TRAINING_RUN_FILE}; known: {sorted(known)}.")
        try:
            return cls(**values)
        except TypeError as error:
            raise ValueError(f"{TRAINING_RUN_FILE} is incomplete or has a value of a wrong type: {error}") from error

    @classmethod
    def from_file(cls, path: Path) -> Self:
        """Read `training_run.json`; raises ValueError if it is not valid."""
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
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


def _check_communication(run: TrainingRun) -> None:
    """Check the settings that say how often peers speak with each other, and what they do in between."""
    check_positive(run, "local_steps", "inner_batch_size", "outer_learning_rate")
    check_choice("inner_optimizer", run.inner_optimizer, ("lamb", "adamw"))
    if not 0 <= run.outer_momentum < 1:
        raise ValueError(f"outer_momentum is {run.outer_momentum}; expected at least 0 and less than 1.")
    if run.momentum_before_averaging and run.local_steps > 1:
        raise ValueError(
            f"momentum_before_averaging is on and local_steps is {run.local_steps}; peers that make steps of their own "
            "average how far they came, and outer_momentum follows. Cure: --set momentum_before_averaging=false"
        )
    if run.momentum_before_averaging and not run.betas[0]:
        raise ValueError("momentum_before_averaging is on and the first of betas is 0: there is no momentum to add.")
    if run.delay_gradient_averaging and not run.delay_optimizer_step:
        raise ValueError(
            "delay_gradient_averaging is on and delay_optimizer_step is off; the step cannot come before the "
            "gradients that it takes. Switch both on: --set delay_optimizer_step=true"
        )


def _check_averaging(run: TrainingRun) -> None:
    check_choice("averaging_compression", run.averaging_compression, AVERAGING_COMPRESSIONS)
    check_choice("aggregation_rule", run.aggregation_rule, AGGREGATION_RULES)
    check_positive(run, "num_clipping_iterations")
    for name in ("tau_ratio", "max_norm_ratio", "max_weight_ratio"):
        if not 1 <= getattr(run, name) < math.inf:
            raise ValueError(f"{name} is {getattr(run, name)}; expected a number of at least 1.")
    if not 0 < run.min_share_averaged <= 1:
        raise ValueError(f"min_share_averaged is {run.min_share_averaged}; expected more than 0 and at most 1.")


def _check_publishing(run: TrainingRun) -> None:
    object.__setattr__(run, "reel_prompts", tuple(run.reel_prompts))
    check_positive(run, "keep_optimizer_states", "max_commits_per_hour", "num_evaluation_records")
    check_positive(run, "evaluation_interval_epochs", "reel_interval_epochs")
    if run.generation < 0:
        raise ValueError(f"generation is {run.generation}; expected 0 or more.")
    if not 0 <= run.held_out_share < 1:
        raise ValueError(f"held_out_share is {run.held_out_share}; expected 0 or more and less than 1.")
    if len(run.reel_prompts) > 16 or not all(isinstance(prompt, str) and prompt for prompt in run.reel_prompts):
        raise ValueError(f"reel_prompts is {run.reel_prompts}; expected at most 16 captions.")


def _check_versions(versions: object) -> None:
    pattern = r"[A-Za-z0-9 .,<>=!~*+_-]{1,64}"
    pairs = versions.items() if isinstance(versions, dict) else [(versions, None)]
    for name, wanted in pairs:
        if not all(isinstance(text, str) and re.fullmatch(pattern, text) for text in (name, wanted)):
            raise ValueError(
                f"required_versions has {name!r}: {wanted!r}; expected names of packages with versions as pip writes "
                'them, such as "numpy": ">=2.0,<2.4".'
            )
