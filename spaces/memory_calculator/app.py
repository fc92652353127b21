"""A Space that shows how much memory a training step needs, where it fits, and which settings would make it fit."""

import os

import gradio as gr

from hub_tools.endpoint import prepare_hub_client
from hub_tools.one_line_errors import explain_error
from hub_tools.printing.printable import one_line
from pipelines.features.memory_estimate.model_presets import MODEL_PRESETS
from pipelines.features.memory_estimate.models.precision import PRECISIONS
from pipelines.features.memory_estimate.settings import OPTIMIZER_BITS, OPTIMIZERS, RECOMPUTE_CHOICES
from pipelines.tools.pages.memory_calculator.calculator import CalculatorAnswer, CalculatorInput, answer, find_for
from pipelines.tools.pages.memory_calculator.fitting import MACHINES
from pipelines.tools.pages.memory_calculator.presentation import STYLE
from pipelines.tools.pages.own_pages import own_pages_only
from pipelines.tools.pages.page_style import PAGE_STYLE
from pipelines.tools.pages.run_pages import RunPage

INTRODUCTION = """# Training memory calculator
What one training step needs, on each GPU and in RAM. The tensors of a step of the model are counted,
without running it; attention is PyTorch's fused one, as transformers uses it."""


def build_interface(run: str) -> gr.Blocks:
    """Return the page; `run` goes into the command for joining."""

    def show(first: dict | None, *values: object) -> tuple[str, str, str, str]:
        try:
            shown = answer(CalculatorInput.from_values(values), first=first, run=run)
        except (ValueError, OSError) as error:
            shown = CalculatorAnswer(summary=explain_error(error))
        return shown.summary, shown.picture, shown.fits, shown.command

    def find(machine: str, *values: object) -> tuple[object, ...]:
        try:
            found = find_for(CalculatorInput.from_values(values), machine)
        except (ValueError, OSError) as error:
            return explain_error(error), *(gr.skip() for _ in values)
        return found.message, *found.input.values()

    def keep(*values: object) -> tuple[dict | None, object]:
        try:
            kept = CalculatorInput.from_values(values)
        except ValueError:
            return None, gr.update(visible=False)
        return kept.to_state(), gr.update(visible=True)

    with gr.Blocks(title="Training memory calculator") as interface:
        gr.Markdown(INTRODUCTION)
        first = gr.State(None)
        with gr.Row():
            with gr.Column(scale=2, min_width=300):
                inputs = _inputs()
            with gr.Column(scale=3, min_width=300):
                summary = gr.Textbox(label="Summary", lines=2, interactive=False)
                picture = gr.HTML()
                with gr.Row():
                    keep_button = gr.Button("Keep as A and compare", min_width=140)
                    forget_button = gr.Button("Stop comparing", visible=False, min_width=140)
                gr.Markdown("### Where it fits")
                fits = gr.HTML()
                with gr.Row():
                    machine = gr.Dropdown([item.name for item in MACHINES], value=MACHINES[1].name, label="Machine")
                    find_button = gr.Button("Find settings that fit", variant="primary", min_width=140)
                found = gr.Textbox(label="Found", interactive=False, lines=2)
                command = gr.Code(
                    label="Join a run with these settings", language="shell", interactive=False, wrap_lines=True,
                    elem_id="join-command",
                )  # fmt: skip
        outputs = [summary, picture, fits, command]
        quiet = dict(show_progress="hidden", concurrency_limit=8)
        changes = [item.change for item in inputs] + [first.change, interface.load]
        gr.on(changes, show, [first, *inputs], outputs, trigger_mode="always_last", api_name="estimate", **quiet)
        gr.on([find_button.click], find, [machine, *inputs], [found, *inputs], api_name="find", **quiet)
        gr.on([keep_button.click], keep, inputs, [first, forget_button], api_name=False, **quiet)
        gr.on(
            [forget_button.click],
            lambda: (None, gr.update(visible=False)),
            None,
            [first, forget_button],
            api_name=False,
            **quiet,
        )
    return interface


def _inputs() -> list[gr.components.Component]:
    """Return the controls in the order of `CalculatorInput`'s fields."""
    given = CalculatorInput()
    return [
        gr.Dropdown(list(MODEL_PRESETS), value=given.model, label="Model"),
        gr.Textbox(given.repository, label="or a model on the Hub", placeholder="ORG/MODEL", max_lines=1),
        gr.Slider(1, 256, value=given.micro_batch_size, step=1, label="Micro-batch (samples)"),
        gr.Number(given.sequence_length, precision=0, label="Sequence (tokens; 0: the model's maximum)"),
        gr.Radio(PRECISIONS, value=given.precision, label="Precision"),
        gr.Radio(RECOMPUTE_CHOICES, value=given.recompute, label="Recompute activations"),
        gr.Radio(OPTIMIZERS, value=given.optimizer, label="Optimizer"),
        gr.Radio([str(bits) for bits in OPTIMIZER_BITS], value=given.optimizer_bits, label="Optimizer state bits"),
        gr.Checkbox(given.offload_optimizer, label="Optimizer in RAM (offload)"),
        gr.Checkbox(given.collaborative, label="Peer of a swarm (hivemind's buffers)"),
        gr.Number(given.num_shared_groups, precision=0, label="Sets of layer weights to share (0: the model's own)"),
        gr.Slider(1, 16, value=given.num_gpus, step=1, label="GPUs"),
        gr.Checkbox(given.shard_over_gpus, label="Shard weights across GPUs (ZeRO 3, FSDP)"),
    ]


def main() -> None:
    """Start the Space with the settings of the environment."""
    import pipelines.features.memory_estimate.architectures  # noqa: F401  # the first model of the Hub then waits for no library

    prepare_hub_client()
    try:
        page = RunPage.from_environment("memory_calculator", os.environ)
    except ValueError as error:
        raise SystemExit(one_line(error)) from None
    interface = build_interface(os.environ.get("RUN", "ORG/RUN")).queue(max_size=64)
    interface.launch(css=PAGE_STYLE + STYLE, app_kwargs=own_pages_only(os.environ, page.middleware()))


if __name__ == "__main__":
    main()
