"""Compares the demo's language model with an n-gram model of the same text on the same held-out tokens."""

import math
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, pipeline

from hub_tools.run_files import METRICS_FOLDER
from pipelines.demo.language.baselines import causal_perplexity, masked_perplexity
from pipelines.demo.language.text import read_documents
from pipelines.training.metrics.evaluation.held_out_losses import read_evaluations
from pipelines.training.repository.snapshot import RunSnapshot
from pipelines.training.run.task import mean_loss
from pipelines.training.tasks.choice import open_task
from pipelines.training.tasks.language_modeling.samples import IGNORED
from pipelines.training.tasks.language_modeling.settings import LanguageSettings

PROMPTS = ("The file is", "Return the", "A class that", "If the argument is")
NUM_NEW_TOKENS = 48


def judge_language_run(repository: str, text: Path) -> dict[str, Any]:
    """Return perplexities of a run's newest checkpoint and of its baseline, sizes, what a causal model writes, and the
    evaluations of its history.

    text: folder of the run's dataset, as written by `write_text_dataset`.
    """
    snapshot = RunSnapshot.read(repository)
    folder = snapshot.download_checkpoint()
    task = open_task(snapshot.run, str(folder))
    batches, documents = task.held_out_batches(), read_documents(text)
    is_causal = snapshot.run.task == "text-generation"
    model = (
        (AutoModelForCausalLM if is_causal else AutoModelForMaskedLM)
        .from_pretrained(folder, trust_remote_code=False)
        .eval()
    )
    if is_causal:
        baseline = causal_perplexity(documents, batches, task.tokenizer)
    else:
        settings = LanguageSettings.from_mapping(snapshot.run.task_settings)
        baseline = masked_perplexity(documents, batches, task.tokenizer, settings)
    return dict(
        perplexity=math.exp(mean_loss(task, model, batches)),
        baseline_perplexity=baseline,
        num_held_out_tokens=sum(int((batch["labels"] != IGNORED).sum()) for batch in batches),
        parameters=model.num_parameters(),
        continuations=_continuations(model, task.tokenizer) if is_causal else {},
        evaluations=read_evaluations(snapshot.download_matching(f"{METRICS_FOLDER}/*") / METRICS_FOLDER),
    )


def _continuations(model: torch.nn.Module, tokenizer: Any) -> dict[str, str]:
    write = pipeline("text-generation", model=model, tokenizer=tokenizer, trust_remote_code=False)
    torch.manual_seed(0)
    options = dict(max_new_tokens=NUM_NEW_TOKENS, do_sample=True, top_k=40, temperature=0.8, return_full_text=False)
    return {prompt: write(prompt, **options)[0]["generated_text"] for prompt in PROMPTS}
