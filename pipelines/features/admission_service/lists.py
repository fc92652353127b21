"""Who may join a run: members of its organisation, with exceptions in the run's `admission.json`."""

import re
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from huggingface_hub import HfApi
from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

from hub_tools.foreign.json_texts import parse_json
from hub_tools.run_files import ADMISSION_LISTS_FILE
from pipelines.core.admission.tokens import USERNAME_PATTERN

EVERYBODY = "*"
MAX_NAMES = 100_000


@dataclass(frozen=True, kw_only=True)
class AdmissionLists:
    """Exceptions to the rule that members of the run's organisation may join. Names are case-insensitive."""

    allow: frozenset[str] = frozenset()
    """Users who may join although they are not members; `*` stands for every user of the Hub."""

    ban: frozenset[str] = frozenset()
    """Users who may not join, whatever else applies."""

    @classmethod
    def from_json(cls, text: str) -> "AdmissionLists":
        """Read the lists; raises ValueError that says what is wrong with them and shows a correct example."""
        example = 'expected for example {"allow": ["carol"], "ban": ["mallory"]}'
        try:
            values = parse_json(text)
        except ValueError as error:
            raise ValueError(f"{ADMISSION_LISTS_FILE} is not JSON ({error}); {example}.") from error
        if not isinstance(values, dict) or not set(values) <= {"allow", "ban"}:
            raise ValueError(f"{ADMISSION_LISTS_FILE} has something other than the lists allow and ban; {example}.")
        names = {key: _read_names(key, value, example) for key, value in values.items()}
        if EVERYBODY in names.get("ban", ()):
            raise ValueError(f"{ADMISSION_LISTS_FILE} bans {EVERYBODY!r}, but a ban is for single users; {example}.")
        return cls(**names)


def objection_to(
    username: str, organisations: Collection[str], *, organisation: str, lists: AdmissionLists
) -> str | None:
    """Return why a user may not join: `banned` or `not_member`; None if the user may. A ban overrides everything."""
    name, members = username.casefold(), {name.casefold() for name in (username, *organisations)}
    if name in lists.ban:
        return "banned"
    if EVERYBODY in lists.allow or name in lists.allow or organisation.casefold() in members:
        return None
    return "not_member"


@dataclass
class ListsOnHub:
    """The newest lists in the run's repository; keeps the last valid ones if the newest are invalid."""

    repository: str
    api: HfApi = field(repr=False)
    cache: Path
    """Folder for downloads."""

    lists: AdmissionLists = AdmissionLists()
    problem: str | None = None
    """What is wrong with the newest version, while an older one is in force."""

    _commit: str | None = None

    def read(self) -> AdmissionLists:
        """Return the current lists on the Hub.

        Raises:
            Exception: an error of the Hub's client, when the Hub does not answer; the last valid lists are kept.
        """
        commit = self.api.repo_info(self.repository).sha
        if commit is None or commit != self._commit:
            self._take_over(commit)
        return self.lists

    def _take_over(self, commit: str | None) -> None:
        try:
            path = self.api.hf_hub_download(
                self.repository, ADMISSION_LISTS_FILE, revision=commit, cache_dir=self.cache
            )
            text = Path(path).read_bytes()
        except LocalEntryNotFoundError:
            raise  # the Hub went down: that does not mean that the file was removed, which would lift all bans
        except EntryNotFoundError:
            text = b"{}"
        try:
            self.lists, self.problem = AdmissionLists.from_json(text.decode()), None
        except ValueError as error:
            self.problem = str(error)
        self._commit = commit


def _read_names(key: str, value: object, example: str) -> frozenset[str]:
    if not isinstance(value, list) or len(value) > MAX_NAMES:
        raise ValueError(f"{key!r} in {ADMISSION_LISTS_FILE} is not a list of at most {MAX_NAMES} names; {example}.")
    for name in value:
        if not isinstance(name, str) or (name != EVERYBODY and not re.fullmatch(USERNAME_PATTERN, name)):
            raise ValueError(f"{key!r} in {ADMISSION_LISTS_FILE} has {name!r}, which is not a user name; {example}.")
    return frozenset(name.casefold() for name in value)
