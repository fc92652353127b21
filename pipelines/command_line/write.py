"""`dalle-collab write`: continue texts with a run's newest checkpoint."""

from typing import Annotated

import typer

from pipelines.command_line.terminal import setting_options as shared


def write(
    context: typer.Context,
    repository: shared.RunOrFolder,
    prompts: Annotated[list[str] | None, typer.Argument(metavar="PROMPT", help="How the texts begin.")] = None,
    prompts_file: shared.PromptsFile = None,
    candidates: Annotated[int, typer.Option(help="Texts written for each prompt.")] = 1,
    max_tokens: Annotated[int, typer.Option(help="Longest text in tokens.")] = 64,
    top_k: shared.TopK = 256,
    top_p: shared.TopP = None,
    temperature: shared.Temperature = 1.0,
    seed: shared.SamplingSeed = 0,
    as_json: shared.PromptsAsJson = False,
    revision: shared.Revision = None,
    device: shared.Device = "auto",
    batch_size: shared.BatchSize = 64,
    swarm: shared.Swarm = False,
    blocks: shared.Blocks = False,
    precision: shared.ServerPrecision = "float32",
    audit: shared.Audit = False,
    patience: shared.Patience = 60.0,
) -> None:
    """Continue texts, and print each prompt with what follows.

    Everything is read from the run's repository. Pictures are drawn by `dalle-collab generate`.

    Examples:

      dalle-collab write my-org/gpt "The file is"

      dalle-collab write my-org/gpt "The file is" "The house" --candidates 4 --max-tokens 40 --temperature 0.8 --json

      dalle-collab write my-org/gpt "The file is" --swarm --audit
    """
    texts = shared.prompts_of(prompts, prompts_file)
    volunteers = shared.volunteers_of(
        context, swarm=swarm, blocks=blocks, audit=audit, precision=precision, patience=patience
    )
    for name, value in (("--candidates", candidates), ("--batch-size", batch_size), ("--max-tokens", max_tokens)):
        if value < 1:
            raise ValueError(f"{name} is {value}; expected at least 1.")
    shared.require_product(repository, revision, "texts")
    from modeling_dalle_collab.sampling_dalle_collab import SamplingOptions
    from pipelines.command_line.serving.text_writing import write_texts

    write_texts(
        repository,
        texts,
        options=SamplingOptions(num_image_codes=max_tokens, top_k=top_k, top_p=top_p, temperature=temperature),
        candidates=candidates,
        seed=seed,
        batch_size=batch_size,
        device=device,
        revision=revision,
        volunteers=volunteers if swarm else None,
        across_blocks=volunteers if blocks else None,
        as_json=as_json,
    )
