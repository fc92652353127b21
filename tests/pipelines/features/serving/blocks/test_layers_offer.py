"""A block server's choices: its options, how many layers it takes, and how fast it says it is."""

import math
from contextlib import ExitStack
from types import SimpleNamespace

import pytest
import torch
from tiny_models import tiny_dalle, tiny_language_model

from hub_tools.run_files import WEIGHTS_FILE
from pipelines.core.peer.pausing import PauseSwitch
from pipelines.core.peer.volunteer import ignore_events
from pipelines.features.servers.server_record import ServerRecord
from pipelines.features.serving.blocks.client.distributed_model import local_server
from pipelines.features.serving.blocks.layers_offer import LayersOffer, layers_that_fit, measured_rate
from pipelines.features.serving.blocks.spans import stack_shape, tensor_prefixes
from pipelines.features.serving.blocks.weights import find_model
from pipelines.features.serving.offer import ServingOptions


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (dict(blocks="3"), "The blocks are '3', expected START:END such as 0:16, or auto"),
        (dict(blocks="5:5"), "expected START:END"),
        (dict(blocks="-1:2"), "expected START:END"),
        (dict(blocks="0:99999999999"), "expected START:END"),
        (dict(precision="bfloat16"), "expected float32 or int8 to serve layers"),
        (dict(memory_gibibytes=0), "memory_gibibytes is 0; expected a number above 0"),
        (dict(weights_gibibytes=-1.0), "weights_gibibytes is -1"),
        (dict(ranks=True), "about drawings and have no effect on blocks"),
    ],
)
def test_options_that_mean_nothing_are_refused(values, words):
    with pytest.raises(ValueError, match=words):
        ServingOptions(**{"blocks": "auto"} | values)


def test_blocks_are_a_range_or_a_choice():
    assert ServingOptions(blocks="2:5").layers() == range(2, 5) and ServingOptions(blocks="auto").layers() is None


@pytest.mark.parametrize("make", [tiny_dalle, lambda folder: tiny_language_model(folder, "gpt2")])
def test_as_many_layers_are_taken_as_fit_wherever_they_begin(tmp_path, make):
    make(tmp_path)
    model = find_model(str(tmp_path))
    num_layers = stack_shape(model.config).num_layers
    sizes = {
        length: max(
            model.num_bytes(tensor_prefixes(model.config, range(start, start + length)))
            for start in range(num_layers - length + 1)
        )
        for length in range(1, num_layers + 1)
    }
    for length, size in sizes.items():
        assert layers_that_fit(model, size) >= length
        assert sizes[layers_that_fit(model, size)] <= size
    assert layers_that_fit(model, 0) == 1 and layers_that_fit(model, math.inf) == num_layers


def test_a_rate_is_measured_and_all_memory_is_given_back(tmp_path):
    torch.set_num_threads(1)
    tiny_dalle(tmp_path)
    server = local_server(find_model(str(tmp_path)), range(0, 2))
    assert measured_rate(server) > 0 and server.memory.taken == 0


def test_a_server_moves_where_nobody_serves_and_keeps_its_layers_while_others_cannot_be_read(tmp_path):
    torch.set_num_threads(1)
    tiny_dalle(tmp_path)
    snapshot = SimpleNamespace(repository=str(tmp_path), commit=None, epoch=3)
    offer = LayersOffer(snapshot, ServingOptions(blocks="auto", weights_gibibytes=1e-9), "cpu")
    servers = {}
    place = SimpleNamespace(
        dht=SimpleNamespace(peer_id=SimpleNamespace(to_base58=lambda: "z")),
        records=SimpleNamespace(read=lambda _kind: servers),
    )
    chosen = offer.choose(place, ignore_events)
    with ExitStack() as stack:
        (service,) = offer.open(stack, ignore_events, PauseSwitch())
    before = offer.record()
    assert (chosen["first_layer"], chosen["end_layer"], chosen["epoch"]) == (0, 1, 3)
    assert before["layer_rate"] != chosen["layer_rate"] and before["revision"] == chosen["revision"]
    of_another = dict(peer_id="a", username="", precision="float32", package_version="")
    servers[b"other"] = ServerRecord(**before | of_another)
    assert offer.renew(None) is None, "it moves when it has seen the same twice"
    weights = tmp_path / WEIGHTS_FILE
    weights.rename(tmp_path / "away")
    with pytest.raises(FileNotFoundError):
        offer.renew(None)
    assert offer.record() == before and before["state"] == "online" and offer.report().missing
    (tmp_path / "away").rename(weights)
    assert offer.renew(None) is None and offer.renew(None) == dict(epoch=3, layers=[1, 2])
    assert offer.record()["first_layer"] == 1
    assert service.about()["span"] == [1, 2]
