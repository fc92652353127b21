"""`dalle-collab model convert`: convert models from elsewhere."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hub_tools.printing.consoles import open_console
from pipelines.command_line.terminal.setting_options import refuse_given

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from pipelines.tasks.text_to_image.conversion.converted_folder import Conversion


def convert(
    context: typer.Context,
    checkpoint: Annotated[Path, typer.Argument(help="Checkpoint of train_dalle.py, or a state dict.")],
    output: Annotated[Path, typer.Option(help="Folder of the model, new or empty.")],
    tokenizer: Annotated[
        str | None,
        typer.Option(help="Folder or Hub repository of the model's tokenizer; the original run's: t5-small."),
    ] = None,
    codebook_size: Annotated[int, typer.Option(help="Number of image codes in the model's codec.")] = 8192,
    attention_pattern: Annotated[
        str, typer.Option(help="Kinds that all layers but the last cycle through: row, column, convolutional.")
    ] = "row,column,row,row",
    final_attention: Annotated[str, typer.Option(help="Kind of the last layer.")] = "convolutional",
    conv_kernel_size: Annotated[int, typer.Option(help="Side of the window of convolutional attention.")] = 5,
    conv_window: Annotated[
        str, typer.Option(help="centred: the original run, dalle-pytorch up to 1.4.2; corner: from 1.5.0 on.")
    ] = "centred",
    head_dim: Annotated[int | None, typer.Option(help="Channels of a head; needed where several sizes fit.")] = None,
    pad_token_id: Annotated[int, typer.Option(help="Token id that captions were padded with.")] = 1,
) -> None:
    """Convert the weights of the original run, or of dalle-pytorch 1.4.0 to 1.6.6, to a folder for the Hub.

    No code in the checkpoint is run. Sizes are read from its tensors. What these do not show is read from the `hparams`
    that train_dalle.py writes beside them, or else is an option, with the original run's value as default. A model that
    ours cannot express is refused with the reason, except one with full attention in a file without `hparams`: its
    tensors look the same, and it would draw noise.

    Examples:

      dalle-collab model convert model_state.pt --output dalle --tokenizer t5-small

      dalle-collab model convert dalle.pt --output dalle --conv-window corner --codebook-size 1024
      --attention-pattern row,column --pad-token-id 0
    """
    from pipelines.tasks.text_to_image.conversion.converted_folder import convert_checkpoint, require_paths

    if "convolutional" not in f"{attention_pattern},{final_attention}":
        refuse_given(context, "no layer has convolutional attention", "conv_kernel_size", "conv_window")
    require_paths(checkpoint, output)  # before torch is imported, so that a mistyped path is reported at once
    from transformers.utils import logging

    from pipelines.tasks.text_to_image.conversion.checkpoint_sizes import UnseenSettings

    unseen = UnseenSettings(
        codebook_size=codebook_size,
        attention_pattern=tuple(kind.strip() for kind in attention_pattern.split(",")),
        final_attention=final_attention,
        conv_kernel_size=conv_kernel_size,
        conv_window=conv_window,
        head_dim=head_dim,
        pad_token_id=pad_token_id,
    )
    logging.disable_progress_bar()  # it would be drawn into ours
    with open_console(stderr=True).status("preparing") as status:
        fast_tokenizer = None if tokenizer is None else _load_tokenizer(tokenizer)
        conversion = convert_checkpoint(
            checkpoint,
            output,
            unseen,
            tokenizer=fast_tokenizer,
            on_stage=lambda stage: status.update(stage),
        )
    _print_result(conversion, output)


def _load_tokenizer(name: str) -> "PreTrainedTokenizerBase":
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"No fast tokenizer can be loaded from {name!r}: there is no such folder, and no such repository on this "
            "Hub. Name the tokenizer the model was trained with: --tokenizer NAME."
        ) from error


def _print_result(conversion: "Conversion", output: Path) -> None:
    config = conversion.config
    typer.echo(
        f"{output}: {conversion.num_parameters:,} parameters, {config.num_hidden_layers} layers with "
        f"{config.num_shared_groups} sets of weights, {config.text_sequence_length} text tokens, "
        f"{config.image_grid_size} x {config.image_grid_size} image codes, from {conversion.layout}."
    )
    if conversion.num_codec_tensors:
        typer.echo(f"{conversion.num_codec_tensors} tensors of a codec (vae.*) were left out.")
    if not conversion.has_processor:
        typer.echo("It has no tokenizer: give --tokenizer to add one.")
    typer.echo(f"Publish it: hub-tools publish folder {output} ORG/NAME")
