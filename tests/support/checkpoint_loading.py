"""Loads a run's checkpoint as a joining peer does, as a program: python checkpoint_loading.py REPOSITORY [REVISION].

Prints epoch and digests of all tensors as JSON, or ends with the error's line.
"""

import hashlib
import json
import sys

from hub_tools.endpoint import prepare_hub_client
from pipelines.core.optimizers.choice import optimizer_parts
from pipelines.features.publishing.checkpoint_tensors import load_training_state
from pipelines.features.publishing.metrics.history import read_history
from pipelines.features.publishing.repository.run_bucket import newest_checkpoint
from pipelines.features.publishing.repository.snapshot import RunSnapshot
from pipelines.tasks.choice import open_task


def main(repository: str, revision: str | None = None) -> None:
    prepare_hub_client()
    snapshot = RunSnapshot.read(repository, revision)
    run = snapshot.run
    model = open_task(run, repository).new_model()
    parts = optimizer_parts(run, model)
    optimizer = parts["optimizer"](parts["params"])
    try:
        folder = snapshot.download_checkpoint() if revision else newest_checkpoint(snapshot)
        assert folder is not None
        state = load_training_state(folder, model, optimizer)
    except ValueError as error:
        raise SystemExit(f"{type(error).__name__}: {error}") from error
    tensors = [*model.parameters(), *(value for values in optimizer.state.values() for value in values.values())]
    digest = hashlib.sha256(b"".join(tensor.detach().numpy().tobytes() for tensor in tensors)).hexdigest()
    history = [point["epoch"] for point in read_history(snapshot)]
    print(json.dumps(dict(epoch=state.epoch, digest=digest, history=history, generation=run.generation)))


if __name__ == "__main__":
    main(*sys.argv[1:])
