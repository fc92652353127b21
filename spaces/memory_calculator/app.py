"""A Space that shows how much memory a training step needs, where it fits, and which settings would make it fit."""

import dataclasses
import os

import gradio as gr

from hub_tools.endpoint import prepare_hub_client
from hub_tools.one_line_errors import explain_error
from hub_tools.printing.marked_up import escaped
from hub_tools.printing.printable import one_line
from pipelines.features.memory_estimate.model_presets import MODEL_PRESETS
from pipelines.features.memory_estimate.models.precision import PRECISIONS
from pipelines.features.memory_estimate.settings import OPTIMIZER_BITS, OPTIMIZERS, RECOMPUTE_CHOICES
from pipelines.tools.pages.memory_calculator.calculator import CalculatorInput, answer, find_for
from pipelines.tools.pages.memory_calculator.fitting import MACHINES
from pipelines.tools.pages.memory_calculator.presentation import MOST_SHOWN, STYLE
from pipelines.tools.pages.own_pages import own_pages_only
from pipelines.tools.pages.page_style import PAGE_STYLE
from pipelines.tools.pages.run_pages import RunPage

INTRODUCTION = """# Training memory calculator
What one training step needs, on each GPU and in RAM. The tensors of a step of the model are counted,
without running it; attention is PyTorch's fused one, as transformers uses it."""
NO_MACHINE = "Other"


def build_interface(run: str) -> gr.Blocks:
    """Return the page; it opens with the model of `run`, or of the run that a link names: `?run=ORG/RUN`."""

    def show(first: dict | None, *values: object) -> tuple[object, ...]:
        """Return the answer, and the control of what the swarm decides, locked."""
        try:
            given = CalculatorInput.from_values(values)
            shown, fixed = answer(given, first=first, run=run or "ORG/RUN"), given.fixed_offload
        except (ValueError, OSError) as error:
            problem = explain_error(error)
            return problem, "", "", "", "No figures: see the summary", gr.skip()
        offload = gr.update(interactive=True) if fixed is None else gr.update(value=fixed, interactive=False)
        return shown.summary, shown.picture, shown.fits, shown.command, shown.total, offload

    def open_with(request: gr.Request, *values: object) -> tuple[object, ...]:
        """Return the controls as the page opens: with the run's model, or as they are if that cannot be read."""
        asked = request.query_params.get("run") or run
        named = [asked if name == "repository" else value for name, value in zip(NAMES, values, strict=True)]
        try:
            return gr.skip(), asked, *CalculatorInput.from_values(named).as_in_run().values()
        except (ValueError, OSError) as error:
            said = f"These figures are not of {asked}: {explain_error(error)}"
            return gr.update(value=f"<p>{escaped(said)}</p>", visible=True), "", *values

    with gr.Blocks(title="Training memory calculator") as interface:
        gr.Markdown(INTRODUCTION)
        first, shown_run = gr.State(None), gr.State("")
        with gr.Row():
            with gr.Column(scale=2, min_width=300):
                inputs = _inputs()
            with gr.Column(scale=3, min_width=300):
                unread = gr.HTML(visible=False, elem_id="unread")
                summary = gr.Textbox("Reading the model…", label="Summary", lines=2, interactive=False)
                picture = gr.HTML()
                with gr.Row():
                    keep_button = gr.Button("Keep as A and compare", min_width=140)
                    forget_button = gr.Button("Stop comparing", visible=False, min_width=140)
                gr.Markdown("### Where it fits")
                fits = gr.HTML()
                with gr.Row():
                    machine = gr.Dropdown(
                        [*(item.name for item in MACHINES), NO_MACHINE], value=MACHINES[1].name, label="Machine",
                        min_width=260,
                    )  # fmt: skip
                    gpu = gr.Number(_gibibytes(MACHINES[1].gpu_bytes), label="GPU memory (GiB)", min_width=120)
                    ram = gr.Number(_gibibytes(MACHINES[1].ram_bytes), label="RAM (GiB)", min_width=120)
                find_button = gr.Button("Find the largest that fits", variant="primary")
                found = gr.Textbox(label="Found", interactive=False, lines=2)
                command = gr.Code(
                    label="Join a run with these settings", language="shell", interactive=False, wrap_lines=True,
                    lines=1, elem_id="join-command",
                )  # fmt: skip
        total = gr.Markdown(elem_id="total")
        by_name = dict(zip(NAMES, inputs, strict=True))
        repository, offload = by_name["repository"], by_name["offload_optimizer"]
        quiet = dict(show_progress="hidden", concurrency_limit=8)
        named = gr.on(
            [repository.submit, repository.blur],
            _as_in_run,
            [shown_run, *inputs],
            [shown_run, *inputs],
            api_name=False,
            **quiet,
        )
        opened = interface.load(open_with, inputs, [unread, shown_run, *inputs], api_name=False, **quiet)
        # A name that is being typed is no name yet.
        changes = [item.change for item in inputs if item is not repository] + [first.change]
        shown = dict(fn=show, inputs=[first, *inputs], outputs=[summary, picture, fits, command, total, offload])
        for then in (named.then, opened.then):
            then(**shown, api_name=False, **quiet)
        gr.on(changes, **shown, trigger_mode="always_last", api_name="estimate", **quiet)
        gr.on([find_button.click], _find, [gpu, ram, *inputs], [found, *inputs], api_name="find", **quiet)
        gr.on([machine.change], _memory_of, [machine], [gpu, ram], api_name=False, **quiet)
        gr.on([keep_button.click], _keep, inputs, [first, forget_button], api_name=False, **quiet)
        gr.on(
            [forget_button.click],
            lambda: (None, gr.update(visible=False)),
            None,
            [first, forget_button],
            api_name=False,
            **quiet,
        )
    return interface


NAMES = [item.name for item in dataclasses.fields(CalculatorInput)]


def _as_in_run(shown_run: str, *values: object) -> tuple[object, ...]:
    """Return the controls with what the run decides, if another one is named by now."""
    name = values[NAMES.index("repository")]
    try:
        if name != shown_run:
            decided = CalculatorInput.from_values(values).as_in_run().values()
            # What the run leaves to its peers may have been changed meanwhile.
            return name, *(gr.skip() if new == old else new for new, old in zip(decided, values, strict=True))
    except (ValueError, OSError):  # the summary says so
        pass
    return name, *(gr.skip() for _ in values)


def _find(gpu: float, ram: float, *values: object) -> tuple[object, ...]:
    try:
        found = find_for(CalculatorInput.from_values(values), gpu, ram)
    except (ValueError, OSError) as error:
        return explain_error(error), *(gr.skip() for _ in values)
    return found.message, *found.input.values()


def _keep(*values: object) -> tuple[dict | None, object]:
    try:
        kept = CalculatorInput.from_values(values)
    except ValueError:
        return None, gr.update(visible=False)
    return kept.to_state(), gr.update(visible=True)


def _inputs() -> list[gr.components.Component]:
    """Return the controls in the order of `CalculatorInput`'s fields."""
    given = CalculatorInput()
    repository = gr.Textbox(given.repository, label="A run or a model on the Hub", placeholder="ORG/NAME", max_lines=1)
    main = [
        gr.Dropdown(list(MODEL_PRESETS), value=given.model, label="Model, where none is named above"),
        repository,
        gr.Slider(1, MOST_SHOWN, value=given.micro_batch_size, step=1, label="Micro-batch (samples)"),
    ]
    precision = gr.Radio(PRECISIONS, value=given.precision, label="Precision")
    with gr.Accordion("More settings", open=False):
        return [
            *main,
            gr.Number(given.sequence_length, precision=0, label="Sequence (tokens; 0: the model's maximum)"),
            precision,
            gr.Radio(RECOMPUTE_CHOICES, value=given.recompute, label="Recompute activations"),
            gr.Radio(OPTIMIZERS, value=given.optimizer, label="Optimizer"),
            gr.Radio([str(bits) for bits in OPTIMIZER_BITS], value=given.optimizer_bits, label="Optimizer state bits"),
            gr.Checkbox(True, label="Optimizer in RAM (offload)", interactive=False),
            gr.Checkbox(given.collaborative, label="Peer of a swarm (hivemind's buffers)"),
            gr.Number(
                given.num_shared_groups, precision=0, label="Sets of layer weights to share (0: the model's own)"
            ),
            gr.Slider(1, 16, value=given.num_gpus, step=1, label="GPUs"),
            gr.Checkbox(given.shard_over_gpus, label="Shard weights across GPUs (ZeRO 3, FSDP)"),
        ]


def _memory_of(name: str) -> tuple[object, object]:
    known = next((item for item in MACHINES if item.name == name), None)
    if known is None:
        return gr.skip(), gr.skip()
    return _gibibytes(known.gpu_bytes), _gibibytes(known.ram_bytes)


def _gibibytes(number: float) -> float:
    return round(number / 2**30, 1)


def main() -> None:
    """Start the Space with the settings of the environment."""
    import pipelines.features.memory_estimate.architectures  # noqa: F401  # the first model of the Hub then waits for no library

    prepare_hub_client()
    try:
        page = RunPage.from_environment("memory_calculator", os.environ)
    except ValueError as error:
        raise SystemExit(one_line(error)) from None
    interface = build_interface(os.environ.get("RUN", "")).queue(max_size=64)
    interface.launch(css=PAGE_STYLE + STYLE, app_kwargs=own_pages_only(os.environ, page.middleware()))


if __name__ == "__main__":
    main()
