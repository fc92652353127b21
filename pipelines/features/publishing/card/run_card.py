"""The text of a card: pictures, how to use the model, figures, sources, who trained it on what, limits, citation."""

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote

from hub_tools.counted import nats
from hub_tools.printing.marked_up import code, in_words, markdown_table, plain
from hub_tools.run_files import CARD_FILE, LOSS_CURVE_FILE, METRICS_FOLDER
from pipelines.core.run.training_run import TrainingRun
from pipelines.features.publishing.card.header import merged_header
from pipelines.features.publishing.card.licences import LONGEST_LICENCE, NOT_STATED
from pipelines.features.publishing.metrics.evaluation.figure_table import evaluation_section
from pipelines.features.publishing.metrics.evaluation.model_index import model_index
from pipelines.features.publishing.publishable_task import CheckpointFacts, Source

MOST_PROMPTS = 8


@dataclass(frozen=True, kw_only=True)
class CardContext:
    """What a task adds to the card of its checkpoints; all Markdown."""

    summary: str
    """A sentence that says what the model is."""

    use: str
    """How to use the model."""

    load: str
    """A line of Python that loads an older epoch, with `epoch-N` for its tag."""

    rows: Sequence[tuple[str, str]]
    """More rows of the table of figures."""

    limits: str
    """What the model cannot do."""

    tags: Sequence[str] = ()


def run_card(run: TrainingRun, facts: CheckpointFacts, parts: CardContext) -> str:
    """Return the text of the repository's README.md."""
    own = dict(
        library_name="transformers",
        pipeline_tag=run.task,
        tags=["collaborative-training", "hivemind", *parts.tags],
        datasets=[run.dataset_repository],
        **model_index(facts.repository, run, facts.evaluations, facts.figures, epoch=facts.epoch),
    )
    sections = [
        merged_header(own, facts.header) + f"\n# {facts.repository}\n\n{parts.summary}",
        f"The training is over: these are the weights after all {run.num_epochs:,} epochs."
        if facts.epoch >= run.num_epochs
        else f"The training goes on: these are the weights after epoch {facts.epoch:,} of {run.num_epochs:,}.",
        _pictures(facts),
        f"## Use\n\n{parts.use}",
        _figures(run, facts, parts),
        evaluation_section(facts.figures),
        _sources(facts),
        facts.contributors and f"## Who trained it\n\n{facts.contributors}",
        facts.epoch < run.num_epochs and f"## Join\n\n```bash\ndalle-collab join {facts.repository}\n```",
        _older_epochs(run, facts, parts),
        f"## Limits\n\n{parts.limits}",
        _files(),
        _citation(facts),
    ]
    return "\n\n".join(filter(None, sections)) + "\n"


def _pictures(facts: CheckpointFacts) -> str:
    if facts.picture is None:
        return ""
    shown = facts.prompts[:MOST_PROMPTS]
    captions = "\n".join(f"{number}. {plain(prompt)}" for number, prompt in enumerate(shown, 1))
    return (
        f"![what the model draws]({facts.picture})\n\n"
        f"Drawn without choosing the best, a row for each caption, from top to bottom:\n\n{captions}"
    )


def _figures(run: TrainingRun, facts: CheckpointFacts, parts: CardContext) -> str:
    rows = [
        ("epoch", f"{facts.epoch:,} of {run.num_epochs:,}"),
        ("training loss (nats)", "not known yet" if facts.loss is None else nats(facts.loss)),
        *parts.rows,
        ("parameters", f"{facts.num_parameters:,}"),
        ("most peers at a time", f"{max((point['num_peers'] for point in facts.history), default=0):,}"),
        ("optimizer", f"{run.stepping_optimizer}, {run.optimizer_bits}-bit statistics, peak learning rate "
                      f"{run.peak_learning_rate:g}"),
    ]  # fmt: skip
    table = markdown_table(("", ""), rows)
    measure = f"More figures, with intervals: `dalle-collab evaluate {facts.repository}`. All settings and the whole "
    return (
        f"## Figures\n\n{table}\n\n![loss curve]({LOSS_CURVE_FILE})\n\n"
        f"{measure}course: `dalle-collab run report {facts.repository}`."
    )


def _sources(facts: CheckpointFacts) -> str:
    own = facts.header.get("license", NOT_STATED)
    rows = [("weights", "this one", "", plain(in_words(own)[:LONGEST_LICENCE]))]
    rows += [(one.role, _link(one), code(one.revision[:12]), plain(one.licence)) for one in facts.sources]
    return f"## Licences, data and codec\n\n{markdown_table(('', 'repository', 'revision', 'licence'), rows)}"


def _link(source: Source) -> str:
    place = f"/datasets/{source.repository}" if source.role == "dataset" else f"/{source.repository}"
    return f"[{plain(source.repository)}]({quote(place)})"


def _older_epochs(run: TrainingRun, facts: CheckpointFacts, parts: CardContext) -> str:
    return (
        f"## Older epochs\n\nEach published epoch has a tag: `{parts.load}`. The optimizer states of the newest "
        f"{run.keep_optimizer_states} checkpoints are kept, so that the run can go back to them: "
        f"`dalle-collab run rollback {facts.repository} N`."
    )


def _files() -> str:
    return (
        "## Files\n\n`optimizer_state.safetensors` and `run_state.json` let the run continue from here; "
        "`checkpoint_manifest.json` lists the digests of all files, signed with a key of `publisher_keys.json`; "
        f"`{METRICS_FOLDER}/` holds the run's history and contributions. The auxiliary peer writes `{CARD_FILE}` anew "
        "with each checkpoint; of its header it keeps what the organiser adds."
    )


def _citation(facts: CheckpointFacts) -> str:
    return f"""## Cite

```bibtex
@misc{{{facts.repository.replace("/", "-").lower()},
  title = {{{facts.repository}, trained together by volunteers}},
  note = {{Epoch {facts.epoch}}},
  howpublished = {{Hugging Face Hub}},
}}

@inproceedings{{borzunov2022training,
  title = {{Training Transformers Together}},
  author = {{Borzunov, Alexander and Ryabinin, Max and Dettmers, Tim and Lhoest, Quentin and Saulnier, Lucile and
            Diskin, Michael and Jernite, Yacine and Wolf, Thomas}},
  booktitle = {{Proceedings of the NeurIPS 2021 Competitions and Demonstrations Track}},
  series = {{Proceedings of Machine Learning Research}},
  volume = {{176}},
  year = {{2022}},
}}
```"""
