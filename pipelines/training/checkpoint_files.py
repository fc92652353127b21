"""Names of a checkpoint's files; readers that load no tensor need no more than these."""

OPTIMIZER_FILE = "optimizer_state.safetensors"
RUN_STATE_FILE = "run_state.json"
WEIGHTS_FILE = "model.safetensors"
