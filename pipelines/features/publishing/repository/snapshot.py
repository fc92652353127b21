"""The run's repository at one commit: everything read is consistent, whatever is published meanwhile."""

import dataclasses
import logging
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Self

import httpx2
from huggingface_hub import HfApi, constants
from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError, RepositoryNotFoundError
from huggingface_hub.utils import filter_repo_objects, tqdm

from hub_tools.atomic_files import file_digest
from hub_tools.endpoint import current_endpoint
from hub_tools.foreign.downloads import fetch_file, fetch_files, listed_files
from hub_tools.foreign.json_texts import parse_json
from hub_tools.hub_client import is_outage
from hub_tools.run_files import (
    CARD_FILE,
    CONFIG_FILE,
    ENTRIES_FILE,
    MANIFEST_FILE,
    METRICS_FOLDER,
    PROCESSOR_FILES,
    PUBLISHER_KEYS_FILE,
    REEL_FOLDER,
    RESULTS_FOLDER,
    RUN_STATE_FILE,
    TRAINING_RUN_FILE,
    WEIGHTS_FILE,
)
from pipelines.core.run.training_run import TrainingRun
from pipelines.core.swarm_time import SWARM_TIME
from pipelines.features.memory_estimate.hub_config import fetch_model
from pipelines.features.publishing.repository.entries import CURE, EntriesRefusedError, SignedEntries
from pipelines.features.publishing.repository.key_list import PUBLISHER, KeyList, TrustedKeys, read_key_list
from pipelines.features.publishing.repository.manifest import (
    CheckpointManifest,
    CheckpointRefusedError,
    FileDigest,
    digest_file,
    manifest_digest,
    read_manifest,
    signer_of,
    verify_checkpoint,
)

if TYPE_CHECKING:
    from pipelines.features.publishing.publishable_task import PublishableTask

logger = logging.getLogger(__name__)

NAMES_OF_NUM_LAYERS = ("num_hidden_layers", "n_layer", "num_layers")
"""How models call their number of layers."""

MOST_LAYERS = 4096
NOT_OF_A_CHECKPOINT = (f"{METRICS_FOLDER}/*", f"{REEL_FOLDER}/*", f"{RESULTS_FOLDER}/*", "*.md", "*.png")


@dataclass(frozen=True, kw_only=True)
class RunSnapshot:
    """A run's repository at one commit.

    Settings are read at once. All else is downloaded from the same commit on first use, and may raise ConnectionError
    while the Hub is down.
    """

    repository: str
    commit: str
    run: TrainingRun
    in_cache: bool = True
    """Whether small files use the Hub client's cache."""

    trusted: TrustedKeys | None = None
    """What this process knows of the run's keys; None: the commit's list is all there is."""

    @classmethod
    def read(cls, repository: str, revision: str | None = None, *, in_cache: bool = True) -> Self:
        """Read the newest commit, or that of a branch or tag; while the Hub is down, the one in the cache.

        `in_cache=False` is for polling every minute for months: the cache is neither read nor filled.

        Raises:
            ValueError: there is no such repository, or it is not a training run.
            OSError, httpx2.HTTPError: the Hub does not answer, and the cache has nothing of the run.
        """
        with ExitStack() as stack:
            try:
                if not in_cache:
                    # Fails at once while the Hub is down; a download without a cached copy would retry for long.
                    revision = HfApi().repo_info(repository, revision=revision).sha
                path = _download(repository, TRAINING_RUN_FILE, revision, _cache_folder(stack, in_cache))
            except RepositoryNotFoundError as error:
                raise ValueError(
                    f"There is no model repository {repository} on this Hub, or your token has no access to it. "
                    "Check the name and HF_ENDPOINT; log in with: hf auth login"
                ) from error
            if path is None:
                raise ValueError(
                    f"{repository} has no {TRAINING_RUN_FILE}: it is not a training run. Its organiser creates one "
                    f"with: dalle-collab run create {repository} --dataset ORG/DATASET"
                )
            # One request both resolves the commit and fetches the file; the client stores it under snapshots/COMMIT.
            run = TrainingRun.from_file(path)
            return cls(repository=repository, commit=path.parent.name, run=run, in_cache=in_cache)

    def trusting(self, keys: TrustedKeys) -> Self:
        """Add this commit's list of keys to what the process trusts; return the snapshot as that process sees it.

        Raises KeysRefusedError if the list is refused and there was none before.
        """
        keys.take(self.run, self._text(PUBLISHER_KEYS_FILE))
        return dataclasses.replace(self, trusted=keys)

    @cached_property
    def epoch(self) -> int | None:
        """Epoch of the newest checkpoint, as its `run_state.json` says; None while there is none."""
        if (text := self._text(RUN_STATE_FILE)) is None:
            return None
        state = parse_json(text)
        epoch = state.get("epoch") if isinstance(state, dict) else None
        if type(epoch) is not int or not 0 <= epoch < 2**53:
            raise ValueError(
                f"{RUN_STATE_FILE} of {self.repository} has the epoch {str(epoch)[:40]}; expected a count."
            )
        return epoch

    @cached_property
    def keys(self) -> KeyList:
        """The run's keys: those that the process trusts, or else the commit's list, which raises KeysRefusedError."""
        if self.trusted is not None:
            return self.trusted.newest()
        return read_key_list(self._text(PUBLISHER_KEYS_FILE), self.run)

    @cached_property
    def signed_entries(self) -> SignedEntries | None:
        """Where newcomers find the swarm, as a publisher has signed it; None in a run that has none, or no organiser.

        Raises EntriesRefusedError if nobody of the run has signed it lately, and KeysRefusedError.
        """
        if not self.run.organiser_key:
            return None
        if (text := self._text(ENTRIES_FILE)) is not None:
            return SignedEntries.read(text, self.keys, self.run, SWARM_TIME())
        if self.run.entry_addresses and self.keys.holders(PUBLISHER, at=SWARM_TIME()):
            raise EntriesRefusedError(
                f"{self.repository} has no {ENTRIES_FILE}, but publishers to sign it: somebody has removed it, or they "
                f"are of an older version. {CURE}"
            )
        return None

    @cached_property
    def run_to_enter(self) -> TrainingRun:
        """The run's settings, with the entry addresses that count; raises what `signed_entries` raises."""
        signed = self.signed_entries
        return self.run if signed is None else self.run.replace(entry_addresses=signed.addresses)

    @cached_property
    def manifest(self) -> CheckpointManifest | None:
        """The manifest of the newest checkpoint; None while there is no signed one.

        Raises CheckpointRefusedError if no publisher of the run signed it, or if it is not of this run and generation.
        """
        return self.manifest_under(self.keys) if self._manifest_text is not None else None

    def manifest_under(self, keys: KeyList) -> CheckpointManifest | None:
        """The same for another list of keys."""
        return None if self._manifest_text is None else read_manifest(self._manifest_text, keys, self.run)

    @cached_property
    def signed_files(self) -> Mapping[str, FileDigest] | None:
        """What the manifest of the newest checkpoint lists; None in a run without keys, or without a checkpoint.

        Raises CheckpointRefusedError as `manifest` does, and if that of a checkpoint was removed.
        """
        if self.manifest is not None:
            return self.manifest.files
        has_keys = self.keys.entries or self.run.organiser_key
        if has_keys and any(name == RUN_STATE_FILE or name.endswith(".safetensors") for name in self.file_names):
            raise CheckpointRefusedError(
                f"{self.repository} at {self.commit[:12]} has no {MANIFEST_FILE}, but the run has keys to sign "
                "checkpoints with. Somebody has removed it; load an older epoch, or ask the run's organiser."
            )
        return None

    @cached_property
    def weights_sha256(self) -> str | None:
        """SHA-256 of the newest weights, which are not downloaded for it; None while there are none.

        Raises CheckpointRefusedError if no publisher of the run has signed them.
        """
        if self.signed_files is not None:
            return self.signed_files[WEIGHTS_FILE].sha256
        for entry in HfApi().get_paths_info(self.repository, [WEIGHTS_FILE], revision=self.commit):
            if (stored := getattr(entry, "lfs", None)) is not None:
                return str(stored.sha256)
        return None

    @cached_property
    def num_layers(self) -> int | None:
        """Layers of the published model; None while there is none, or if its configuration does not say."""
        text = self._text(CONFIG_FILE)
        config = {} if text is None else parse_json(text)
        counts = [config.get(name) for name in NAMES_OF_NUM_LAYERS] if isinstance(config, dict) else []
        return next((count for count in counts if type(count) is int and 0 < count <= MOST_LAYERS), None)

    @cached_property
    def card(self) -> str | None:
        """The text of README.md; None if there is none."""
        return self._text(CARD_FILE)

    @property
    def manifest_signer(self) -> str | None:
        """The key with which the manifest says that it is signed."""
        return None if self._manifest_text is None else signer_of(self._manifest_text)

    @property
    def manifest_sha256(self) -> str | None:
        """SHA-256 of the manifest's file."""
        return None if self._manifest_text is None else manifest_digest(self._manifest_text)

    @property
    def signed_epoch(self) -> int:
        """Epoch of the newest signed checkpoint, or 0; raises what `manifest` raises."""
        return self.manifest.epoch if self.manifest else 0

    @cached_property
    def file_names(self) -> frozenset[str]:
        """Names of all files."""
        return frozenset(file.path for file in listed_files(self.repository, self.commit))

    def download(self, name: str) -> Path | None:
        """Download one file into the cache; None if the commit has none of that name."""
        return _download(self.repository, name, self.commit)

    def download_matching(
        self, *patterns: str, cache: Path | None = None, most_weights_bytes: int | None = None
    ) -> Path:
        """Download the files whose names match, into a separate cache if one is given; return their folder.

        They are small, and there may be none yet: nothing is shown of it.
        """
        return fetch_files(
            self.repository, revision=self.commit, patterns=patterns, cache_dir=cache,
            most_weights_bytes=most_weights_bytes, tqdm_class=_NoBar,
        )  # fmt: skip

    def download_signed(self, patterns: Sequence[str] = PROCESSOR_FILES) -> Path:
        """Download the matching files of a checkpoint into a folder without others; of an unsigned one, all that match.

        Raises:
            CheckpointRefusedError: one is not what the manifest says, or the manifest was removed. What it does not
                list is not read.
        """
        if (files := self.signed_files) is None:
            return fetch_model(self.repository, revision=self.commit, patterns=patterns, tqdm_class=_NoBar)
        listed = {name: files[name] for name in filter_repo_objects(files, allow_patterns=list(patterns))}
        folder = self.download_matching(*listed, cache=Path(constants.HF_HOME) / "dalle-collab" / "signed")
        for name, expected in listed.items():
            if not (folder / name).is_file() or file_digest(folder / name) != expected.sha256:
                raise CheckpointRefusedError(
                    f"{name} of {self.repository} at {self.commit[:12]} is not what the run's publisher signed. "
                    f"Delete {folder} and start again; if it stays so, ask the run's organiser."
                )
        return folder

    def download_checkpoint(self, task: "PublishableTask | None" = None) -> Path:
        """Download the newest checkpoint, check it, and return its folder.

        A copy damaged on this machine's disk is downloaded once more. Of an unsigned one no more weights are taken than
        the task's model has; None: than the repository's own `config.json` says.

        Raises:
            CheckpointRefusedError: a file does not match the signed manifest: names the file and the tensor;
                or the checkpoint is not of this run and generation.
        """
        folder = self._download_checkpoint(task)
        try:
            verify_checkpoint(folder, self.keys, self.run)
        except CheckpointRefusedError as error:
            logger.warning("%s Downloading it again.", error)
            folder = self._download_checkpoint(task, anew=True)
            verify_checkpoint(folder, self.keys, self.run)
        return folder

    def download_weights(self) -> Path:
        """Download the checkpoint's weights alone, check them, and return their file.

        Old checkpoints have nothing else: their optimizer states are deleted.

        Raises:
            CheckpointRefusedError: they do not match the signed manifest.
        """
        path, manifest = self.download(WEIGHTS_FILE), self.manifest
        if path is None or manifest is None or digest_file(path).sha256 != manifest.files[WEIGHTS_FILE].sha256:
            raise CheckpointRefusedError(
                f"{WEIGHTS_FILE} of {self.repository} at {self.commit[:12]} is not what the run's publisher signed."
            )
        return path

    def _download_checkpoint(self, task: "PublishableTask | None", *, anew: bool = False) -> Path:
        if (files := self.signed_files) is not None:
            wanted = [MANIFEST_FILE, *self._sized_as(files)]
            return fetch_files(self.repository, revision=self.commit, patterns=wanted, force_download=anew)
        number = None if task is None else task.num_parameters()
        return fetch_model(
            self.repository,
            revision=self.commit,
            patterns=["*"],
            ignored=NOT_OF_A_CHECKPOINT,
            num_parameters=number,
            force_download=anew,
        )

    def _sized_as(self, listed: Mapping[str, FileDigest]) -> list[str]:
        """Return what a signed manifest lists, once the Hub has said that the sizes are those of the manifest."""
        try:
            found = HfApi().get_paths_info(self.repository, list(listed), revision=self.commit)
        except (OSError, httpx2.HTTPError) as error:
            if not is_outage(error):
                raise
            return list(listed)  # the cache may have them all; they are compared with the manifest
        for entry in found:
            seen, expected = getattr(entry, "size", None), listed[entry.path].size
            if seen != expected:
                raise CheckpointRefusedError(
                    f"{entry.path} of {self.repository} has {seen} bytes on the Hub, the manifest of epoch "
                    f"{self.signed_epoch} says {expected}. Load an older epoch, or ask the run's organiser."
                )
        return list(listed)

    @cached_property
    def _manifest_text(self) -> str | None:
        return self._text(MANIFEST_FILE)

    def _text(self, name: str) -> str | None:
        with ExitStack() as stack:
            path = _download(self.repository, name, self.commit, _cache_folder(stack, self.in_cache))
            return None if path is None else path.read_text(encoding="utf-8")


class _NoBar(tqdm):
    def __init__(self, *args: object, **options: object) -> None:
        super().__init__(*args, **options | dict(disable=True))


def _cache_folder(stack: ExitStack, in_cache: bool) -> str | None:
    return None if in_cache else stack.enter_context(tempfile.TemporaryDirectory(prefix="dalle-collab-run-"))


def _download(repository: str, name: str, revision: str | None, cache: str | None = None) -> Path | None:
    try:
        return fetch_file(repository, name, revision=revision, cache_dir=cache)
    except LocalEntryNotFoundError as error:  # how the client reports a Hub that does not answer, or refuses
        if error.__cause__ is not None and not is_outage(error):
            raise
        raise ConnectionError(
            f"The Hub at {current_endpoint()} does not answer, and {name} of {repository} is not in the cache. "
            "Check HF_ENDPOINT and the network, then try again."
        ) from error
    except EntryNotFoundError:
        return None


def signed_epoch(snapshot: RunSnapshot) -> int:
    """Return the epoch of the newest signed checkpoint: the run has reached it for certain; 0 if that is unknown."""
    try:
        return snapshot.signed_epoch
    except (OSError, CheckpointRefusedError) as error:  # the swarm may be there without the Hub, or have a good state
        logger.warning("The signed epoch of %s cannot be read at the moment: %s", snapshot.repository, error)
        return 0
