"""A run's model on the terminal whose layers others serve."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pipelines.command_line.terminal.worker import become_worker

UNCHECKED = "Unchecked: servers may have computed something else. To have others repeat the prompts: --audit"


@contextmanager
def model_across_blocks(
    repository: str, *, revision: str | None, precision: str, audits: bool, patience_seconds: float
) -> Iterator[Any]:
    """Yield the model, an instance of its local class; at the end say through whose machines the chain went.

    With `audits` other servers repeat every prompt, and it is said what that has found.

    Raises what `join_as_client` and `DistributedModel.from_pretrained` raise; using the model may raise NoChainError.
    """
    console = become_worker()
    from pipelines.serving.blocks.client.audits import what_audits_found
    from pipelines.serving.blocks.client.distributed_model import DistributedModel
    from pipelines.serving.blocks.client.joining import join_as_client

    with console.status(f"Entering the swarm of {repository}") as status, join_as_client(repository) as swarm:
        status.update("Reading the embeddings and the head")
        model = DistributedModel.from_pretrained(
            repository,
            revision=revision,
            swarm=swarm,
            precision=precision,
            patience_seconds=patience_seconds,
            audit_share=1.0 if audits else 0.0,
        )
        layers = range(len(model.layers))
        model.layers.route.chain(layers)  # what nobody serves is said before anything else is loaded
        status.stop()
        yield model
        chain = ", ".join(f"{hop.start}:{hop.end} at {hop.peer[-8:]}" for hop in model.layers.route.chain(layers))
        found = [UNCHECKED] if (book := model.layers.audits) is None else what_audits_found(book.verdicts, book.limit)
    for line in (f"Layers {chain}, in {precision}.", *found):
        console.print(line, soft_wrap=True, highlight=False, markup=False)
