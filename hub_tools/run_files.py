"""Names of the files in a run's repository and in a checkpoint: the one place that spells them."""

TRAINING_RUN_FILE = "training_run.json"
RUN_STATE_FILE = "run_state.json"
WEIGHTS_FILE = "model.safetensors"
CONFIG_FILE = "config.json"
OPTIMIZER_FILE = "optimizer_state.safetensors"
MANIFEST_FILE = "checkpoint_manifest.json"
PUBLISHER_KEYS_FILE = "publisher_keys.json"
ENTRIES_FILE = "entries.json"
CARD_FILE = "README.md"
PROCESSOR_FILES = ("*.json", "*.txt", "*.model", "*.jinja")
"""All that a tokenizer or a processor is read from."""

MODEL_FILES = (*PROCESSOR_FILES, "model*.safetensors")
"""The optimizer state is twice as large as the model and not needed for drawing."""

LOSS_CURVE_FILE = "loss_curve.png"

METRICS_FOLDER = "metrics"
EVALUATIONS_FILE = "evaluations.parquet"
FIGURES_FILE = "checkpoint_figures.parquet"
SUMMARY_FILE = "summary.json"
COUNTERS_FILE = "contribution_counters.json"
OLD_METRICS_FILE = "metrics.json"
"""The history of runs older than sharded histories: a JSON list of points in the repository's root."""

RESULTS_FOLDER = ".eval_results"
"""The Hub's folder for evaluation results."""

RESULTS_FILE = f"{RESULTS_FOLDER}/dalle_collab.yaml"

REEL_FOLDER = "progress_reel"
REEL_INDEX_FILE = "index.json"
NEWEST_PICTURE = "newest.jpg"
"""In the reel's folder: the newest picture under a name that stays, for previews of links."""

VOLUNTEERS_FOLDER = "volunteers"
"""Strangers who contribute to a run over the Hub. No file there is JSON: who downloads a model takes all such files."""

ADMISSION_LISTS_FILE = "admission.json"
"""Who may join: in the repository of lists that moderators edit."""
