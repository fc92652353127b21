"""Which labelled dataset a checkpoint is judged by: what a short text names, and which columns and splits it means."""

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hub_tools.foreign.column_names import find_column

TOKENS, SENTENCES = "token classification", "sentence classification"
SPECIFICATION = "REPO[:CONFIG][,text=COLUMN][,label=COLUMN][,train=SPLIT][,test=SPLIT][,revision=REVISION]"

TEXT_COLUMNS = {TOKENS: ("tokens", "words"), SENTENCES: ("text", "sentence", "content")}
LABEL_COLUMNS = {TOKENS: ("ner_tags", "tags", "labels"), SENTENCES: ("label", "labels", "category")}
VALIDATION_SPLITS, TEST_SPLITS = ("validation", "valid", "dev"), ("test", "validation", "valid", "dev")


@dataclass(frozen=True, kw_only=True)
class LabelledSource:
    """A labelled dataset of the Hub, or a folder with one."""

    kind: str
    """`TOKENS`: every word has a tag; `SENTENCES`: every text has a class."""

    repository: str
    configuration: str = ""
    """Configuration of a dataset that has several; empty: its only one."""

    text: str = ""
    """Column with the words, or the text, in any case; empty: the first of `TEXT_COLUMNS` that there is."""

    label: str = ""
    """Column with the tags, or the class, in any case; empty: the first of `LABEL_COLUMNS` that there is."""

    train: str = "train"
    """Split to fine-tune on."""

    test: str = ""
    """Split to measure on; empty: the first of `TEST_SPLITS` that there is, else a part of the training split."""

    revision: str = "main"

    @property
    def name(self) -> str:
        """The text that names it."""
        place = f"{self.repository}:{self.configuration}" if self.configuration else self.repository
        settings = {
            item.name: getattr(self, item.name) for item in _settings() if getattr(self, item.name) != item.default
        }
        return ",".join([place, *(f"{name}={value}" for name, value in settings.items())])

    @classmethod
    def from_text(cls, kind: str, text: str) -> "LabelledSource":
        """Return the source that a text like `SPECIFICATION` names; raises ValueError saying what is wrong with it."""
        place, *settings = text.split(",")
        repository, _, configuration = place.partition(":")
        known = [item.name for item in _settings()]
        values = dict(setting.partition("=")[::2] for setting in settings)
        wrong = [name for name, value in values.items() if name not in known or not value]
        if not repository or wrong or len(values) < len(settings):
            raise ValueError(f"{text!r} names no labelled dataset. Expected {SPECIFICATION}")
        return cls(kind=kind, repository=repository, configuration=configuration, **values)

    def columns(self, names: Sequence[str]) -> tuple[str, str]:
        """Return which of a dataset's columns have text and labels; raises ValueError if there are none."""
        return (
            self._column("text", self.text, TEXT_COLUMNS[self.kind], names),
            self._column("label", self.label, LABEL_COLUMNS[self.kind], names),
        )

    def _column(self, key: str, chosen: str, usual: Sequence[str], names: Sequence[str]) -> str:
        found = find_column(names, *([chosen] if chosen else usual))
        if found is None:
            wanted = f"no column {chosen}" if chosen else f"none of the columns {', '.join(usual)}"
            raise ValueError(
                f"{self.name} has {wanted}; it has {', '.join(names)}. Name the one to use: "
                f"{self.repository},{key}=COLUMN"
            )
        return found

    def splits(self, names: Sequence[str]) -> dict[str, str]:
        """Return which of a dataset's splits `train`, `validation` and `test` examples come from, maybe the same one.

        Raises:
            ValueError: a split that was named is not there.
        """
        if missing := {self.train, self.test or self.train} - set(names):
            raise ValueError(f"{self.name} has no split {', '.join(sorted(missing))}; it has {', '.join(names)}.")
        others = [name for name in names if name != self.train]
        test = self.test or _first_of(TEST_SPLITS, others) or self.train
        validation = _first_of(VALIDATION_SPLITS, [name for name in others if name != test])
        return dict(train=self.train, validation=validation or self.train, test=test)


def _settings() -> tuple[dataclasses.Field, ...]:
    """Return what follows the repository and its configuration."""
    return dataclasses.fields(LabelledSource)[3:]


def _first_of(wanted: Iterable[str], names: Sequence[str]) -> str | None:
    return next((name for name in wanted if name in names), None)
