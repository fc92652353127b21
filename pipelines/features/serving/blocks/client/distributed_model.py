"""`DistributedModel`: a published model whose layers others serve, used like the local one."""

from typing import Any

from pipelines.core.swarm.streams.quotas import Quota
from pipelines.features.serving.blocks.client.audits import BlockAudits
from pipelines.features.serving.blocks.client.remote_layers import HISTORY_BYTES, RemoteLayers
from pipelines.features.serving.blocks.client.route import PATIENCE_SECONDS, LocalSwarm, Route, Swarm
from pipelines.features.serving.blocks.codecs import FLOAT32
from pipelines.features.serving.blocks.sessions import BlockServer
from pipelines.features.serving.blocks.spans import DALLE, load_span, stack_shape
from pipelines.features.serving.blocks.weights import PublishedModel, find_model

UNLIMITED = 2**62


class DistributedModel:
    """Opens models; what it returns is an instance of the local class, with `layers` in addition.

    Example:
        with join_as_client("ORG/RUN") as swarm:
            model = DistributedModel.from_pretrained("ORG/RUN", swarm=swarm)
            codes = model.generate(processor(text=["a red circle"]).input_ids, num_return_sequences=4)
            streams = model.layers[0:6](hidden)
    """

    @staticmethod
    def from_pretrained(
        name: str,
        *,
        revision: str | None = None,
        swarm: Swarm | None = None,
        codec: str = FLOAT32,
        history_bytes: int = HISTORY_BYTES,
        patience_seconds: float = PATIENCE_SECONDS,
        precision: str | None = "float32",
        audit_share: float = 0.0,
    ) -> Any:
        """Return a run's or a folder's model; without a swarm its layers are read as well, and used here.

        `codec` is how hidden states travel: `float32`, `float16` or `int8`. `history_bytes` limits what a generation
        keeps, to go on when a server is lost; beyond it going on takes longer. `patience_seconds` is how long to wait
        for layers that nobody serves. `precision` is that of the servers, None for any; equal codes are promised among
        float32 servers only. `audit_share` of the prompts are checked with other servers (see `client.audits`).

        Raises:
            ValueError: there is no such model, or its blocks cannot be served.
        """
        model = find_model(name, revision)
        shape = stack_shape(model.config)
        if swarm is None:
            swarm = LocalSwarm({"here": local_server(model, range(shape.num_layers))})
        route = Route(swarm, name, model.revision, patience_seconds=patience_seconds, precision=precision)
        layers = RemoteLayers(route, shape, codec=codec, history_bytes=history_bytes)
        if audit_share:
            layers.audits = BlockAudits(codec, share=audit_share, precision=precision, blocklist=swarm.blocklist)
        if model.config.get("model_type") == DALLE:
            from pipelines.features.serving.blocks.client.dalle_model import DistributedDalleCollab

            return DistributedDalleCollab.assemble(model, layers)
        from pipelines.features.serving.blocks.client.causal_model import assemble_causal

        return assemble_causal(model, layers)


def local_server(model: PublishedModel, layers: range, *, memory: Quota | None = None) -> BlockServer:
    """Return a server of these layers for this machine's own use."""
    memory = memory or Quota("bytes of caches", per_peer=UNLIMITED, in_all=UNLIMITED)
    return BlockServer(span=load_span(model, layers), revision=model.revision, memory=memory)
