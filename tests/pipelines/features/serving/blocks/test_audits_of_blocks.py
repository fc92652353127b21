"""Servers that answer with something else are noticed by others of the same layers; honest ones are not accused."""

from dataclasses import replace

import pytest
import torch
from block_links import MortalSwarm
from tiny_models import tiny_dalle, tiny_language_model

from modeling_dalle_collab.packed_dalle_collab import Int8Linear
from modeling_dalle_collab.sampling_dalle_collab import SamplingOptions
from pipelines.features.serving.blocks.client.audits import AuditVerdict, BlockAudits
from pipelines.features.serving.blocks.client.distributed_model import DistributedModel, local_server
from pipelines.features.serving.blocks.client.route import Route
from pipelines.features.serving.blocks.codecs import CODECS, decode, encode
from pipelines.features.serving.blocks.routing import Hop
from pipelines.features.serving.blocks.spans import Padding, load_span
from pipelines.features.serving.blocks.weights import find_model
from pipelines.features.serving.draw.evidence import drawn_here
from pipelines.features.serving.draw.requests import SamplingRequest
from pipelines.features.serving.server_blocklist import ServerBlocklist

SHAPE = (2, 1, 7, 64)


def noisy(share):
    def change(states, generator):
        return states * (1 + share * torch.randn(states.shape, generator=generator))

    return change


LIES = {
    "noise of 2 %": noisy(0.02),
    "another scale": lambda states, generator: states * 1.05,
    "nothing done": lambda states, generator: torch.zeros_like(states),
    "one row": lambda states, generator: torch.cat([states[:, :, :1] * 2, states[:, :, 1:]], dim=2),
}


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("model")
    tiny_dalle(folder)
    return folder, find_model(str(folder))


def swarm_of(published, *names, liar=None, lie=None, codec="float32"):
    swarm = MortalSwarm({name: local_server(published[1], range(0, 6)) for name in names})
    generator = torch.Generator().manual_seed(0)

    def changed(peer, answer):
        body, tensors = answer
        if peer != liar or "values" not in tensors:
            return answer
        states = lie(decode(tensors, codec, tuple(tensors["values"].shape)), generator)
        return body, encode(states, codec)

    swarm.changed = changed
    return swarm


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_a_liar_is_banned_and_the_codes_are_the_honest_ones(published, lie):
    swarm = swarm_of(published, "a", "b", "c", liar="a", lie=lie)
    model = DistributedModel.from_pretrained(str(published[0]), swarm=swarm, audit_share=1.0)
    honest = DistributedModel.from_pretrained(str(published[0]))
    text = torch.ones(1, 6, dtype=torch.int64)
    found = model.generate_image_codes(text, seed=1, window=1)
    assert torch.equal(found, honest.generate_image_codes(text, seed=1, window=1))
    assert [verdict.liar.peer for verdict in model.layers.audits.verdicts if verdict.liar] == ["a"]
    assert [hop.peer for hop in model.layers.route.chain(range(6))] != ["a"]


@pytest.mark.parametrize("codec", CODECS)
def test_sixty_honest_answers_are_not_accused(published, codec):
    """Others compute with packed weights and in other batches, as on another machine."""
    swarm = swarm_of(published, "a", "b", "c")
    model = DistributedModel.from_pretrained(str(published[0]), swarm=swarm, codec=codec, audit_share=1.0)
    generator = torch.Generator().manual_seed(5)
    for number in range(60):
        session = model.layers.session(dict(num_prompts=1, num_places=0))
        session.prefill(torch.randn(SHAPE, generator=generator) * 3, dict(is_packed=number % 2 == 0))
        session.close()
    verdicts = model.layers.audits.verdicts
    assert len(verdicts) == 60 and {verdict.outcome for verdict in verdicts} == {"agrees"}


def test_int8_servers_on_other_processors_are_not_accused(published):
    """Where there are no VNNI instructions activations are rounded to 7 bits, elsewhere to 8."""
    spans = [load_span(published[1], range(6), weights="int8") for _ in range(2)]
    for module in spans[1].stack.modules():
        if isinstance(module, Int8Linear):
            module.largest = 63
    audits, hop = BlockAudits("float32", precision="int8", share=1.0, secret=0), Hop(peer="a", start=0, end=6)
    generator = torch.Generator().manual_seed(6)
    for _ in range(5):
        states = torch.randn(2, 1, spans[0].positions_of_prompt(), 64, generator=generator)
        one, other = (span.forward(states, Padding(), None) for span in spans)
        assert audits.judge(hop, one, {"b": hop}, lambda _, other=other: other).outcome == "agrees"
    assert max(verdict.error for verdict in audits.verdicts) < audits.limit / 10
    assert (audits.limit, BlockAudits("int8", precision=None, share=1.0).limit) == (5e-3, 5e-2)


def test_who_replaces_a_lost_server_is_checked_as_well(published):
    swarm = swarm_of(published, "a", "b", "c", "d", liar="b", lie=noisy(0.02))
    swarm.slow = {"c", "d"}
    model = DistributedModel.from_pretrained(str(published[0]), swarm=swarm, audit_share=1.0)
    session = model.layers.session(dict(num_prompts=1, num_places=0))
    session.prefill(torch.randn(SHAPE, generator=torch.Generator().manual_seed(5)), dict(is_packed=True))
    assert [hop.peer for hop in session.hops] == ["a"]
    swarm.lose("a")
    session.start(dict(num_candidates=1, window=1, is_static=False, is_packed=True))
    assert [hop.peer for hop in session.hops] == ["c"]
    assert [verdict.liar.peer for verdict in model.layers.audits.verdicts if verdict.liar] == ["b"]


def test_it_is_said_who_differs_what_could_not_be_told_and_what_was_checked():
    outcomes = dict(agrees=None, lies=Hop(peer="liar-server", start=0, end=2), disputed=None, unchecked=None)
    blocklist = ServerBlocklist(clock=lambda: 0.0)
    blocklist.avoid("liar-server")
    verdicts = [
        AuditVerdict(hop=Hop(peer=f"the-{outcome}", start=0, end=2), outcome=outcome, error=0.25, liar=liar)
        for outcome, liar in outcomes.items()
    ]
    audits = BlockAudits("float32", share=1.0, blocklist=blocklist)
    audits.verdicts += verdicts
    assert audits.found() == [
        "Server r-server differs from two others by 2.5e-01, and honest ones by at most 1e-03: another one has "
        "computed in its place, and it is avoided until 1970-01-01 00:10:00 UTC.",
        "Could not be told: layers 0:2 at disputed and the only other server of these layers differ by 2.5e-01, and "
        "honest ones by at most 1e-03.",
        "Unchecked, since nobody else serves these layers: layers 0:2 at nchecked.",
        "Checked: 1 of 4 answers to prompts, each within 1e-03 of another server's.",
    ]


def test_who_begins_to_lie_behind_the_prompt_is_noticed_by_servers_that_took_no_part(published):
    swarm = swarm_of(published, "a", "b", liar="a", lie=lambda states, generator: states)
    honestly = swarm.changed
    model = DistributedModel.from_pretrained(str(published[0]), swarm=swarm, audit_share=1.0)
    sampling = SamplingRequest(
        revision="", precision="float32", tokenizer="", input_ids=torch.ones(1, 6, dtype=torch.int64), seed=1,
        options=SamplingOptions(guidance_scale=2.0),
    )  # fmt: skip

    def found():
        audits = BlockAudits("float32", share=1.0)
        audits.compute_again(model, sampling, range(4), drawn_here(model, sampling, range(4), reads_once=False))
        return audits.found()

    def falsely(peer, answer):
        body, tensors = answer
        is_step = swarm.asked[-1] == ("a", "step")
        return (body, {name: part.flip(-1) for name, part in tensors.items()}) if is_step else answer

    for changed, said in ((honestly, "Checked: 4 pictures, each computed again by"), (falsely, "Some server is false")):
        swarm.changed = changed
        (line,) = found()
        assert said in line
        assert {hop.peer for hop in model.layers.route.took_part} == {"a"}
    assert {verdict.outcome for verdict in model.layers.audits.verdicts} == {"agrees"}, "it lies about no prompt"
    swarm.lose("b")
    assert found()[0].startswith("Unchecked behind the prompts, by others than took part: ")


def test_a_false_witness_does_not_bring_down_an_honest_server(published):
    hop, truth = Hop(peer="a", start=0, end=6), torch.ones(SHAPE)
    answers = {"b": truth * 2, "c": truth}
    outcomes = set()
    for secret in range(10):
        audits = BlockAudits("float32", share=1.0, secret=secret)
        others = {name: Hop(peer=name, start=0, end=6) for name in answers}
        verdict = audits.judge(hop, truth, others, lambda other: answers[other.peer])
        outcomes.add((verdict.outcome, verdict.liar))
    assert outcomes == {("agrees", None), ("false witness", others["b"])}


def test_one_against_one_is_a_dispute_and_nobody_else_is_unchecked():
    hop, truth = Hop(peer="a", start=0, end=6), torch.ones(SHAPE)
    audits = BlockAudits("float32", share=1.0, secret=0)
    verdict = audits.judge(hop, truth, {"b": hop}, lambda other: truth * 2)
    assert (verdict.outcome, verdict.liar) == ("disputed", None)
    assert audits.judge(hop, truth, {}, lambda other: truth).outcome == "unchecked"


def test_the_share_of_prompts_is_checked():
    audits = BlockAudits("float32", share=0.1, secret=3)
    assert 60 < sum(audits.wants() for _ in range(1000)) < 140
    with pytest.raises(ValueError, match=r"The share of audited prompts is 1\.5, expected 0 to 1"):
        BlockAudits("float32", share=1.5)


def test_only_servers_of_the_same_layers_revision_and_precision_are_witnesses(published):
    swarm = swarm_of(published, "a", "b")
    swarm._servers["part"] = local_server(published[1], range(0, 3))
    revision = swarm.served()[0].revision
    assert set(Route(swarm, "org/run", revision).others(Hop(peer="a", start=0, end=6))) == {"b"}
    assert set(Route(swarm, "org/run", revision).others(Hop(peer="a", start=0, end=3))) == {"b", "part"}
    assert Route(swarm, "org/run", "f" * 64).others(Hop(peer="a", start=0, end=6)) == {}


def test_the_nearest_server_is_found_and_one_that_cannot_be_reached_is_passed_by(published):
    swarm = swarm_of(published, "a", "b", "c")
    far = {"a": 0.5, "b": 0.01, "c": 0.0}
    swarm.lose("c")
    connect = swarm.connect

    class Distant(MortalSwarm):
        def connect(self, peer):
            link = connect(peer)
            link.round_trip_seconds = far[peer]
            return link

    route = Route(Distant(swarm._servers), "org/run", swarm.served()[0].revision)
    assert [hop.peer for hop in route.chain(range(6))] == ["b"]


def test_a_rate_beyond_belief_counts_little(published):
    swarm = swarm_of(published, "a", "b", "c")
    revision = swarm.served()[0].revision

    class Boasting(MortalSwarm):
        def served(self):
            rates = {"a": 1e15, "b": 100.0, "c": 100.0}
            return [replace(span, layers_per_second=rates[span.peer]) for span in super().served()]

    route = Route(Boasting(swarm._servers), "org/run", revision)
    assert max(span.layers_per_second for span in route._usable()) == 1600.0


def test_a_liar_is_avoided_by_later_clients_too_with_all_servers_of_its_user(published, tmp_path, caplog):
    class Named(MortalSwarm):
        """An authority vouches for the users of all servers."""

        def served(self):
            users = {"a": "mallory", "a again": "mallory"}
            return [replace(span, user=users.get(span.peer, "honest")) for span in super().served()]

    def swarm_of_names(*names):
        swarm = Named({name: local_server(published[1], range(0, 6)) for name in names})
        swarm.blocklist = ServerBlocklist(tmp_path / "avoided.json", clock=lambda: 0.0)
        return swarm

    swarm = swarm_of_names("a", "b", "c")
    swarm.slow, lie = {"b", "c"}, swarm_of(published, liar="a", lie=LIES["nothing done"]).changed
    swarm.changed = lie
    model = DistributedModel.from_pretrained(str(published[0]), swarm=swarm, audit_share=1.0)
    model.generate_image_codes(torch.ones(1, 6, dtype=torch.int64), seed=1, window=1)
    until = "it and the other servers of mallory are avoided until 1970-01-01 00:10:00 UTC."
    assert f"off): {until}" in caplog.text
    assert model.layers.audits.found()[0].endswith(until)
    later = swarm_of_names("a again", "b")
    later.slow = {"b"}
    caplog.clear()
    route = Route(later, "org/run", later.served()[0].revision)
    assert [hop.peer for hop in route.chain(range(6))] == ["b"]
    assert "Avoided, since they have answered falsely: a again until 1970-01-01 00:10:00 UTC." in caplog.text


def test_prompts_and_texts_of_a_language_model_are_checked(tmp_path):
    torch.set_num_threads(1)
    tiny_language_model(tmp_path, "gpt2")
    published = find_model(str(tmp_path))
    swarm = MortalSwarm({name: local_server(published, range(0, 4)) for name in "abc"})
    swarm.changed = lambda peer, answer: (
        (answer[0], {name: part * 1.1 for name, part in answer[1].items()}) if peer == "a" else answer
    )
    model = DistributedModel.from_pretrained(str(tmp_path), swarm=swarm, audit_share=1.0)
    honest = DistributedModel.from_pretrained(str(tmp_path))
    ids = torch.arange(1, 9)[None]
    options = dict(max_new_tokens=8, do_sample=False)
    assert torch.equal(model.generate(ids, **options), honest.generate(ids, **options))
    assert model.layers.audits.verdicts[0].outcome == "lies"
    options = SamplingOptions(num_image_codes=8)
    sampling = SamplingRequest(revision="", precision="float32", tokenizer="", input_ids=ids, options=options)
    model.layers.audits.compute_again(
        model, sampling, range(3), drawn_here(model, sampling, range(3), reads_once=False)
    )
    assert model.layers.audits.found()[-1] == "Checked: 3 texts, each computed again by servers that took no part."
