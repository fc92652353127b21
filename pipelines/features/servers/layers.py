"""Which layers nobody serves, and what fills them."""

from collections.abc import Iterable


def missing_layers(covered: Iterable[range], layers: range) -> list[range]:
    """Return the runs of layers that are in no span; what a span says of layers that there are not is left out."""
    held = {layer for span in covered for layer in range(max(span.start, layers.start), min(span.stop, layers.stop))}
    found: list[range] = []
    for layer in layers:
        if layer not in held:
            if found and found[-1].stop == layer:
                found[-1] = range(found[-1].start, layer + 1)
            else:
                found.append(range(layer, layer + 1))
    return found


def fill_command(repository: str, hole: range) -> str:
    """Return the command that serves missing layers."""
    return f"dalle-collab serve {repository} --blocks {hole.start}:{hole.stop}"
