"""`dalle-collab model finetune`: train a published model on your own image codes."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hub_tools.printing.consoles import open_progress
from pipelines.command_line.terminal.setting_options import refuse_given
from pipelines.tasks.text_to_image.finetuning.finetuning_options import FinetuningOptions as Options

if TYPE_CHECKING:
    from pipelines.tasks.text_to_image.finetuning.finetuning import FinetuningProgress, FinetuningSource, TrainableModel

INTERRUPTED_EXIT_CODE = 130


def finetune(
    context: typer.Context,
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Model Hub repository of a run or model, or a folder.")],
    dataset: Annotated[str, typer.Option(help="Dataset Hub repository of image codes, ORG/NAME.")],
    output: Annotated[Path, typer.Option(help="Folder for the result; an older result is replaced.")],
    full: Annotated[bool, typer.Option("--full", help="Train all weights instead of a LoRA adapter.")] = False,
    merge: Annotated[bool, typer.Option("--merge", help="Also write a whole model with the adapter merged.")] = False,
    steps: Annotated[int, typer.Option(help="Optimizer steps.")] = Options.num_steps,
    micro_batch_size: Annotated[int, typer.Option(help="Samples per forward pass.")] = Options.micro_batch_size,
    gradient_accumulation: Annotated[
        int, typer.Option(help="Micro-batches per optimizer step.")
    ] = Options.gradient_accumulation,
    learning_rate: Annotated[float, typer.Option(help="Highest learning rate.")] = Options.learning_rate,
    warmup: Annotated[float, typer.Option(help="Share of the steps in which the rate rises.")] = Options.warmup_share,
    lora_rank: Annotated[int, typer.Option(help="Rank of the adapter: higher learns more.")] = Options.lora_rank,
    lora_alpha: Annotated[float, typer.Option(help="Adapter's scale, times its rank.")] = Options.lora_alpha,
    mixed_precision: Annotated[str, typer.Option(help="no, bf16 or fp16.")] = Options.mixed_precision,
    save_every: Annotated[int, typer.Option(help="Steps between saves.")] = Options.save_interval_steps,
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = Options.seed,
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit of the model.")] = None,
    dataset_revision: Annotated[str | None, typer.Option(help="Branch, tag or commit of the dataset.")] = None,
) -> None:
    """Fine-tune a model on your own pictures, which the model's own codec has turned into image codes.

    Writes OUTPUT/adapter, a LoRA for peft; with --merge or --full also OUTPUT/model, a whole model. Both can be
    published as they are. Ctrl-C saves what was trained so far.

    Examples:

      dalle-collab model finetune my-org/birds --dataset my-org/owls-codes --output owls

      dalle-collab model finetune my-org/birds --dataset my-org/owls-codes --output owls --merge --steps 3000
      --mixed-precision bf16
    """
    if full:
        refuse_given(context, "--full trains all weights and no adapter", "lora_rank", "lora_alpha")
    options = Options(
        full=full,
        merge=merge,
        num_steps=steps,
        micro_batch_size=micro_batch_size,
        gradient_accumulation=gradient_accumulation,
        learning_rate=learning_rate,
        warmup_share=warmup,
        lora_rank=lora_rank,
        lora_alpha=lora_alpha,
        mixed_precision=mixed_precision,
        save_interval_steps=save_every,
        seed=seed,
    )
    _finetune(options, output, (model, dataset), revision=revision, dataset_revision=dataset_revision)


def _finetune(options: Options, output: Path, names: tuple[str, str], **revisions: str | None) -> None:
    import logging

    import torch

    # peft imports bitsandbytes, which on some processors misses an optional library that nothing here uses.
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    from pipelines.tasks.text_to_image.finetuning import finetuned_folder, finetuning

    finetuned_folder.check_output(output)
    source = finetuning.find_source(*names, **revisions)
    torch.manual_seed(options.seed)
    model = finetuning.load_trainable_model(source, options)
    write = partial(finetuned_folder.write_finetuned, output, model, source, options)
    first, newest = _train(model, source, options, write)
    folders = write(newest, merge=options.merge)
    typer.echo(f"Step {newest.step}: loss {newest.mean_loss:.4f}, at first {first.loss:.4f}.")
    for folder in folders:
        typer.echo(f"Wrote {folder}. Publish it: hub-tools publish folder {folder} ORG/NAME")
    if newest.step < options.num_steps:
        raise typer.Exit(INTERRUPTED_EXIT_CODE)


def _train(
    model: "TrainableModel",
    source: "FinetuningSource",
    options: Options,
    write: "Callable[[FinetuningProgress], object]",
) -> "tuple[FinetuningProgress, FinetuningProgress]":
    """Train to the end or to Ctrl-C, write now and then, and return the first and the newest step."""
    from pipelines.core.peer.prefetching import prefetched
    from pipelines.tasks.text_to_image.finetuning import finetuning

    first = newest = None
    try:
        with prefetched(lambda: source.batches(options)) as batches, _progress_bar(options.num_steps) as show:
            for newest in finetuning.finetune(model, batches, options):
                first = first or newest
                show(newest)
                if newest.step % options.save_interval_steps == 0 and newest.step < options.num_steps:
                    write(newest)
    except KeyboardInterrupt:
        if newest is None:  # there is nothing yet that would be worth keeping
            raise
    return first, newest


@contextmanager
def _progress_bar(num_steps: int) -> "Iterator[Callable[[FinetuningProgress], None]]":
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn("fine-tuning"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with open_progress(*columns, TextColumn("{task.description}")) as bar:
        task = bar.add_task("starting", total=num_steps)

        def show(progress: "FinetuningProgress") -> None:
            bar.update(task, completed=progress.step, description=f"loss {progress.mean_loss:.4f}")

        yield show
