"""Texts of a language run on the terminal: written here, or by volunteers' servers."""

import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import typer

from hub_tools.printing.printable import printable_json
from pipelines.command_line.terminal.worker import become_worker

if TYPE_CHECKING:
    from torch import Tensor

    from modeling_dalle_collab.sampling_dalle_collab import SamplingOptions

    Written = list[tuple[Tensor, dict[int, dict[str, object]]]]
    """For each prompt (candidate, place) tokens, and what is known of who has written which candidate."""


def write_texts(
    repository: str,
    prompts: list[str],
    *,
    options: "SamplingOptions",
    candidates: int,
    seed: int,
    batch_size: int,
    device: str,
    revision: str | None,
    volunteers: Mapping[str, Any] | None,
    across_blocks: Mapping[str, Any] | None,
    as_json: bool,
) -> None:
    """Print the texts behind each prompt.

    `volunteers` are arguments of `connect` besides, `across_blocks` of `model_across_blocks`; with neither the
    texts are written here.
    """
    wished = (repository, prompts, options, candidates, seed, revision, device)
    if volunteers is not None:
        tokenizer, config, written = _write_at_volunteers(*wished, **volunteers)
    else:
        tokenizer, config, written = _write_here(*wished, batch_size, across_blocks)
    from pipelines.features.serving.draw.modalities.texts import finished_text

    for prompt, (tokens, origins) in zip(prompts, written, strict=True):
        texts = [finished_text(tokenizer, row, config) for row in tokens]
        if as_json:
            described = [
                dict(candidate=number, text=text.text, tokens=row[: text.num_tokens].tolist(), has_ended=text.has_ended)
                | origins.get(number, {})
                for number, (row, text) in enumerate(zip(tokens, texts, strict=True))
            ]
            typer.echo(printable_json(dict(prompt=prompt, texts=described)))
        else:
            for text in texts:
                for line in f"{prompt}{text.text}".split("\n"):
                    typer.echo(line)


def _write_here(
    repository: str,
    prompts: list[str],
    options: "SamplingOptions",
    candidates: int,
    seed: int,
    revision: str | None,
    device: str,
    batch_size: int,
    across_blocks: Mapping[str, Any] | None,
) -> "tuple[Any, Any, Written]":
    with contextlib.ExitStack() as stack:
        across = None
        if across_blocks is not None:
            from pipelines.command_line.serving.across_blocks import model_across_blocks

            across = stack.enter_context(model_across_blocks(repository, revision=revision, **across_blocks))
        import torch

        from hub_tools.run_files import MODEL_FILES, PROCESSOR_FILES
        from pipelines.features.serving.draw.evidence import drawn_here
        from pipelines.features.serving.draw.modalities.texts import EVERY, TEXTS
        from pipelines.features.serving.draw.requests import SamplingRequest
        from pipelines.features.torch_devices import torch_device
        from pipelines.tasks.text_to_image.generation.image_generation import model_folder

        if across is None:
            folder = model_folder(repository, revision, MODEL_FILES)
            parts = TEXTS.load(folder, precision="float32", device=torch_device(device))
            tokenizer, model, is_here = parts.processor, parts.model, True
        else:
            folder = model_folder(repository, revision, PROCESSOR_FILES)
            (tokenizer, _), model, is_here = TEXTS.read(folder), across, False
        config, written = model.config, []
        for index, prompt in enumerate(prompts):
            ids = TEXTS.ids_of(tokenizer, prompt)
            TEXTS.check(ids, None, options, config)
            own = dict(revision="", precision="float32", tokenizer="", every=EVERY)
            sampling = SamplingRequest(input_ids=ids, prompt=index, seed=seed, options=options, **own)
            numbers = [range(first, min(first + batch_size, candidates)) for first in range(0, candidates, batch_size)]
            rows = [drawn_here(model, sampling, some, reads_once=is_here) for some in numbers]
            written.append((torch.cat(rows), {}))
            if across is not None and across.layers.audits is not None:
                across.layers.audits.compute_again(across, sampling, range(candidates), written[-1][0])
        return tokenizer, config, written


def _write_at_volunteers(
    repository: str,
    prompts: list[str],
    options: "SamplingOptions",
    candidates: int,
    seed: int,
    revision: str | None,
    device: str,
    **how: object,
) -> "tuple[Any, Any, Written]":
    console = become_worker()
    import torch

    from hub_tools.printing.stage_progress import stage_progress
    from pipelines.command_line.serving.swarm_drawing import draw_all, say_what_came, shown_client
    from pipelines.features.serving.draw.who_drew import origin_of
    from pipelines.features.torch_devices import torch_device

    where = torch_device(device)
    with shown_client(console, repository, revision=revision, device=where, **how) as (status, client):
        status.stop()
        with stage_progress(console) as on_progress:
            drawn = draw_all(client, prompts, candidates, "writing", on_progress, seed=seed, options=options)
        say_what_came(console, drawn, is_audited=client.is_audited)
        written = [
            (
                torch.stack([one.codes for one in each.candidates]),
                {one.number: origin_of(one) for one in each.candidates},
            )
            for each in drawn
        ]
        return client.processor, client.config, written
