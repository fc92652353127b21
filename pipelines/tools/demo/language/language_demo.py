"""`make demo-language`: a causal language model of real text, trained by two peers, compared with n-grams.

Every step is a public command that a user could type; only sizes differ from a run over the Internet.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from hub_tools.atomic_files import write_text_whole
from hub_tools.printing.marked_up import escaped
from hub_tools.processes.event_files import read_events
from pipelines.features.publishing.metrics.epoch_summary import EpochSummary
from pipelines.features.publishing.metrics.evaluation.held_out_losses import HeldOutRow
from pipelines.features.publishing.metrics.loss_curve import draw_loss_curve
from pipelines.tools.demo.demo_plan import DemoPlan
from pipelines.tools.demo.language.text import TEXT_FOLDER, TOKENIZER_FOLDER
from pipelines.tools.demo.running.event_figures import run_history
from pipelines.tools.demo.running.finished_work import digest_of
from pipelines.tools.demo.stages import Stages
from pipelines.tools.demo.summary import SUMMARY_STYLE
from pipelines.tools.demo.whole_line import Line, create_run, opened_line, train_to_the_end

RUN_SETTINGS: dict[str, object] = dict(
    model_type="llama",
    hidden_size=128,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=4,
    intermediate_size=384,
    max_position_embeddings=128,
    tie_word_embeddings=True,
    sequence_length=128,
    held_out_share=0.0,
    target_batch_size=8192,
    num_epochs=600,
    num_warmup_epochs=30,
    optimizer="muon",
    peak_learning_rate=0.01,
    weight_decay=0.01,
    max_gradient_norm=1.0,
    min_8bit_elements=4096,
    matchmaking_seconds=1.0,
    averaging_timeout_seconds=30.0,
    progress_expiration_seconds=20.0,
    checkpoint_interval_epochs=100,
    evaluation_interval_epochs=50,
)
"""Everything that makes this run small."""

SHORT_SETTINGS: dict[str, object] = RUN_SETTINGS | dict(
    num_epochs=12, num_warmup_epochs=4, checkpoint_interval_epochs=4, evaluation_interval_epochs=4
)
"""For a look at the whole within minutes: what it learns is poor."""


@dataclass(frozen=True, kw_only=True)
class LanguageSummary:
    """Results of the demo."""

    stage_seconds: Mapping[str, float]
    perplexity: float
    """Perplexity of the model on held-out text."""

    baseline_perplexity: float
    """Perplexity of an interpolated Kneser-Ney model of such text, as it was measured once."""

    baseline_python: str
    """The version of Python whose documentation that text was."""

    num_held_out_tokens: int
    parameters: int
    epochs: int
    share_averaged: float
    continuations: Mapping[str, str]
    """What the model writes after each prompt."""

    @property
    def rows(self) -> list[tuple[str, str]]:
        """The figures in words, most important first."""
        seconds = self.stage_seconds
        return [
            (
                "held-out perplexity",
                f"{self.perplexity:.1f} ({self.num_held_out_tokens:,} tokens); an n-gram model of the text of Python "
                f"{self.baseline_python}: {self.baseline_perplexity:.1f}",
            ),
            ("training time", f"{seconds.get('training', 0):.0f} s of {sum(seconds.values()):.0f} s"),
            ("swarm", f"{self.epochs} epochs, {self.share_averaged:.1%} averaged"),
            ("model", f"{self.parameters:,} parameters"),
        ]


def run_language_demo(output: Path, console: Console, settings: Mapping[str, object] = RUN_SETTINGS) -> LanguageSummary:
    """Run the demo, or the rest of an interrupted one; return its figures, also in `summary.json` and `summary.html`.

    Raises:
        StageError: a command failed; the next call goes on with what is finished.
        ValueError: the folder cannot be used for this; the message says why.
    """
    plan = DemoPlan(name="language", output=output, run_settings=settings, micro_batch_size=8)
    with opened_line(plan, console) as line:
        stages = line.stages
        _publish_text(line)
        train_to_the_end(line)
        judged = stages.once(
            "evaluation", "Comparing it with an n-gram model",
            lambda: json.loads(
                stages.run(
                    "dalle-collab", "demo", "judge-text", plan.repository(),
                    token=line.accounts.organiser, log_name="judge",
                )
            ),
            inputs=line.commit(),
        )  # fmt: skip
        figures = {name: value for name, value in judged.items() if name != "evaluations"}
        with stages.lines.doing("Collecting the figures"):
            summary = _summarise(plan, stages, figures)
            _write_summary(output, summary, _history(plan), judged["evaluations"])
    return summary


def _publish_text(line: Line) -> None:
    stages, plan, work = line.stages, line.plan, line.plan.work / "text"
    length = str(plan.run_settings["sequence_length"])
    stages.once(
        "text", "Gathering text and training a tokenizer",
        lambda: stages.run(
            "dalle-collab", "demo", "text", "--output", str(work), "--sequence-length", length, log_name="text"
        ),
        outputs=[work],
    )  # fmt: skip
    stages.once(
        "publishing", "Publishing the dataset",
        lambda: stages.run(
            "hub-tools", "publish", "folder", str(work / TEXT_FOLDER), plan.repository("-text"), "--type", "dataset",
            token=line.accounts.organiser, log_name="publish",
        ),
        inputs=digest_of(work / TEXT_FOLDER), is_there=lambda: bool(line.commit("-text", "dataset")),
    )  # fmt: skip
    stages.once(
        "run", "Creating the run",
        lambda: create_run(
            line, "--task", "text-generation", "--dataset", plan.repository("-text"),
            "--tokenizer", str(work / TOKENIZER_FOLDER),
        ),
        inputs=line.commit("-text", "dataset"), is_there=lambda: bool(line.commit()),
    )  # fmt: skip


def _history(plan: DemoPlan) -> list[EpochSummary]:
    """Return the auxiliary peer's summaries of the swarm, one per poll that had one."""
    return run_history(read_events(plan.work / "auxiliary.jsonl"))


def _summarise(plan: DemoPlan, stages: Stages, judged: Mapping[str, Any]) -> LanguageSummary:
    history = _history(plan)
    return LanguageSummary(
        stage_seconds=stages.seconds,
        epochs=plan.num_epochs,
        share_averaged=sum(point["share_averaged"] for point in history) / max(1, len(history)),
        **judged,
    )


def _write_summary(
    folder: Path,
    summary: LanguageSummary,
    history: Sequence[EpochSummary],
    evaluations: Sequence[HeldOutRow],
) -> None:
    """Write `summary.json`, `summary.html` and `loss_curve.png`."""
    write_text_whole(folder / "summary.json", json.dumps(asdict(summary), indent=2) + "\n")
    draw_loss_curve(history, folder / "loss_curve.png", evaluations)
    rows = "".join(f"<tr><th>{escaped(k)}</th><td>{escaped(v)}</td></tr>" for k, v in summary.rows)
    texts = "".join(
        f'<p class="text"><b>{escaped(prompt)}</b>{escaped(text)}</p>' for prompt, text in summary.continuations.items()
    )
    page = f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>A language model that two peers trained together</title>
<style>{SUMMARY_STYLE}.text {{ white-space: pre-wrap; border-left: 3px solid #ddd; padding-left: 1rem }}</style>
<h1>A language model that two peers trained together</h1>
<table>{rows}</table>
<h2>What it writes</h2>
<p>Prompts are bold. It has read the documentation of Python's standard library and nothing else.</p>
{texts}
<h2>Loss</h2>
<img src="loss_curve.png" alt="Training loss, held-out loss and number of peers against the epoch">
</html>
"""
    write_text_whole(folder / "summary.html", page)


def show_language_end(summary: LanguageSummary, folder: Path, console: Console) -> None:
    """Print the figures, samples of the model's text, and where to find more."""
    for name, value in summary.rows:
        console.print(Text.assemble("  ", (name, "bold"), f": {value}"), highlight=False)
    for prompt, text in summary.continuations.items():
        console.print(f"  {prompt}|{text!r}", markup=False, highlight=False)
    console.print(f"Look at {folder / 'summary.html'}.", highlight=False)
