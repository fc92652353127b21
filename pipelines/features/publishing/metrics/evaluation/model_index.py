"""Evaluations in the form that the Hub reads from a model card's front matter and shows beside the model.

Every figure names the commit that it is of and the command that computes it.
"""

from collections.abc import Iterable, Sequence

from huggingface_hub import EvalResult
from huggingface_hub.repocard_data import eval_results_to_model_index

from hub_tools.endpoint import current_endpoint, is_public_hub
from pipelines.core.run.training_run import TrainingRun
from pipelines.features.publishing.metrics.evaluation.checkpoint_figures import CheckpointFigure, newest_figures
from pipelines.features.publishing.metrics.evaluation.held_out_losses import HeldOutRow, perplexity
from pipelines.features.publishing.repository.epoch_tags import epoch_tag

SIGNIFICANT_DIGITS = 6


def model_index(
    repository: str,
    run: TrainingRun,
    evaluations: Sequence[HeldOutRow],
    figures: Sequence[CheckpointFigure] = (),
    *,
    epoch: int | None = None,
) -> dict[str, object]:
    """Return the part of the header for the newest held-out loss and the newest evaluation of a checkpoint.

    Empty without any. `epoch` is that of the published checkpoint.
    """
    kinds = _held_out_results(repository, run, evaluations[-1:], epoch), _results(repository, run, figures)
    # Apart, because the Hub's client gives all results on a dataset the source of the first one.
    indices = [eval_results_to_model_index(repository, results) for results in map(list, kinds) if results]
    results = [result for index in indices for model in index for result in model["results"]]
    return {"model-index": [{"name": repository, "results": results}]} if results else {}


def source_of_held_out_loss(repository: str, evaluation: HeldOutRow, epoch: int | None) -> str:
    """Return the command that a held-out loss comes from: one that anybody can repeat, if its state is published."""
    if evaluation["epoch"] != epoch or evaluation.get("num_records") is None:
        return f"dalle-collab run assist {repository}"
    records = evaluation["num_records"]
    return f"dalle-collab evaluate {repository} --revision {epoch_tag(epoch)} --records {records} --drawings 1"


def address_of(repository: str, revision: str) -> str:
    """Return the page of a repository's files at a commit, branch or tag; of a private Hub without its host."""
    endpoint = current_endpoint()
    return f"{endpoint if is_public_hub(endpoint) else ''}/{repository}/tree/{revision}"


def rounded(value: float) -> float:
    """Return a value with as many digits as an evaluation can have."""
    return float(f"{value:.{SIGNIFICANT_DIGITS}g}")


def _held_out_results(
    repository: str, run: TrainingRun, evaluations: Iterable[HeldOutRow], epoch: int | None
) -> Iterable[EvalResult]:
    for row in evaluations:
        measured = dict(loss=row["loss"], low=row.get("low"), high=row.get("high"))
        in_nats = {name: value for name, value in measured.items() if value is not None}
        kinds = {"loss": ("held-out loss (nats)", in_nats)}
        if run.unit == "tokens":
            kinds["perplexity"] = ("held-out perplexity", {name: perplexity(nats) for name, nats in in_nats.items()})
        facts: dict[str, object] = {
            name: row[name] for name in ("epoch", "num_records", "weights") if row.get(name) is not None
        }
        for kind, (name, values) in kinds.items():
            value, *interval = (rounded(value) for value in values.values())
            args = facts | dict(zip(("low", "high"), interval, strict=False))
            command = source_of_held_out_loss(repository, row, epoch)
            revision = epoch_tag(row["epoch"]) if row["epoch"] == epoch else "main"
            yield _result(run, kind, name, value, args, command, address_of(repository, revision))


def _results(repository: str, run: TrainingRun, figures: Sequence[CheckpointFigure]) -> Iterable[EvalResult]:
    for figure in newest_figures(figures):
        args = dict(
            epoch=figure.epoch, num_records=figure.num_records, num_items=figure.num_items, items=figure.items,
            low=rounded(figure.low), high=rounded(figure.high), commit=figure.commit, weights=figure.weights,
        )  # fmt: skip
        name = f"{figure.name} of epoch {figure.epoch}"
        address = address_of(repository, figure.commit)
        yield _result(run, figure.name, name, rounded(figure.value), args, figure.command, address)


def _result(
    run: TrainingRun, kind: str, name: str, value: float, args: dict[str, object], command: str, address: str
) -> EvalResult:
    return EvalResult(
        task_type=run.task,
        dataset_type=run.dataset_repository,
        dataset_name=run.dataset_repository,
        dataset_revision=run.dataset_revision,
        dataset_split="held out",
        metric_type=kind,
        metric_name=name,
        metric_value=value,
        metric_args=args,
        source_name=command,
        source_url=address,
    )
