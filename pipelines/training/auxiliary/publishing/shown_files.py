"""What a commit carries for people and programs besides the checkpoint: metrics, pictures, card, evaluation results."""

import contextlib
import tempfile
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from hub_tools.run_files import (
    CARD_FILE,
    LOSS_CURVE_FILE,
    METRICS_FOLDER,
    OLD_METRICS_FILE,
    REEL_FOLDER,
    REEL_INDEX_FILE,
    RESULTS_FILE,
)
from pipelines.training.auxiliary.publishing.publication_spool import SpooledCheckpoint
from pipelines.training.metrics.evaluation.result_files import results_yaml
from pipelines.training.metrics.loss_curve import draw_loss_curve
from pipelines.training.metrics.reel import take_over_reel
from pipelines.training.metrics.run_metrics import RunMetrics
from pipelines.training.repository.snapshot import RunSnapshot
from pipelines.training.run.task import CheckpointFacts, TrainingTask
from pipelines.training.state.checkpoint_tensors import num_parameters_in, run_state_in

Additions = Mapping[str, Path | bytes]
"""Contents, or the files that hold them, by the name in the repository."""


@dataclass(kw_only=True)
class ShownFiles:
    """Makes these files from what the auxiliary peer knows; used by one thread."""

    repository: str
    task: TrainingTask
    metrics: RunMetrics
    reel_folder: Path
    facts: CheckpointFacts | None = None
    """Of the newest checkpoint that this process has published."""

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
    def written(self, *, with_card: bool) -> Iterator[Additions]:
        """Yield the files; they lie there within the block."""
        additions: dict[str, Path | bytes] = {f"{METRICS_FOLDER}/{path.name}": path for path in self.metrics.write()}
        additions |= {f"{REEL_FOLDER}/{path.name}": path for path in self._reel_files()}
        additions |= self._texts(with_card)
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
                take_over_reel(self.reel_folder, published / REEL_FOLDER, self.task.run.reel_prompts)

    def _texts(self, with_card: bool) -> dict[str, bytes]:
        figures, texts = self.metrics.figures(), {}
        if with_card and self.facts is not None:
            history, evaluations = self.metrics.history(), self.metrics.evaluations()
            facts = replace(self.facts, history=history, evaluations=evaluations, figures=figures)
            texts[CARD_FILE] = self.task.card(facts)
        if results := results_yaml(self.repository, self.task.run, figures):
            texts[RESULTS_FILE] = results
        return {name: text.encode() for name, text in texts.items()}

    def _reel_files(self) -> list[Path]:
        return sorted(path for path in self.reel_folder.glob("*") if not path.name.startswith("."))


def outdated(published: Collection[str], additions: Collection[str]) -> list[str]:
    """Return the published files that a commit with these additions replaces under other names."""
    shards = {name for name in published if name.startswith(f"{METRICS_FOLDER}/epochs-")}
    return sorted((shards - set(additions)) | ({OLD_METRICS_FILE} & set(published)))
