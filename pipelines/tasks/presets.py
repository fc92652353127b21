"""Settings of runs that are known to work."""

from collections.abc import Mapping

SAHAJBERT: Mapping[str, object] = {
    "model_type": "albert",
    "embedding_size": 128,
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_hidden_groups": 1,
    "inner_group_num": 1,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
    "hidden_act": "gelu_new",
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "sequence_length": 512,
    "mask_probability": 0.15,
    "whole_word_masks": False,
    "target_batch_size": 314_573,
    "num_epochs": 125_000,
    "num_warmup_epochs": 5_000,
    "peak_learning_rate": 1.76e-3,
    "betas": (0.9, 0.999),
    "epsilon": 1e-6,
    "weight_decay": 0.01,
    "max_gradient_norm": 1.0,
    "averaging_compression": "float16",
}
"""The recipe of sahajBERT, the Bengali language model that some 40 volunteers trained in 2021 (Diskin et al., 2021,
*Distributed Deep Learning In Open Collaborations*): ALBERT-large (Lan et al., 2020) with a vocabulary of 32,000, LAMB,
batches of 4,096 sequences of 512 tokens. Optimizer, schedule, masking and batch are those of `sahajbert/arguments.py`
and `run_trainer.py` in `yandex-research/DeDLOC`, which take betas and masked share from the defaults of transformers;
sizes are those of `albert-large-v2`.

Three things differ. The target batch counts predicted tokens: 4,096 x 512 x 0.15. sahajBERT's schedule had
1,000,000 steps, with the remark that the model is ready after 125,000; this one ends there, as ALBERT's did. And the
second loss, the order of two segments, is omitted; see `task`.
"""

PAPER: Mapping[str, object] = {
    "text_sequence_length": 256,
    "hidden_size": 1024,
    "num_hidden_layers": 64,
    "num_attention_heads": 16,
    "head_dim": 64,
    "attention_pattern": ["row", "column", "row", "row"],
    "final_attention": "convolutional",
    "target_batch_size": 4096,
    "num_epochs": 31_250,
    "num_warmup_epochs": 3_125,
    "optimizer": "lamb",
    "optimizer_bits": 8,
    "peak_learning_rate": 2.5e-3,
    "betas": [0.9, 0.96],
    "epsilon": 1e-6,
    "weight_decay": 0.045,
    "max_gradient_norm": 4.0,
    "local_steps": 1,
    "averaging_compression": "blockwise_8bit",
    "min_8bit_elements": 65_536,
}
"""The recipe of *Training Transformers Together* (Borzunov et al. 2022, 3.3). What it does not say (betas, decay,
norm, batch) is from the original run's `run_trainer.py` and `arguments.py`. The aggregation rule is ours: the weighted
mean, as the paper's, as long as no peer stands out.
"""

DEMO: Mapping[str, object] = {
    "hidden_size": 128,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "head_dim": 32,
    "attention_pattern": ["row", "column"],
    "feed_forward_multiplier": 2,
    "text_sequence_length": 16,
    "recompute": "none",
    "local_steps": 8,
    "inner_batch_size": 48,
    "target_batch_size": 96,
    "inner_optimizer": "muon",
    "outer_learning_rate": 0.7,
    "outer_momentum": 0.6,
    "num_epochs": 40,
    "num_warmup_epochs": 2,
    "peak_learning_rate": 0.02,
    "weight_decay": 0.01,
    "min_8bit_elements": 4096,
    "matchmaking_seconds": 1.0,
    "averaging_timeout_seconds": 30.0,
    "progress_expiration_seconds": 20.0,
    "checkpoint_interval_epochs": 20,
    "evaluation_interval_epochs": 20,
    "reel_interval_epochs": 8,
}
"""The recipe of `dalle-collab demo run`: two peers, each on one core, learn to draw scenes of 64 codes in six minutes.

Its rates and outer steps were tuned for that; docs/measurements/demos.md has what it reaches.
"""

PRESETS = {
    "demo": ("text-to-image", DEMO),
    "paper": ("text-to-image", PAPER),
    "sahajbert": ("fill-mask", SAHAJBERT),
    "small": ("text-to-image", DEMO),
}
"""Task and settings by name. `small` begins with the demo's; `small_runs` fits them to the dataset and the hours."""


def preset_settings(name: str | None, task: str) -> dict[str, object]:
    """Return the settings of a preset, or empty ones without a preset.

    Raises:
        ValueError: there is no such preset, or it is for another task.
    """
    if name is None:
        return {}
    if name not in PRESETS:
        raise ValueError(f"preset is {name!r}; expected {' or '.join(PRESETS)}.")
    needed, settings = PRESETS[name]
    if task != needed:
        raise ValueError(f"Preset {name} is for --task {needed}, not {task}.")
    return dict(settings)
