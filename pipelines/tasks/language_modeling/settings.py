"""Settings of a language run besides those of every run: `task_settings` of `training_run.json`."""

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from hub_tools.checks import check_known

FILL_MASK, TEXT_GENERATION = "fill-mask", "text-generation"
LANGUAGE_TASKS = (FILL_MASK, TEXT_GENERATION)
"""Names of the Hub's pipelines, also used for tasks."""

SHORTEST_SEQUENCE, LONGEST_SEQUENCE = 8, 2**17


@dataclass(frozen=True, kw_only=True)
class LanguageSettings:
    """Where the text is, and how it becomes sequences of tokens."""

    text_column: str = "text"
    """Column of the dataset with the documents, in any case."""

    dataset_subset: str = ""
    """Subset of a dataset that has several, such as `wikitext-2-raw-v1`; empty: its only one."""

    sequence_length: int = 512
    """Tokens of the longest sequence, including special ones."""

    mask_probability: float = 0.15
    """With `fill-mask`: share of the tokens, or of the words, that are predicted. Of single tokens four fifths are
    masked, a tenth is replaced by others and a tenth is unchanged (Devlin et al., 2019); whole words are masked."""

    whole_word_masks: bool = False
    """With `fill-mask`: predict all tokens of a word together."""

    start_from: str = ""
    """Model `ORG/NAME` of the Hub whose parameters the run starts from; empty: random ones."""

    start_from_revision: str = ""
    """Commit of that model: all peers start with the same parameters."""

    def __post_init__(self) -> None:
        for item in dataclasses.fields(self):
            _check_type(item.name, getattr(self, item.name), type(item.default))
        if not SHORTEST_SEQUENCE <= self.sequence_length <= LONGEST_SEQUENCE:
            raise ValueError(
                f"sequence_length is {self.sequence_length}; expected {SHORTEST_SEQUENCE} to {LONGEST_SEQUENCE}."
            )
        if not 0.01 <= self.mask_probability <= 0.9:
            raise ValueError(f"mask_probability is {self.mask_probability}; expected 0.01 to 0.9.")
        if not self.text_column:
            raise ValueError("text_column is empty; expected the name of a column.")
        _check_start(self.start_from, self.start_from_revision)

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Self:
        """Return the settings of a run's `task_settings`; raises ValueError naming what is unknown or wrong."""
        cure = "All settings: dalle-collab run settings --task fill-mask"
        check_known(values, (item.name for item in dataclasses.fields(cls)), of="a language model's run", cure=cure)
        return cls(**values)

    def sample_weight(self, task: str) -> float:
        """Return how many tokens of a sequence of full length are predicted."""
        if task == FILL_MASK:
            return max(1.0, self.sequence_length * self.mask_probability)
        return self.sequence_length - 1.0


def _check_type(name: str, value: object, expected: type) -> None:
    is_number = expected is float and type(value) in (int, float)
    if type(value) is not expected and not is_number:
        raise ValueError(f"{name} is {value!r}; expected a value of type {expected.__name__}.")


def _check_start(repository: str, revision: str) -> None:
    if bool(repository) != bool(revision):
        raise ValueError(
            f"start_from is {repository!r} and start_from_revision is {revision!r}; expected both, or neither."
        )
    if repository and not re.fullmatch(r"[\w.-]+/[\w.-]+", repository):
        raise ValueError(f"start_from is {repository!r}; expected a model of the Hub, ORG/NAME.")
    if revision and not re.fullmatch(r"[0-9a-f]{40}", revision):
        raise ValueError(f"start_from_revision is {revision!r}; expected a commit of 40 hexadecimal digits.")
