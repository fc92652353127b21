"""The record of a server."""

# hivemind's schemas are made of pydantic 1 models; a pydantic 2 model fails inside its validator.
from pydantic.v1 import BaseModel, StrictBool, conint, constr

from pipelines.core.swarm.peer_records import Count, Measured
from pipelines.core.swarm.records import RecordKind

SERVER_SECONDS = 30.0
"""Lifetime of a server's record, which is renewed three times as often."""


class ServerRecord(BaseModel):
    """What a peer serves of the run's model: whole drawings, consecutive layers, or both."""

    peer_id: constr(max_length=96)
    username: constr(max_length=96)
    state: constr(regex="^(joining|online|draining)$")
    """`joining`: loads weights; `draining`: finishes what it has begun, and takes nothing new."""

    revision: constr(regex="^[0-9a-f]{64}$")
    """SHA-256 of the weights' file: commits without new weights change nothing."""

    epoch: Count
    precision: constr(regex="^(float32|float16|bfloat16|int8)$")
    package_version: constr(max_length=32)
    draw_rate: Measured = 0.0
    """Codes a second, of all that it draws together; 0: it draws nothing."""

    free_places: Count = 0
    """Candidates that it would begin at once."""

    num_drawn: Count = 0
    """Pictures since its start; its own word."""

    first_layer: conint(ge=0, le=65536, strict=True) = 0
    end_layer: conint(ge=0, le=65536, strict=True) = 0
    """The layers from the first one to this one, which is not served; equal: none."""

    layer_rate: Measured = 0.0
    """Layers through which it takes one place of one sample in a second."""

    free_cache_bytes: Count = 0
    ranks: StrictBool = False
    """Whether it also ranks pictures with the run's CLIP."""

    relayed: StrictBool = False


SERVERS = RecordKind("servers", ServerRecord)
