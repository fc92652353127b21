"""Compares the demo's language model with what an n-gram model of the same kind of text once came to."""

import math
import platform

import torch
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, pipeline

from hub_tools.run_files import METRICS_FOLDER
from pipelines.core.run.task import mean_loss
from pipelines.features.publishing.metrics.evaluation.held_out_losses import read_evaluations
from pipelines.features.publishing.repository.snapshot import RunSnapshot
from pipelines.tasks.choice import open_task
from pipelines.tasks.language_modeling.samples import IGNORED

NGRAM_PERPLEXITIES = {
    "text-generation": {"3.11.7": 44.2, "3.12.1": 43.4, "3.13.0": 50.5},
    "fill-mask": {"3.11.7": 16.6, "3.12.1": 16.5, "3.13.0": 18.3},
}
"""By task and by the Python whose documentation is the text: of held-out text of `demo text`, with 2,048 tokens in
sequences of 128, by an interpolated modified Kneser-Ney model of order 5; for masks by a mixture of four that look to
both sides. How they were measured is in docs/measurements/demos.md."""

PROMPTS = ("The file is", "Return the", "A class that", "If the argument is")
NUM_NEW_TOKENS = 48


def baseline_perplexity(task: str, python: str) -> tuple[float, str]:
    """Return the perplexity of n-grams, and of which Python's documentation: the nearest one that was measured."""
    found = NGRAM_PERPLEXITIES[task]
    nearest = min(found, key=lambda version: abs(int(version.split(".")[1]) - int(python.split(".")[1])))
    return found[nearest], nearest


def judge_language_run(repository: str) -> dict[str, object]:
    """Return perplexities of a run's newest checkpoint and of its baseline, sizes, what a causal model writes, and the
    evaluations of its history."""
    snapshot = RunSnapshot.read(repository)
    folder = snapshot.download_checkpoint()
    task = open_task(snapshot.run, str(folder))
    batches = task.held_out_batches()
    is_causal = snapshot.run.task == "text-generation"
    model = (
        (AutoModelForCausalLM if is_causal else AutoModelForMaskedLM)
        .from_pretrained(folder, trust_remote_code=False)
        .eval()
    )
    baseline, python = baseline_perplexity(snapshot.run.task, platform.python_version())
    return dict(
        perplexity=math.exp(mean_loss(task, model, batches)),
        baseline_perplexity=baseline,
        baseline_python=python,
        num_held_out_tokens=sum(int((batch["labels"] != IGNORED).sum()) for batch in batches),
        parameters=model.num_parameters(),
        continuations=_continuations(model, task.tokenizer) if is_causal else {},
        evaluations=read_evaluations(snapshot.download_matching(f"{METRICS_FOLDER}/*") / METRICS_FOLDER),
    )


def _continuations(model: torch.nn.Module, tokenizer: object) -> dict[str, str]:
    write = pipeline("text-generation", model=model, tokenizer=tokenizer, trust_remote_code=False)
    torch.manual_seed(0)
    options = dict(max_new_tokens=NUM_NEW_TOKENS, do_sample=True, top_k=40, temperature=0.8, return_full_text=False)
    return {prompt: write(prompt, **options)[0]["generated_text"] for prompt in PROMPTS}
