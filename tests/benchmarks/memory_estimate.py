"""The memory estimate beside what training steps really hold: known models and ours, of every size, tensor by tensor.

Usage: python tests/benchmarks/memory_estimate.py [--quick]. Fake tensors stand for the large ones, so that it runs on
any machine. Writes the results file and the table of docs/memory_estimate.md.
"""

import argparse
from pathlib import Path

from measured_models import build_known_model, measure_known_model, measure_our_model, without_dropout
from measurement import Row, write_results
from memory_measurement import MeasuredStep
from rich.console import Console
from torch._subclasses import FakeTensorMode
from transformers import masking_utils

from pipelines.features.memory_estimate.estimate import estimate_training_memory
from pipelines.features.memory_estimate.model_presets import DEFAULT_POSITIONS, MODEL_PRESETS, ModelSizes, figures_of
from pipelines.features.memory_estimate.settings import MemorySettings, MemorySplit

DOCUMENT = Path(__file__).parents[2] / "docs" / "memory_estimate.md"
HEAD = "| model | settings | weights | gradients | activations: estimate | measured | all: estimate / measured |\n"
QUICK = ("BERT base", "T5 small", "GPT-2 S")
T5_BASE = dict(model_type="t5", num_layers=12, d_model=768, num_heads=12, d_ff=2048, feed_forward_proj="gated-gelu")
BART_BASE = dict(model_type="bart", encoder_layers=6, decoder_layers=6, d_model=768)
BART_BASE |= dict(encoder_attention_heads=12, decoder_attention_heads=12, encoder_ffn_dim=3072, decoder_ffn_dim=3072)
LLAMA_1B = dict(model_type="llama", num_hidden_layers=16, hidden_size=2048, intermediate_size=8192, vocab_size=128256)
QWEN = dict(model_type="qwen2", num_hidden_layers=24, hidden_size=896, intermediate_size=4864, vocab_size=151936)
NOT_IN_THE_TABLE = {
    "Flan-T5 base": T5_BASE | dict(tie_word_embeddings=False),
    "mT5 small": dict(model_type="t5", num_layers=8, d_model=512, num_heads=6, d_ff=1024, vocab_size=250112),
    "BART base": BART_BASE,
    "DistilBART 12-6": dict(model_type="bart", encoder_layers=12, decoder_layers=6),
    "Llama 3.2 1B": LLAMA_1B | dict(num_attention_heads=32, num_key_value_heads=8, tie_word_embeddings=True),
    "Qwen2.5 0.5B": QWEN | dict(num_attention_heads=14, num_key_value_heads=2, tie_word_embeddings=True),
}
"""Models of the Hub that are counted when somebody asks."""
LONGEST = 2048
OURS = {"our model": {}, "our model, 256 codes": {"codebook_size": 16384, "image_grid_size": 16}}
OUR_STEPS = (("reversible", 1), ("reversible", 4), ("partial", 1), ("none", 1), ("none", 4), ("checkpoint", 4))


def compare_known_model(name: str, sizes: ModelSizes) -> list[tuple[str, str, MemorySplit, MeasuredStep]]:
    """Compare float32, autocast and checkpointed steps."""
    sequence = min(LONGEST, figures_of(sizes).num_positions or DEFAULT_POSITIONS)
    cases = [("fp32", "none"), ("bf16", "none"), ("fp32", "checkpoint")]
    found = []
    for precision, recompute in cases:
        with FakeTensorMode():
            model = build_known_model(sizes)
            if recompute == "checkpoint":
                model.activation_checkpointing_enable()
            step = measure_known_model(model, batch=1, sequence=sequence, autocast=precision == "bf16")
        settings = MemorySettings(precision=precision, recompute=recompute, optimizer="sgd", sequence_length=sequence)
        estimate = estimate_training_memory(without_dropout(sizes), settings).gpu
        found.append((name, f"{precision}, {recompute}, 1 x {sequence}", estimate, step))
    return found


def compare_our_model(name: str) -> list[tuple[str, str, MemorySplit, MeasuredStep]]:
    """Compare steps of our model at the paper's size, with one of two codecs."""
    found, sizes = [], ModelSizes.of(dict(model_type="dalle_collab") | OURS[name])
    for recompute, batch in OUR_STEPS:
        step = measure_our_model(OURS[name], batch=batch, recompute=recompute, fake=True)
        settings = MemorySettings(micro_batch_size=batch, recompute=recompute, optimizer="sgd", device="cpu")
        estimate = estimate_training_memory(sizes, settings).ram
        found.append((name, f"fp32, {recompute}, {batch} x {figures_of(sizes).num_positions}", estimate, step))
    return found


def table_line(name: str, settings: str, estimate: MemorySplit, step: MeasuredStep) -> str:
    """Return a line of the document's table, in GB of 10^9 bytes."""
    exact = ["exact" if ours == seen else f"{ours / seen:.3f}" for ours, seen in (
        (estimate.weights, step.weights), (estimate.gradients, step.gradients),
    )]  # fmt: skip
    activations = [f"{number / 1e9:.3f}" for number in (estimate.activations, step.activations)]
    return f"| {' | '.join([name, settings, *exact, *activations, f'{estimate.total / step.total:.3f}'])} |\n"


def main() -> None:
    """Measure, print the table, write the results and the document."""
    # With values transformers sees that positions are those of one sequence; without them it makes a mask to be safe.
    masking_utils.find_packed_sequence_indices = lambda position_ids: None
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="three models and ours; the document stays as it is")
    quick = parser.parse_args().quick
    found = [item for name in OURS for item in compare_our_model(name)]
    for name, sizes in (MODEL_PRESETS | {name: ModelSizes.of(of) for name, of in NOT_IN_THE_TABLE.items()}).items():
        if not sizes.is_ours and (not quick or name in QUICK):
            found += compare_known_model(name, sizes)
            Console(stderr=True).print(f"{name} done")
    rows = [
        Row(case=f"{name}, {settings}", metric="activations", unit="GB", ours=estimate.activations / 1e9,
            peer=step.activations / 1e9)
        for name, settings, estimate, step in found
    ]  # fmt: skip
    print(f"written to {write_results('memory_estimate', rows, is_quick=quick)}")
    if not quick:
        text = DOCUMENT.read_text(encoding="utf-8").partition(HEAD)[0]
        rule = "|" + " --- |" * HEAD.count(" | ") + " --- |\n"
        DOCUMENT.write_text(text + HEAD + rule + "".join(table_line(*item) for item in found), encoding="utf-8")


if __name__ == "__main__":
    main()
