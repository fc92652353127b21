"""A run's model on the terminal whose layers others serve."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pipelines.command_line.terminal.worker import become_worker

if TYPE_CHECKING:
    from torch import Tensor

    from pipelines.tasks.text_to_image.generation.generation_options import GenerationOptions
    from pipelines.tasks.text_to_image.generation.image_generation import TextToImage
    from pipelines.tasks.text_to_image.generation.text_to_image import RankedImage

UNCHECKED = "Unchecked: servers may have computed something else. To have others compute the same: --audit"


@contextmanager
def model_across_blocks(
    repository: str, *, revision: str | None, precision: str, audits: bool, patience_seconds: float
) -> Iterator[Any]:
    """Yield the model, an instance of its local class; at the end say whose machines took part.

    With `audits` other servers repeat every prompt, finished candidates can be computed again (`model.layers.audits`),
    and what that found is said.

    Raises what `join_as_client` and `DistributedModel.from_pretrained` raise; using the model may raise NoChainError.
    """
    console = become_worker()
    from pipelines.features.serving.blocks.client.distributed_model import DistributedModel
    from pipelines.features.serving.blocks.client.stream_swarm import join_as_client

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
        route = model.layers.route
        route.chain(range(len(model.layers)))  # what nobody serves is said before anything else is loaded
        status.stop()
        yield model
    hops = sorted(route.took_part, key=lambda hop: (hop.start, hop.end, hop.peer))
    chain = ", ".join(f"{hop.start}:{hop.end} at {hop.peer[-8:]}" for hop in hops)
    found = [UNCHECKED] if model.layers.audits is None else model.layers.audits.found()
    for line in (f"Layers {chain}, in {precision}.", *found):
        console.print(line, soft_wrap=True, highlight=False, markup=False)


def look_at_pictures(
    bundle: "TextToImage",
    prompts: "Sequence[str]",
    drawn: "Sequence[Sequence[RankedImage]]",
    options: "GenerationOptions",
    given: "Tensor | None",
) -> None:
    """Have the kept pictures of each prompt computed again by servers that took no part in the bundle's model.

    `given`, (given,) int64, are codes that all begin with.
    """
    import torch

    from pipelines.features.serving.draw.modalities.pictures import PICTURES
    from pipelines.features.serving.draw.requests import SamplingRequest

    for index, (prompt, kept) in enumerate(zip(prompts, drawn, strict=True)):
        sampling = SamplingRequest(
            revision="",
            precision="float32",
            tokenizer="",
            input_ids=PICTURES.ids_of(bundle.processor, prompt),
            prompt=index,
            seed=options.seed,
            options=options.sampling,
            image_prompt=None if given is None else given[None],
        )
        numbers, codes = [one.candidate_index for one in kept], torch.stack([one.image_codes for one in kept])
        bundle.model.layers.audits.compute_again(bundle.model, sampling, numbers, codes)
