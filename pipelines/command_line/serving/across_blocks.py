"""A run's model on the terminal whose layers others serve."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pipelines.command_line.terminal.worker import become_worker


@contextmanager
def model_across_blocks(
    repository: str, *, revision: str | None, precision: str, patience_seconds: float
) -> Iterator[Any]:
    """Yield the model, an instance of its local class; at the end say through whose machines the chain went.

    Raises what `join_as_client` and `DistributedModel.from_pretrained` raise; using the model may raise NoChainError.
    """
    console = become_worker()
    from pipelines.serving.blocks.client.distributed_model import DistributedModel
    from pipelines.serving.blocks.client.joining import join_as_client

    with console.status(f"Entering the swarm of {repository}") as status, join_as_client(repository) as swarm:
        status.update("Reading the embeddings and the head")
        model = DistributedModel.from_pretrained(
            repository, revision=revision, swarm=swarm, precision=precision, patience_seconds=patience_seconds
        )
        layers = range(len(model.layers))
        model.layers.route.chain(layers)  # what nobody serves is said before anything else is loaded
        status.stop()
        yield model
        chain = ", ".join(f"{hop.start}:{hop.end} at {hop.peer[-8:]}" for hop in model.layers.route.chain(layers))
    console.print(f"Layers {chain}, in {precision}. Unchecked.", soft_wrap=True, highlight=False, markup=False)
