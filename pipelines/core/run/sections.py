"""The sections of a run's settings: each with its fields, their reasons, and its own checks.

`TrainingRun` has the fields of all of them; `training_run.json` has an object for each. Defaults are those of *Training
Transformers Together*, section 3.
"""

import math
import re
from dataclasses import Field, dataclass, field
from typing import ClassVar, Protocol

from hub_tools.checks import check_choice, check_positive
from pipelines.core.admission.settings import check_admission_settings

AVERAGING_COMPRESSIONS = ("blockwise_8bit", "float16", "none")
AGGREGATION_RULES = ("centered_clip", "mean", "coordinate_median")
OPTIMIZERS = ("lamb", "adamw", "muon")
SYNCHRONISATIONS = ("dense", "sparse")
WIRES = ("p2p", "hub")
WHO_CONTRIBUTES = ("members", "everybody")
MOST_CONTRIBUTIONS = 1024
WHO_MAY_DRAW = ("members", "everybody")
MOST_VALUES_PER_CHUNK = 4096
MOST_PROMPTS = 16


@dataclass(frozen=True, kw_only=True)
class DataSettings:
    """The dataset, and which part of it is held out."""

    dataset_repository: str = ""
    """Dataset Hub repository, `ORG/NAME`: image-code shards, or text."""

    dataset_revision: str = ""
    """Commit of the dataset: all peers stream the same records."""

    held_out_share: float = 0.01
    """Share of the dataset's records that are held out for the evaluation loss; 0: no evaluation, unless the
    dataset has a `validation` or `test` split."""

    def check(self) -> None:
        """Raise ValueError unless the settings are valid."""
        if not 0 <= self.held_out_share < 1:
            raise ValueError(f"held_out_share is {self.held_out_share}; expected 0 or more and less than 1.")


@dataclass(frozen=True, kw_only=True)
class OptimizerSettings:
    """The optimizer of the state that all peers share, and its schedule."""

    target_batch_size: int = 4096
    """Samples that the swarm gathers for one epoch, that is, for one optimizer step; tokens if the task counts
    those."""

    num_epochs: int = 31_250
    """Length of the schedule; peers stop when the swarm reaches it."""

    num_warmup_epochs: int = None  # type: ignore[assignment]  # `check` chooses a number where none is given
    """Epochs of linear warm-up from zero; afterwards the learning rate falls linearly to zero. If not set: a tenth of
    `num_epochs`."""

    optimizer: str = "lamb"
    """`lamb`; or `adamw`, or `muon`, which orthogonalises the momentum of matrices: both need smaller learning rates,
    such as 1e-3."""

    peak_learning_rate: float = 2.5e-3
    """Learning rate after the warm-up, from which it falls to zero."""

    betas: tuple[float, float] = (0.9, 0.96)
    """Decay of the means of gradients and of their squares."""

    epsilon: float = 1e-6
    """Added to the root of the mean square, by which steps are divided."""

    weight_decay: float = 0.045
    """Decoupled weight decay, of matrices only."""

    max_gradient_norm: float = 4.0
    """Global norm to which the averaged gradient is clipped."""

    optimizer_bits: int = 8
    """8: block-wise quantised statistics; 32: float32 statistics."""

    momentum_before_averaging: bool = False
    """Peers average exponential means of their gradients, with the first of `betas` as momentum; the optimizer adds
    none. Gradients of single peers are mostly noise, in which colluding attackers can hide; their means are not
    (Karimireddy et al., 2021, section 5). Enable it where strangers may join, together with `betas` of [0.98, 0.96]
    and a `tau_ratio` of 1: seven hostile peers of sixteen then cost less than 5 % of the final loss
    (`tests/benchmarks/robust_aggregation.py`)."""

    def check(self) -> None:
        """Raise ValueError unless the settings are valid."""
        object.__setattr__(self, "betas", tuple(self.betas))
        check_positive(self, "target_batch_size", "num_epochs", "peak_learning_rate", "epsilon", "max_gradient_norm")
        if self.num_warmup_epochs is None:
            object.__setattr__(self, "num_warmup_epochs", self.num_epochs // 10)  # type: ignore[unreachable]
        if not 0 <= self.num_warmup_epochs <= self.num_epochs:
            raise ValueError(
                f"num_warmup_epochs is {self.num_warmup_epochs}; expected 0 to num_epochs ({self.num_epochs})."
            )
        check_choice("optimizer", self.optimizer, OPTIMIZERS)
        check_choice("optimizer_bits", self.optimizer_bits, (8, 32))
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas is {self.betas}; expected two numbers of at least 0 and less than 1.")
        if self.momentum_before_averaging and not self.betas[0]:
            raise ValueError(
                "momentum_before_averaging is on and the first of betas is 0: there is no momentum to add."
            )


@dataclass(frozen=True, kw_only=True)
class LocalStepSettings:
    """Local steps between two synchronisations."""

    local_steps: int = 1
    """Optimizer steps' worth of samples between two synchronisations (DiLoCo, Douillard et al. 2023); 1: average every
    gradient. Otherwise an epoch gathers `local_steps * target_batch_size` samples, peers make local inner steps and
    send their progress; bytes per sample fall by this factor. With three or more peers of very different speeds choose
    `aggregation_rule: mean`: `centered_clip` takes one that made much more progress for an attacker."""

    inner_batch_size: int = 256
    """With local steps: samples of one inner step. `target_batch_size` over the number of peers makes `local_steps`
    inner steps of every epoch."""

    inner_optimizer: str = "lamb"
    """With local steps: `lamb`, `adamw` or `muon`, on each peer's device, with `peak_learning_rate` and the settings
    below it. AdamW and Muon need smaller rates, such as 4e-4."""

    outer_learning_rate: float = None  # type: ignore[assignment]  # `check` chooses one where none is given
    """With local steps: learning rate of the Nesterov steps along the averaged progress; 1 without momentum: plain
    averaging of the parameters. If not set: 0.7 with `inner_optimizer` `muon` and dense synchronisation, otherwise
    1."""

    outer_momentum: float = None  # type: ignore[assignment]  # the same
    """With local steps: Nesterov momentum of the outer steps, in [0, 1). If not set: 0.8 with `inner_optimizer` `muon`
    and dense synchronisation, otherwise 0: with `lamb`, DiLoCo's 0.7 and 0.9 diverged or stayed behind in runs of few
    rounds, or with few local steps."""

    synchronisation: str = "dense"
    """With local steps: `dense`, peers average their progress through each other; or `sparse`, each gives the largest
    values of its progress to all others, at most 0.03 bytes a parameter (SparseLoCo, Sarfi et al. 2025). Sparse needs
    `outer_momentum` 0 and `aggregation_rule` `mean`, by samples, of progress no longer than these allow."""

    sparse_values_per_chunk: int = 64
    """With sparse synchronisation: how many of every 4096 values are sent."""

    sparse_error_decay: float = 0.95
    """With sparse synchronisation: what is left with every round of the progress that was not sent yet, in (0, 1]."""

    def check(self) -> None:
        """Raise ValueError unless the settings are valid."""
        is_muons = self.local_steps > 1 and self.inner_optimizer == "muon" and self.synchronisation == "dense"
        rate, momentum = (0.7, 0.8) if is_muons else (1.0, 0.0)
        for name, value in {"outer_learning_rate": rate, "outer_momentum": momentum}.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)
        check_positive(self, "local_steps", "inner_batch_size", "outer_learning_rate")
        check_choice("inner_optimizer", self.inner_optimizer, OPTIMIZERS)
        if not 0 <= self.outer_momentum < 1:
            raise ValueError(f"outer_momentum is {self.outer_momentum}; expected at least 0 and less than 1.")
        check_choice("synchronisation", self.synchronisation, SYNCHRONISATIONS)
        if not 1 <= self.sparse_values_per_chunk <= MOST_VALUES_PER_CHUNK:
            raise ValueError(
                f"sparse_values_per_chunk is {self.sparse_values_per_chunk}; expected 1 to {MOST_VALUES_PER_CHUNK}."
            )
        if not 0 < self.sparse_error_decay <= 1:
            raise ValueError(f"sparse_error_decay is {self.sparse_error_decay}; expected more than 0 and at most 1.")


@dataclass(frozen=True, kw_only=True)
class AveragingSettings:
    """How peers find each other, and how averages are sent."""

    averaging_compression: str = "blockwise_8bit"
    """`blockwise_8bit`: 8 bits with a scale for every 4096 values in tensors of at least `min_8bit_elements`, float16
    below; `float16`; or `none`."""

    min_8bit_elements: int = 2**16
    """Smallest number of elements that is sent in 8 bits (paper, section 3.3)."""

    delay_optimizer_step: bool = True
    """Run the optimizer on the CPU while the next micro-batch is computed; costs one micro-batch of staleness."""

    delay_gradient_averaging: bool = False
    """Also average the gradients while the next ones are computed; costs one epoch of staleness, hides the network."""

    matchmaking_seconds: float = 10.0
    """Time for peers to find each other before a round. Increase if fewer than 90 % of peers join a round."""

    averaging_timeout_seconds: float = 300.0
    """A round that takes longer times out, an attempt at it after half of that; a peer whose link needs longer is left
    out. Increase on slow links, at least to three times what the slowest needs to send its vector."""

    progress_expiration_seconds: float = 30.0
    """A peer that is silent for this long no longer counts."""

    min_share_averaged: float = 0.9
    """A round that averages less of the gradient is an error and is counted; the rest of the average is zero."""

    def check(self) -> None:
        """Raise ValueError unless the settings are valid."""
        check_positive(self, "matchmaking_seconds", "progress_expiration_seconds")
        check_positive(self, "min_8bit_elements")
        check_choice("averaging_compression", self.averaging_compression, AVERAGING_COMPRESSIONS)
        if self.averaging_timeout_seconds <= self.matchmaking_seconds:
            raise ValueError(
                f"averaging_timeout_seconds is {self.averaging_timeout_seconds}; expected more than "
                f"matchmaking_seconds ({self.matchmaking_seconds})."
            )
        if self.delay_gradient_averaging and not self.delay_optimizer_step:
            raise ValueError(
                "delay_gradient_averaging is on and delay_optimizer_step is off; the step cannot precede the "
                "gradients that it uses. Enable both: --set delay_optimizer_step=true"
            )
        if not 0 < self.min_share_averaged <= 1:
            raise ValueError(f"min_share_averaged is {self.min_share_averaged}; expected more than 0 and at most 1.")


@dataclass(frozen=True, kw_only=True)
class WireSettings:
    """How peers reach each other."""

    wire: str = "p2p"
    """`p2p`: peers connect to each other, and at least one must be reachable; `hub`: they give and take files on the
    Hub alone, from any network, in rounds that the auxiliary peer closes. `hub` needs sparse synchronisation and a
    `bucket`."""

    window_seconds: float = 600.0
    """With `wire` `hub`: time from round to round. Exchange takes 15 to 40 s, during which peers train on."""

    contributions_per_round: int = 32
    """With `wire` `hub`: contributions that count in a round; of more, so many are drawn."""

    kept_rounds: int = 100
    """With `wire` `hub`: newest rounds whose contributions stay in the bucket, for newcomers and audits. At least
    twice `bucket_interval_epochs`."""

    who_may_contribute: str = "members"
    """With `wire` `hub`: `members`, who may create buckets in the run's organisation; `everybody`: strangers, too, who
    ask by a pull request, are admitted by the auxiliary peer, and may outnumber all others."""

    def check(self) -> None:
        """Raise ValueError unless the settings are valid."""
        check_choice("wire", self.wire, WIRES)
        check_choice("who_may_contribute", self.who_may_contribute, WHO_CONTRIBUTES)
        check_positive(self, "window_seconds", "contributions_per_round", "kept_rounds")
        if self.contributions_per_round > MOST_CONTRIBUTIONS:
            raise ValueError(
                f"contributions_per_round is {self.contributions_per_round}; expected at most {MOST_CONTRIBUTIONS}."
            )


@dataclass(frozen=True, kw_only=True)
class AggregationSettings:
    """How the peers' gradients are aggregated, and how much influence a single peer can have."""

    aggregation_rule: str = "centered_clip"
    """How the peers' gradients are aggregated: `centered_clip`, the weighted mean as long as nobody stands out;
    `mean`, of gradients with clipped norms; or `coordinate_median`, which ignores sample counts."""

    tau_ratio: float = 2.0
    """Distance at which CenteredClip clips, in median distances. Decrease towards 1 if attackers are many; increase if
    honest peers are named as suspects."""

    num_clipping_iterations: int = 100
    """Most iterations of CenteredClip; they cost next to nothing."""

    max_norm_ratio: float = 4.0
    """Longer gradients are clipped to this multiple of the median norm."""

    max_weight_ratio: float = 8.0
    """No peer counts for more samples than this multiple of the median peer's. Increase if one honest machine is faster
    than that; a lie about samples then gains more, too."""

    def check(self) -> None:
        """Raise ValueError unless the settings are valid."""
        check_choice("aggregation_rule", self.aggregation_rule, AGGREGATION_RULES)
        check_positive(self, "num_clipping_iterations")
        for name in ("tau_ratio", "max_norm_ratio", "max_weight_ratio"):
            if not 1 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} is {getattr(self, name)}; expected a number of at least 1.")


@dataclass(frozen=True, kw_only=True)
class PublishingSettings:
    """What the auxiliary peer publishes, evaluates and draws, and how often."""

    checkpoint_interval_epochs: int = 100
    """Epochs between checkpoints on the Model Hub."""

    keep_optimizer_states: int = 10
    """Newest checkpoints whose optimizer states stay on the Hub; a rollback can reach no further back."""

    max_commits_per_hour: int = 60
    """Most commits that the run's auxiliary peer makes in an hour; the Hub refuses more than about 128."""

    bucket: str = ""
    """Storage Bucket, `ORG/NAME`, that has the metrics as they change and checkpoints between those of the repository;
    empty: none."""

    bucket_interval_epochs: int = 10
    """With a bucket: epochs between checkpoints in it. Each is as large as one of the repository, and only the newest
    two are kept."""

    num_evaluation_records: int = 256
    """Held-out records that the evaluation loss is the mean over."""

    evaluation_interval_epochs: int = 100
    """Epochs between evaluations."""

    reel_prompts: tuple[str, ...] = ()
    """Captions drawn repeatedly for the progress reel; empty: no reel."""

    reel_interval_epochs: int = 100
    """Epochs between pictures of the progress reel."""

    def check(self) -> None:
        """Raise ValueError unless the settings are valid."""
        object.__setattr__(self, "reel_prompts", tuple(self.reel_prompts))
        check_positive(self, "checkpoint_interval_epochs", "keep_optimizer_states", "max_commits_per_hour")
        check_positive(self, "num_evaluation_records", "evaluation_interval_epochs", "reel_interval_epochs")
        check_positive(self, "bucket_interval_epochs")
        if self.bucket and not re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", self.bucket):
            raise ValueError(f"bucket is {self.bucket!r}; expected the name of a Storage Bucket, such as ORG/NAME.")
        if len(self.reel_prompts) > MOST_PROMPTS or not all(isinstance(p, str) and p for p in self.reel_prompts):
            raise ValueError(f"reel_prompts is {self.reel_prompts}; expected at most {MOST_PROMPTS} captions.")


@dataclass(frozen=True, kw_only=True)
class AdmissionSettings:
    """Who may join."""

    authorization_service: str = ""
    """Address of the service that admits peers (`run authorize`); empty: the run is open to everybody."""

    authorization_key: str = ""
    """The service's public key: peers talk only to peers whose tokens it has signed."""

    def check(self) -> None:
        """Raise ValueError unless the settings are valid."""
        check_admission_settings(self.authorization_service, self.authorization_key)


@dataclass(frozen=True, kw_only=True)
class ServingSettings:
    """Who may use what volunteers serve of the model, and how much of one server."""

    who_may_draw: str = "members"
    """`members`: whom the run's authority admits; `everybody`: strangers, too, who then draw and use served layers, and
    learn of the swarm who serves. In a run without an authority everybody is a member."""

    streams_per_peer: int = 8
    """Streams that one peer may have at one server."""

    streams_per_address: int = 32
    """The same of all peers at one IPv4 address or IPv6 /48 network: peer ids cost nothing, addresses do."""

    candidates_per_peer: int = 128
    """Candidates of one peer that wait or are drawn at one server."""

    candidates_per_address: int = 256
    """The same of all peers at one address."""

    def check(self) -> None:
        """Raise ValueError unless the settings are valid."""
        check_choice("who_may_draw", self.who_may_draw, WHO_MAY_DRAW)
        for what in ("streams", "candidates"):
            check_positive(self, f"{what}_per_peer", f"{what}_per_address")
            of_peer, of_address = getattr(self, f"{what}_per_peer"), getattr(self, f"{what}_per_address")
            if of_peer > of_address:
                raise ValueError(
                    f"{what}_per_peer is {of_peer} and {what}_per_address is {of_address}; expected no more of one "
                    "peer than of all at its address."
                )


@dataclass(frozen=True, kw_only=True)
class VersionSettings:
    """Versions of packages."""

    package_version: str = "0.1.0"
    """Version of this package with which the run was created."""

    required_versions: dict[str, str] = field(default_factory=dict)
    """Versions that a peer must have, by package, as pip writes them: `{"numpy": "<2.4,>=2.0"}`; also `python`."""

    def check(self) -> None:
        """Raise ValueError unless the settings are valid."""
        pattern = r"[A-Za-z0-9 .,<>=!~*+_-]{1,64}"
        versions: object = self.required_versions
        pairs = versions.items() if isinstance(versions, dict) else [(versions, None)]
        for name, wanted in pairs:
            if not all(isinstance(text, str) and re.fullmatch(pattern, text) for text in (name, wanted)):
                raise ValueError(
                    f"required_versions has {name!r}: {wanted!r}; expected names of packages with versions as pip "
                    'writes them, such as "numpy": ">=2.0,<2.4".'
                )


class Section(Protocol):
    """The interface of every section: a dataclass that checks its values."""

    __dataclass_fields__: ClassVar[dict[str, Field]]

    def check(self) -> None:
        """Raise ValueError naming a setting with an invalid value."""


SECTIONS: dict[str, type[Section]] = {
    "data": DataSettings,
    "optimizer": OptimizerSettings,
    "local_steps": LocalStepSettings,
    "averaging": AveragingSettings,
    "wire": WireSettings,
    "aggregation": AggregationSettings,
    "publishing": PublishingSettings,
    "admission": AdmissionSettings,
    "serving": ServingSettings,
    "versions": VersionSettings,
}
"""Name in `training_run.json` and class of each section."""
