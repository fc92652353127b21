"""The DALL-E model with its layers elsewhere is the local one: codes, logits, gradients, whatever server is lost."""

import pytest
import torch
from block_links import MortalSwarm
from tiny_models import tiny_dalle

from modeling_dalle_collab import DalleCollabForConditionalGeneration
from pipelines.core.swarm.streams.quotas import Quota
from pipelines.core.swarm.streams.refusals import Refusal
from pipelines.features.serving.blocks.client.distributed_model import DistributedModel, local_server
from pipelines.features.serving.blocks.routing import NoChainError
from pipelines.features.serving.blocks.weights import find_model

SPANS = {"a": range(0, 3), "b": range(2, 6)}
SPARES = SPANS | {"c": range(0, 4), "d": range(3, 6)}
OPTIONS = [
    dict(temperature=0.0, window=4),
    dict(window=1, guidance_scale=2.0),
    dict(window=3, cache_implementation="static"),
    dict(top_k=None, num_image_codes=20),
]


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    return folder, tiny_dalle(folder)


@pytest.fixture(scope="module")
def published(saved):
    return find_model(str(saved[0]))


@pytest.fixture
def served(saved, published):
    """Return a client's model and its servers."""

    def make(spans=SPANS, **options):
        swarm = MortalSwarm({name: local_server(published, layers) for name, layers in spans.items()})
        options = dict(patience_seconds=0.0) | options
        return DistributedModel.from_pretrained(str(saved[0]), swarm=swarm, **options), swarm

    return make


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(3)
    return torch.randint(0, 40, (3, 6), generator=generator), torch.randint(0, 24, (3, 64), generator=generator)


def memory_taken(swarm):
    return {name: server.memory.taken for name, server in swarm._servers.items()}


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_codes_are_the_local_ones_and_the_memory_is_given_back(saved, served, batch, options):
    model, swarm = served()
    expected = saved[1].generate_image_codes(batch[0], num_candidates=3, seed=5, candidate_batch_size=4, **options)
    found = model.generate_image_codes(batch[0], num_candidates=3, seed=5, candidate_batch_size=4, **options)
    assert torch.equal(found, expected)
    assert memory_taken(swarm) == {"a": 0, "b": 0}


def test_image_prompts_streams_and_generate_are_the_local_ones(saved, served, batch):
    (text, codes), (model, _) = batch, served()
    options = dict(image_prompt=codes[:, :11], window=1, num_candidates=2)
    assert torch.equal(model.generate_image_codes(text, **options), saved[1].generate_image_codes(text, **options))
    found, expected = (list(one.stream_image_codes(text, every=10, window=2)) for one in (model, saved[1]))
    assert len(found) == len(expected) and all(map(torch.equal, found, expected))
    assert torch.equal(model.generate(text, do_sample=False), saved[1].generate(text, do_sample=False))


def test_the_client_holds_only_what_is_around_the_layers(saved, served, batch):
    model, _ = served()
    assert isinstance(model, DalleCollabForConditionalGeneration)
    own = {name for name, _ in model.named_parameters()}
    assert own == {"model.token_embedding.weight", "model.norm.weight", "model.norm.bias", "output_bias"}
    found, expected = (one(*batch, output_hidden_states=True) for one in (model, saved[1]))
    assert torch.equal(found.logits, expected.logits) and torch.equal(found.loss, expected.loss)
    assert all(map(torch.equal, found.hidden_states, expected.hidden_states))


def test_gradients_of_inputs_and_own_parameters_are_the_local_ones(saved, served, batch):
    model, _ = served()
    for one in (model, saved[1]):
        one.zero_grad()
        one(*batch).loss.backward()
    for name, parameter in model.named_parameters():
        expected = saved[1].get_parameter(name).grad
        assert (parameter.grad - expected).norm() <= 1e-6 * expected.norm(), name


@pytest.mark.parametrize(("codec", "limit"), [("float16", 2e-3), ("int8", 5e-2)])
def test_shorter_codecs_move_the_logits_little(saved, served, batch, codec, limit):
    model, _ = served(codec=codec)
    with torch.no_grad():
        found, expected = (torch.cat(one.block_logits(one.model(*batch)[0])[1:]) for one in (model, saved[1]))
    assert 0 < (found - expected).abs().max() < limit * expected.abs().max()


def test_layers_are_a_module_with_ones_own_between(saved, served, batch):
    (text, codes), (model, _) = batch, served()
    stack, config = saved[1].model.stack, saved[1].config
    ids = torch.cat([model.model.text_block_ids(text), codes + config.num_text_ids], dim=1)
    x = model.model.token_embedding(ids).detach().requires_grad_()
    first, second = model.layers[0:4](x)
    second = second * 1.5
    first, second = model.layers[4:6](first, second)
    mine = stack.run_layers(x, x, range(0, 4))
    expected = stack.run_layers(mine[0], mine[1] * 1.5, range(4, 6))
    assert torch.equal(first, expected[0]) and torch.equal(second, expected[1])
    (grad,), (wanted,) = (torch.autograd.grad(out.square().sum(), x) for out in (second, expected[1]))
    # Reversible layers compute their inputs again, each span from its own end.
    assert (grad - wanted).norm() <= 1e-5 * wanted.norm()
    with pytest.raises(IndexError, match="expected a range such as 0:6"):
        model.layers[6:9]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lost", "history_bytes", "step"), [("a", 2**30, 0), ("b", 0, 0), ("b", 2**30, 1), ("a", 0, 20), ("b", 2**30, 60)]
)
def test_after_a_loss_the_codes_are_the_same(saved, served, batch, lost, history_bytes, step):
    model, swarm = served(SPARES, history_bytes=history_bytes)
    steps = []

    def lose_at_a_step(peer, what):
        steps.extend([what] if what == "step" else [])
        if len(steps) == 2 * step + (lost == "b") and not swarm.lost:
            swarm.lose(lost)

    swarm.before = lose_at_a_step
    options = dict(num_candidates=2, seed=9, window=1, guidance_scale=1.5)
    found = model.generate_image_codes(batch[0], **options)
    assert torch.equal(found, saved[1].generate_image_codes(batch[0], **options))
    assert swarm.lost and memory_taken(swarm) == dict.fromkeys(SPARES, 0)
    assert model.layers.route.num_failures >= (lost in {peer for peer, _ in swarm.asked} or step == 0)


@pytest.mark.parametrize("window", [3, 8])
def test_after_a_loss_samples_that_have_come_to_different_places_go_on(saved, served, batch, window):
    model, swarm = served(SPARES)
    questions = []

    def lose_two(peer, what):
        questions.append(what)
        if questions.count("step") == 31:
            swarm.lose("a")
        if questions.count("step") == 60:
            swarm.lose("d")

    swarm.before = lose_two
    options = dict(num_candidates=4, seed=2, window=window)
    found = model.generate_image_codes(batch[0], **options)
    assert torch.equal(found, saved[1].generate_image_codes(batch[0], **options))
    assert len(swarm.lost) == 2


@pytest.mark.parametrize("history_bytes", [2**30, 0])
def test_after_several_losses_the_codes_are_the_same(saved, served, batch, history_bytes):
    """With little history the whole chain is built anew each time; what is lost second was built so itself."""
    model, swarm = served(SPARES, history_bytes=history_bytes)
    steps, hits = [], {12: "b", 40: "d", 70: "a"}

    def lose(peer, what):
        steps.extend([what] if what == "step" else [])
        if (name := hits.pop(len(steps), None)) is not None:
            swarm.lose(name)
            swarm.lost -= {"b"} if name == "d" else set()

    swarm.before = lose
    options = dict(num_candidates=2, seed=9, window=1)
    found = model.generate_image_codes(batch[0], **options)
    assert torch.equal(found, saved[1].generate_image_codes(batch[0], **options))
    assert not hits and swarm.lost == {"a", "d"} and memory_taken(swarm) == dict.fromkeys(SPARES, 0)


def test_the_only_server_without_room_is_asked_until_the_patience_ends(saved, published, batch):
    little = Quota("bytes of caches", per_peer=2**17, in_all=2**20)
    swarm = MortalSwarm({"a": local_server(published, range(0, 6), memory=little)})
    model = DistributedModel.from_pretrained(str(saved[0]), swarm=swarm, patience_seconds=0.0)
    with pytest.raises(Refusal, match="more bytes of caches would be above 131072 for one peer"):
        model.generate_image_codes(batch[0], num_candidates=32)
    assert little.taken == 0


def test_a_lost_server_in_the_backward_pass_changes_no_gradient(saved, served, batch):
    model, swarm = served(SPARES)
    swarm.before = lambda peer, what: swarm.lose(peer) if what == "backward" and not swarm.lost else None
    for one in (model, saved[1]):
        one.zero_grad()
        one(*batch).loss.backward()
    expected = saved[1].model.token_embedding.weight.grad
    assert (model.model.token_embedding.weight.grad - expected).norm() <= 1e-6 * expected.norm()
    assert swarm.lost


def test_layers_that_nobody_serves_are_named(served, batch):
    model, swarm = served()
    swarm.lose("b")
    swarm._servers.pop("b")
    with pytest.raises(NoChainError, match=r"Nobody serves layers 3:6 of .* dalle-collab serve .* --blocks 3:6"):
        model.generate_image_codes(batch[0])


def test_nonsense_in_place_of_states_is_as_if_the_server_had_gone(saved, served, batch):
    model, swarm = served(SPARES)

    def lie(peer, answer):
        body, tensors = answer
        return (body, {name: part * torch.nan for name, part in tensors.items()}) if peer == "a" else answer

    swarm.changed = lie
    assert torch.equal(model.generate_image_codes(batch[0], seed=1), saved[1].generate_image_codes(batch[0], seed=1))


def test_what_no_server_would_do_is_told_at_once(served, batch):
    model, swarm = served()
    with pytest.raises(Refusal, match="window is 99, expected a whole number from 1 to 64"):
        model.generate_image_codes(batch[0], window=99)
    with pytest.raises(ValueError, match="compile_step is set, but the layers are on other machines"):
        model.generate_image_codes(batch[0], compile_step=True)
    with pytest.raises(ValueError, match="Attention weights stay where the layers are"):
        model.set_attn_implementation("eager")
        model(*batch, output_attentions=True)
    assert memory_taken(swarm) == {"a": 0, "b": 0}


def test_another_revision_is_refused_and_never_mixed(saved, published, batch, tmp_path):
    tiny_dalle(tmp_path, seed=7)
    other = local_server(find_model(str(tmp_path)), range(3, 6))
    swarm = MortalSwarm({"a": local_server(published, range(0, 3)), "b": other})
    model = DistributedModel.from_pretrained(str(saved[0]), swarm=swarm, patience_seconds=0.0)
    with pytest.raises(NoChainError, match="Of other revisions, which are never mixed: 1 server"):
        model(*batch)


def test_a_server_reads_only_its_own_tensors(published):
    names = [name for name in published.header if name.startswith("model.stack.")]
    read = set(published.read(["model.stack.layers.5.", "model.stack.groups.4."]))
    assert read and read < set(names)
    server = local_server(published, range(5, 6))
    held = {name for name, tensor in server.span.stack.named_parameters() if not tensor.is_meta}
    assert {f"model.stack.{name}" for name in held} == read
    with pytest.raises(ValueError, match=r"has the layers 0:6, not 4:9"):
        local_server(published, range(4, 9))
