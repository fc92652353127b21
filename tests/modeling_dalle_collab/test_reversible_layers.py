"""Recomputed and stored activations give the same gradients; memory does not grow with depth when recomputing."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from peft import LoraConfig, get_peft_model

from modeling_dalle_collab import DalleCollabForConditionalGeneration
from modeling_dalle_collab.blocks_dalle_collab import shift_tokens
from modeling_dalle_collab.compiled_dalle_collab import CompiledFunction, compiled
from modeling_dalle_collab.feed_forward_dalle_collab import gated_gelu


def gradients(model, batch, recompute):
    model.config.recompute = recompute
    model.zero_grad()
    loss = model(*batch, return_logits=False).loss
    loss.backward()
    return loss.item(), {name: parameter.grad for name, parameter in model.named_parameters()}


def assert_equal_gradients(one, other, tolerance=1e-5):
    assert one.keys() == other.keys()
    for name in one:
        error = (one[name] - other[name]).norm() / other[name].norm()
        assert error < tolerance, f"{name}: {error}"


@pytest.mark.parametrize("recompute", ["reversible", "partial"])
def test_recomputed_gradients_equal_stored_ones(golden_model, golden, recompute):
    _, expected = golden
    model = DalleCollabForConditionalGeneration(golden_model().config)
    batch = expected["text"], expected["image"]
    stored, recomputed = gradients(model, batch, "none"), gradients(model, batch, recompute)
    assert stored[0] == recomputed[0]
    assert_equal_gradients(recomputed[1], stored[1])


@pytest.mark.parametrize("recompute", ["reversible", "partial"])
def test_recomputation_is_exact_up_to_rounding(golden_model, golden, recompute):
    # The golden weights make streams that grow a hundredfold, so float32 rounding would hide an error here.
    _, expected = golden
    model, batch = golden_model().double(), (expected["text"], expected["image"])
    stored, recomputed = gradients(model, batch, "none"), gradients(model, batch, recompute)
    assert_equal_gradients(recomputed[1], stored[1], tolerance=1e-11)


@pytest.mark.parametrize("frozen", ["weight", "bias"])
def test_a_frozen_parameter_gets_no_gradient_and_the_others_keep_theirs(tiny_model, tiny_batch, frozen):
    model = tiny_model()
    _, everything = gradients(model, tiny_batch(), "none")
    name = f"model.stack.groups.0.feed_forward.input.{frozen}"
    model.get_parameter(name).requires_grad_(False)
    for recompute in ("none", "reversible"):
        _, rest = gradients(model, tiny_batch(), recompute)
        assert rest.pop(name) is None
        assert_equal_gradients(rest, {key: value for key, value in everything.items() if key != name})


def test_transformers_checkpointing_gives_the_same_gradients(tiny_model, tiny_batch):
    model = tiny_model(feed_forward_dropout=0.3).train()
    results = []
    for enable in (False, True):
        if enable:
            model.activation_checkpointing_enable()
        torch.manual_seed(3)
        results.append(gradients(model, tiny_batch(), "none"))
    assert model.is_activation_checkpointing and results[0][0] == results[1][0]
    assert_equal_gradients(results[1][1], results[0][1])
    assert kept_bytes(model, tiny_batch()) < 0.5 * kept_bytes(tiny_model(recompute="none"), tiny_batch())


@pytest.mark.parametrize("recompute", ["reversible", "partial"])
def test_recomputation_drops_the_same_activations(tiny_model, tiny_batch, recompute):
    model = tiny_model(attention_dropout=0.3, feed_forward_dropout=0.3).train()
    results = []
    for choice in ("none", recompute):
        torch.manual_seed(3)
        results.append(gradients(model, tiny_batch(), choice))
    torch.manual_seed(4)
    other_loss, _ = gradients(model, tiny_batch(), "reversible")
    assert results[0][0] == results[1][0] != other_loss
    assert_equal_gradients(results[1][1], results[0][1])


def test_recomputation_keeps_autocast(tiny_model, tiny_batch):
    model = tiny_model(recompute="reversible")
    seen = []
    layer = model.model.stack.groups[0].feed_forward.input
    layer.register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(*tiny_batch(), return_logits=False).loss
    num_uses = len(seen)
    loss.backward()
    assert num_uses > 0 and seen == [torch.bfloat16] * (2 * num_uses)


def test_autocast_gives_about_the_gradients_of_float32(tiny_model, tiny_batch):
    model = tiny_model()
    _, exact = gradients(model, tiny_batch(), "reversible")
    with torch.autocast("cpu", torch.bfloat16):
        _, rounded = gradients(model, tiny_batch(), "reversible")
    assert_equal_gradients(rounded, exact, tolerance=0.1)


def test_frozen_parameters_get_no_gradient_and_the_others_the_same(tiny_model, tiny_batch):
    model = tiny_model()
    _, everything = gradients(model, tiny_batch(), "reversible")
    model.model.stack.groups[1].requires_grad_(False)
    _, some = gradients(model, tiny_batch(), "reversible")
    frozen = {name for name in some if "groups.1." in name}
    assert frozen and all(some[name] is None for name in frozen)
    rest = some.keys() - frozen
    assert_equal_gradients({name: some[name] for name in rest}, {name: everything[name] for name in rest})


def test_gradients_of_parameters_can_be_asked_for_directly(tiny_model, tiny_batch):
    model = tiny_model()
    _, expected = gradients(model, tiny_batch(), "reversible")
    model.zero_grad()
    names = list(expected)
    asked = torch.autograd.grad(model(*tiny_batch()).loss, [model.get_parameter(name) for name in names])
    assert_equal_gradients(dict(zip(names, asked, strict=True)), expected)
    assert all(parameter.grad is None for parameter in model.parameters())


def kept_bytes(model, batch):
    """Return the bytes that autograd keeps of a model's loss, or of a stack's output; parameters left out."""
    parameters = {parameter.data_ptr() for parameter in model.parameters()}
    kept = {}

    def pack(tensor):
        if tensor.data_ptr() not in parameters:
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = model(*batch, return_logits=False).loss if isinstance(batch, tuple) else model(batch)
    assert result.requires_grad
    return sum(kept.values())


def test_recomputing_keeps_the_same_bytes_at_every_depth(tiny_model, tiny_batch):
    seen = {depth: kept_bytes(tiny_model(num_hidden_layers=depth), tiny_batch()) for depth in (8, 16, 32, 64)}
    assert len(set(seen.values())) == 1


def test_recomputing_layers_keep_the_two_streams_and_nothing_else(tiny_model):
    model = tiny_model(num_hidden_layers=16)
    x = torch.randn(3, model.config.sequence_length + 1, model.config.hidden_size, requires_grad=True)
    assert kept_bytes(model.model.stack, x) == 2 * x.numel() * 4


def test_storing_keeps_bytes_for_every_stored_layer(tiny_model, tiny_batch):
    def per_layer(recompute):
        deep, shallow = (
            kept_bytes(tiny_model(num_hidden_layers=depth, recompute=recompute), tiny_batch()) for depth in (34, 18)
        )
        return (deep - shallow) / 16

    assert per_layer("partial") == pytest.approx(per_layer("none") / 2, rel=0.01)
    assert per_layer("none") > 0


def test_gated_gelu_is_the_plain_formula_with_its_gradient():
    x = torch.randn(5, 8, dtype=torch.float64, requires_grad=True)
    value, gate = x.chunk(2, dim=-1)
    torch.testing.assert_close(gated_gelu(x), value * torch.nn.functional.gelu(gate))
    assert torch.autograd.gradcheck(gated_gelu, x)


@pytest.mark.slow
# torch 2.15 meets its own warning while it traces a function that differentiates inside
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@pytest.mark.long
@pytest.mark.parametrize("recompute", ["reversible", "partial", "none"])
def test_compiled_code_gives_the_same_gradients(tiny_model, tiny_batch, recompute):
    model = tiny_model(recompute=recompute)
    expected = gradients(model, tiny_batch(), recompute)
    torch._dynamo.reset()
    compiled = gradients(torch.compile(model, backend="aot_eager"), tiny_batch(), recompute)
    assert compiled[0] == pytest.approx(expected[0], abs=1e-5)
    names = [name.removeprefix("_orig_mod.") for name in compiled[1]]
    assert_equal_gradients(dict(zip(names, compiled[1].values(), strict=True)), expected[1])


@pytest.mark.slow
# torch 2.14 meets its own warning while it traces a function within a backward pass
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
def test_compiled_layers_give_the_same_gradients_however_many_there_are(tiny_model, tiny_batch):
    model = tiny_model(num_hidden_layers=18)
    expected = {kind: gradients(model, tiny_batch(), kind) for kind in ("none", "reversible")}
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    compiled.cache_clear()
    model.compile_layers()
    for recompute, (loss, stored) in expected.items():
        found = gradients(model, tiny_batch(), recompute)
        assert found[0] == pytest.approx(loss, abs=1e-5)
        assert_equal_gradients(found[1], stored)
    # Each of the three kinds of attention and the feed-forward branch: with gradients, and without.
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 2 * (3 + 1)


def test_a_function_has_many_compiled_variants_in_every_thread():
    graphs = []

    def count(graph, inputs):
        graphs.append(graph)
        return graph.forward

    function = CompiledFunction(lambda x, kind: x + len(kind), backend=count)
    kinds = ["x" * number for number in range(20)]
    with ThreadPoolExecutor(1) as other:
        for kind in kinds[:10]:
            assert function(torch.zeros(2), kind).tolist() == [len(kind)] * 2
        for kind in kinds[10:]:
            assert other.submit(function, torch.zeros(2), kind).result().tolist() == [len(kind)] * 2
    assert len(graphs) == 20 and not function.has_failed


def test_captions_are_dropped_in_training_alone(tiny_model, tiny_batch):
    model, (text, codes) = tiny_model(caption_dropout=0.5), tiny_batch(batch=64)
    empty = torch.full_like(text, model.config.pad_token_id)
    torch.manual_seed(0)
    losses = [model.train()(text, codes).loss.item(), model.eval()(text, codes).loss.item()]
    torch.manual_seed(0)
    dropped = torch.rand(64, 1) < 0.5
    assert 20 < dropped.sum() < 44
    mixed = model(torch.where(dropped, empty, text), codes).loss.item()
    assert losses[0] == pytest.approx(mixed, rel=1e-6) and losses[0] != pytest.approx(losses[1], rel=1e-4)


def test_token_shift_takes_channels_from_the_neighbours(tiny_config):
    config = tiny_config()
    block, size, quarter = config.text_block_length, config.image_grid_size, config.hidden_size // 4
    x = torch.randn(2, block + size * size, config.hidden_size)
    expected = x.clone()
    for position in range(block):
        expected[:, position, : 2 * quarter] = x[:, position - 1, : 2 * quarter] if position else 0
    for place in range(size * size):
        row, column = divmod(place, size)
        above, left = x[:, block + place - size], x[:, block + place - 1]
        expected[:, block + place, :quarter] = above[:, :quarter] if row else 0
        expected[:, block + place, quarter : 2 * quarter] = left[:, quarter : 2 * quarter] if column else 0
    assert torch.equal(shift_tokens(x, config), expected)
    assert torch.equal(shift_tokens(x[:, :block], config), expected[:, :block])


def test_token_shift_has_the_right_gradient(tiny_config):
    config = tiny_config(text_sequence_length=2, image_grid_size=3, hidden_size=8)
    x = torch.randn(1, 12, 8, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda value: shift_tokens(value, config), x)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
def test_dropout_of_an_adapter_is_the_same_when_layers_are_recomputed(tiny_model, tiny_batch):
    gradients = []
    for recompute in ("reversible", "none"):
        torch.manual_seed(3)
        settings = LoraConfig(r=2, lora_dropout=0.5, target_modules=["qkv", "output"], init_lora_weights=False)
        adapted = get_peft_model(tiny_model(recompute=recompute), settings).train()
        adapted(*tiny_batch()).loss.backward()
        gradients.append({name: tensor.grad for name, tensor in adapted.named_parameters() if "lora" in name})
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradient, gradients[1][name], atol=1e-5, rtol=1e-3)
