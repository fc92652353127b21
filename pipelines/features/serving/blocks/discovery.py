"""What servers' records say about layers."""

from collections.abc import Mapping

from pipelines.features.servers.server_record import ServerRecord
from pipelines.features.serving.blocks.routing import ServedSpan

MOST_LAYERS = 4096


def served_spans(records: Mapping[bytes, ServerRecord], *, names_users: bool = False) -> list[ServedSpan]:
    """Return the spans in servers' records, but for invalid ones. `names_users`: see `ClientConnection`."""
    return [
        ServedSpan(
            peer=record.peer_id,
            start=record.first_layer,
            end=record.end_layer,
            revision=record.revision,
            layers_per_second=record.layer_rate,
            precision=record.precision,
            is_online=record.state == "online",
            user=record.username if names_users else "",
        )
        for record in records.values()
        if record.first_layer < record.end_layer <= MOST_LAYERS and record.layer_rate > 0
    ]
