"""`make demo-language`: a causal language model of real text, trained by two peers, compared with an n-gram model.

Every step is a public command that a user could type; only sizes differ from a run over the Internet.
"""

import html
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from hub_tools.atomic_files import write_text_whole
from hub_tools.counted import counted
from hub_tools.local_hub import LocalHub
from pipelines.demo.demo_plan import Accounts, DemoPlan
from pipelines.demo.language.text import TEXT_FOLDER, TOKENIZER_FOLDER
from pipelines.demo.stages import Stages
from pipelines.demo.summary import SUMMARY_STYLE
from pipelines.demo.training_stage import train_together
from pipelines.demo.whole_line import make_accounts, prepare_output_folder
from pipelines.training.metrics.loss_curve import draw_loss_curve

RUN_SETTINGS: dict[str, Any] = dict(
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
    peak_learning_rate=0.02,
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


@dataclass(frozen=True, kw_only=True)
class LanguageSummary:
    """Results of the demo."""

    stage_seconds: Mapping[str, float]
    perplexity: float
    """Perplexity of the model on held-out text."""

    baseline_perplexity: float
    """Perplexity of an interpolated Kneser-Ney model of the same training text, on the same tokens."""

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
                f"{self.perplexity:.1f}; an n-gram model of the same text {self.baseline_perplexity:.1f} "
                f"({self.num_held_out_tokens:,} tokens)",
            ),
            ("training time", f"{seconds['training']:.0f} s of {sum(seconds.values()):.0f} s"),
            ("swarm", f"{self.epochs} epochs, {self.share_averaged:.1%} averaged"),
            ("model", f"{self.parameters:,} parameters"),
        ]


def run_language_demo(output: Path, console: Console, settings: Mapping[str, Any] = RUN_SETTINGS) -> LanguageSummary:
    """Run the demo into an empty folder; return its figures, which are also in `summary.json` and `summary.html`.

    Raises:
        StageError: a command failed; finished work stays in the folder.
    """
    plan = DemoPlan(name="language", output=output, run_settings=settings, micro_batch_size=8)
    prepare_output_folder(output)
    with LocalHub(output / "hub") as hub:
        accounts = make_accounts(hub, plan.num_trainers)
        stages = Stages(output / "logs", hub.environment(), console)
        _publish_text(stages, plan, accounts)
        with stages.stage("training", f"Training together: {counted(plan.num_trainers, 'peer')} and an auxiliary peer"):
            train_together(stages, plan, accounts, console)
        with stages.stage("evaluation", "Comparing it with an n-gram model of the same text"):
            dataset = str(plan.work / "text" / TEXT_FOLDER)
            judged = stages.run(
                "dalle-collab", "demo", "judge-text", plan.repository(), "--text", dataset,
                token=accounts.organiser, log_name="judge",
            )  # fmt: skip
        judged = json.loads(judged)
        evaluations = judged.pop("evaluations")
        summary = _summarise(plan, stages, judged)
    _write_summary(output, summary, _history(plan), evaluations)
    return summary


def _publish_text(stages: Stages, plan: DemoPlan, accounts: Accounts) -> None:
    token, work = accounts.organiser, plan.work / "text"
    with stages.stage("text", "Gathering text and training a tokenizer"):
        length = str(plan.run_settings["sequence_length"])
        stages.run("dalle-collab", "demo", "text", "--output", str(work), "--sequence-length", length, log_name="text")
    with stages.stage("publishing", "Publishing the dataset and creating the run"):
        stages.run(
            "hub-tools", "publish", "folder", str(work / TEXT_FOLDER), plan.repository("-text"), "--type", "dataset",
            token=token, log_name="publish",
        )  # fmt: skip
        settings = plan.work / "run_settings.json"
        settings.write_text(json.dumps(dict(plan.run_settings), indent=2) + "\n", encoding="utf-8")
        stages.run(
            "dalle-collab", "run", "create", plan.repository(), "--task", "text-generation",
            "--dataset", plan.repository("-text"), "--tokenizer", str(work / TOKENIZER_FOLDER),
            "--settings", str(settings), token=token, log_name="run",
        )  # fmt: skip


def _history(plan: DemoPlan) -> list[dict[str, Any]]:
    """Return the auxiliary peer's summaries of the swarm, one per poll that had one."""
    looks = (plan.work / "auxiliary.jsonl").read_text(encoding="utf-8").splitlines()
    return [summary for look in looks if (summary := json.loads(look)["summary"]) is not None]


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
    history: Sequence[Mapping[str, Any]],
    evaluations: Sequence[Mapping[str, Any]],
) -> None:
    """Write `summary.json`, `summary.html` and `loss_curve.png`."""
    write_text_whole(folder / "summary.json", json.dumps(asdict(summary), indent=2) + "\n")
    draw_loss_curve(history, folder / "loss_curve.png", evaluations)
    rows = "".join(f"<tr><th>{html.escape(k)}</th><td>{html.escape(v)}</td></tr>" for k, v in summary.rows)
    texts = "".join(
        f'<p class="text"><b>{html.escape(prompt)}</b>{html.escape(text)}</p>'
        for prompt, text in summary.continuations.items()
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
        console.print(f"  [bold]{name}[/bold]: {value}", highlight=False)
    for prompt, text in summary.continuations.items():
        console.print(f"  {prompt}|{text!r}", markup=False, highlight=False)
    console.print(f"Look at {folder / 'summary.html'}.", highlight=False)
