"""The card of a checkpoint: what the run knows and what its organiser wrote, and nothing that a stranger slips in."""

import yaml
from huggingface_hub import ModelCard
from swarm_of_processes import tiny_run

from pipelines.features.publishing.card.header import LONGEST_HEADER, organisers_header
from pipelines.features.publishing.card.run_card import CardContext, run_card
from pipelines.features.publishing.metrics.credit.contributors import Contributor, contributor_table
from pipelines.features.publishing.publishable_task import CheckpointFacts, Source

RUN = tiny_run(dataset_repository="org/birds-codes", dataset_revision="0123456789abcdef")
PARTS = CardContext(
    summary="A model.", use="Use it.", load="load(epoch-N)", rows=[("loss", "3.0")], limits="It knows little.",
    tags=["dalle"],
)  # fmt: skip


def card(**values):
    values = dict(repository="org/birds", epoch=3, loss=2.5, num_parameters=1000) | values
    return run_card(RUN, CheckpointFacts(**values), PARTS)


def test_what_the_organiser_adds_to_the_header_stays_and_what_the_run_knows_wins():
    header = organisers_header(
        "---\nlicense: cc-by-4.0\nlanguage: [en]\npipeline_tag: other\ntags: [birds, hivemind]\n---\n\n# Old text\n"
    )
    text = card(header=header, evaluations=[dict(epoch=2, loss=3.25, num_records=48)])
    data = ModelCard(text).data
    assert (data.license, data.language, data.pipeline_tag) == ("cc-by-4.0", ["en"], "text-to-image")
    assert data.tags == ["collaborative-training", "hivemind", "dalle", "birds"] and "Old text" not in text
    assert [(one.metric_type, one.metric_value) for one in data.eval_results] == [("loss", 3.25)]
    again = card(header=organisers_header(text), evaluations=[dict(epoch=3, loss=3.0, num_records=48)])
    assert organisers_header(again) | {"model-index": 0} == organisers_header(text) | {"model-index": 0}


def test_a_header_that_cannot_be_read_is_dropped():
    bomb = "a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: [*b,*b,*b,*b,*b,*b,*b,*b,*b]"
    assert organisers_header(None) == organisers_header("# No header") == {}
    assert organisers_header("---\n[1, 2\n---\n") == organisers_header("---\n- a list\n---\n") == {}
    assert organisers_header(f"---\nlicense: {'x' * LONGEST_HEADER}\n---\n") == {}
    assert organisers_header("---\n" + "[" * 60_000 + "\n---\n") == {}
    assert organisers_header("---\nx: !!python/object/apply:os.getcwd []\n---\n") == {}
    assert len(card(header=organisers_header(f"---\n{bomb}\n---\n"))) < 10_000


def test_a_card_shows_pictures_sources_people_devices_energy_limits_and_how_to_cite():
    people = [
        Contributor(username=f"user-{n}", samples=100 - n, hours=1.5, device_hours={"T4": 1.5}) for n in range(30)
    ]
    text = card(
        picture="progress_reel/epoch-00000003.webp", prompts=["a robin", "an <img src=x> ![owl](http://x)"],
        sources=[
            Source(role="dataset", repository="org/birds-codes", revision="0123456789abcdef", licence="cc-by-4.0"),
            Source(role="codec", repository="org/vqgan", revision="", licence="mit"),
        ],
        contributors=contributor_table(people, "samples", 20),
    )  # fmt: skip
    assert "](progress_reel/epoch-00000003.webp)" in text and "1. a robin\n2. an &lt;img src=x>" in text
    assert "![owl]" not in text
    assert "| dataset | [org/birds-codes](/datasets/org/birds-codes) | `0123456789ab` | cc-by-4.0 |" in text
    assert "| codec | [org/vqgan](/org/vqgan) |  | mit |" in text
    assert "| user-19 | 81 | 1 h 30 min | 1 h 30 min T4 |" in text and "user-20" not in text
    assert "| **all 30** | 2,565 | 45 h 0 min | 45 h 0 min T4 |" in text and "About 3.15 kWh." in text
    assert "It knows little." in text and "`load(epoch-N)`" in text and "dalle-collab join org/birds" in text
    assert "@misc{org-birds," in text and "Training Transformers Together" in text
    for command in ("evaluate", "run report", "run rollback"):
        assert f"`dalle-collab {command} org/birds" in text


def test_a_card_without_anything_known_yet_says_so():
    text = card(loss=None)
    assert "| training loss (nats) | not known yet |" in text and "| most peers at a time | 0 |" in text
    assert "what the model draws" not in text and "Who trained it" not in text
    assert yaml.safe_load(text.split("---")[1])["library_name"] == "transformers"
