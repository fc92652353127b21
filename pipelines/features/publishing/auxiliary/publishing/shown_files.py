"""What a commit carries for people and programs besides the checkpoint: metrics, pictures, card, evaluation results."""

import contextlib
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hub_tools.run_files import (
    CARD_FILE,
    LOSS_CURVE_FILE,
    METRICS_FOLDER,
    NEWEST_PICTURE,
    OLD_METRICS_FILE,
    REEL_FOLDER,
    REEL_INDEX_FILE,
    RESULTS_FILE,
)
from pipelines.features.publishing.auxiliary.publishing.publication_spool import SpooledCheckpoint
from pipelines.features.publishing.card.header import organisers_header
from pipelines.features.publishing.card.licences import NOT_KNOWN, sources_of
from pipelines.features.publishing.checkpoint_tensors import num_parameters_in, run_state_in
from pipelines.features.publishing.metrics.evaluation.result_files import results_yaml
from pipelines.features.publishing.metrics.loss_curve import draw_loss_curve
from pipelines.features.publishing.metrics.run_metrics import RunMetrics
from pipelines.features.publishing.metrics.sample_gallery import read_index, take_over_gallery
from pipelines.features.publishing.publishable_task import CheckpointFacts, PublishableTask, Source
from pipelines.features.publishing.repository.snapshot import RunSnapshot

NAMES_IN_THE_CARD = 20

Additions = Mapping[str, Path | bytes]
"""Contents, or the files that hold them, by the name in the repository."""


@dataclass(kw_only=True)
class ShownFiles:
    """Makes these files from what the auxiliary peer knows; used by one thread."""

    repository: str
    task: PublishableTask
    metrics: RunMetrics
    reel_folder: Path
    facts: CheckpointFacts | None = None
    """Of the newest checkpoint that this process has published."""

    sources: Sequence[Source] = ()
    """What the model is made from, as last read."""

    def describe(self, entry: SpooledCheckpoint) -> None:
        """Let the card be that of this checkpoint from now on."""
        state = run_state_in(entry.folder)
        self.facts = CheckpointFacts(
            repository=self.repository,
            epoch=state.epoch,
            loss=state.loss,
            num_parameters=num_parameters_in(entry.folder),
        )

    @contextlib.contextmanager
    def written(self, head: RunSnapshot, *, with_card: bool) -> Iterator[Additions]:
        """Yield the files; they lie there within the block. `head` is the commit that they replace."""
        additions: dict[str, Path | bytes] = {f"{METRICS_FOLDER}/{path.name}": path for path in self.metrics.write()}
        additions |= {f"{REEL_FOLDER}/{name}": content for name, content in self._reel_files().items()}
        additions |= self._texts(head if with_card else None)
        with tempfile.TemporaryDirectory(prefix="dalle-collab-curve-") as folder:
            curve = Path(folder) / LOSS_CURVE_FILE
            draw_loss_curve(self.metrics.history(), curve, self.metrics.evaluations())
            yield additions | {LOSS_CURVE_FILE: curve}

    def take_over(self, head: RunSnapshot) -> None:
        """Continue the metrics and the reel that another publisher has published."""
        patterns = [f"{METRICS_FOLDER}/*", f"{REEL_FOLDER}/{REEL_INDEX_FILE}"]
        if any(name.startswith((f"{METRICS_FOLDER}/", f"{REEL_FOLDER}/")) for name in head.file_names):
            with tempfile.TemporaryDirectory(prefix="dalle-collab-metrics-") as cache:
                published = head.download_matching(*patterns, cache=Path(cache))
                self.metrics.take_over(published / METRICS_FOLDER)
                take_over_gallery(self.reel_folder, published / REEL_FOLDER, self.task.run.reel_prompts)

    def _texts(self, head: RunSnapshot | None) -> dict[str, bytes]:
        figures, texts = self.metrics.figures(), {}
        if head is not None and self.facts is not None:
            texts[CARD_FILE] = self.task.card(self._facts_of_now(self.facts, head))
        if results := results_yaml(self.repository, self.task.run, figures):
            texts[RESULTS_FILE] = results
        return {name: text.encode() for name, text in texts.items()}

    def _facts_of_now(self, facts: CheckpointFacts, head: RunSnapshot) -> CheckpointFacts:
        loss = self.metrics.loss_at(facts.epoch)
        return replace(
            facts,
            loss=facts.loss if loss is None else loss,  # of all peers by now: as the pages show it
            history=self.metrics.history(),
            evaluations=self.metrics.evaluations(),
            figures=self.metrics.figures(),
            header=organisers_header(head.card),
            sources=self._read_sources(),
            contributors=self.metrics.contributor_table(NAMES_IN_THE_CARD),
            picture=self._newest_picture(head),
            prompts=self.task.run.reel_prompts,
        )

    def _newest_picture(self, head: RunSnapshot) -> str | None:
        """Return the name that the newest picture keeps: the card shows it also between two checkpoints."""
        newest, gallery = f"{REEL_FOLDER}/{NEWEST_PICTURE}", read_index(self.reel_folder)
        is_there = (self.reel_folder / NEWEST_PICTURE).exists() or newest in head.file_names
        return newest if is_there else f"{REEL_FOLDER}/{gallery[-1]['file']}" if gallery else None

    def _read_sources(self) -> Sequence[Source]:
        """Read the licences, once if that succeeds: dataset and codec are pinned."""
        if not self.sources or any(source.licence == NOT_KNOWN for source in self.sources):
            self.sources = sources_of(self.task.run, self.task.companions())
        return self.sources

    def _reel_files(self) -> dict[str, Path | bytes]:
        """Return the reel as it is now: while the commit is made, a picture may be drawn, and the index changes."""
        files: dict[str, Path | bytes] = {}
        for name in (REEL_INDEX_FILE, NEWEST_PICTURE):  # both are written anew with each picture
            with contextlib.suppress(FileNotFoundError):
                files[name] = (self.reel_folder / name).read_bytes()
        pictures = sorted(path for path in self.reel_folder.glob("*") if not path.name.startswith("."))
        return {path.name: path for path in pictures} | files


def outdated(published: Collection[str], additions: Collection[str]) -> list[str]:
    """Return the published files that a commit with these additions replaces under other names."""
    shards = {name for name in published if name.startswith(f"{METRICS_FOLDER}/epochs-")}
    return sorted((shards - set(additions)) | ({OLD_METRICS_FILE} & set(published)))
