"""Uses a language run's task against the embedded Hub as a peer does; run by the tests in an environment of its own.

Usage: python language_reader.py JSON, with `run` (the run's settings), `place`, and what to do:
`batches` (arguments of `LanguageModelingTask.batches`) with `num_batches`; `held_out`; `check`; `start` (digest of the
initial parameters); or `compose` (arguments of `compose_language_run` besides the tokenizer, which is at `place`).
"""

import hashlib
import itertools
import json
import sys

from pipelines.core.run.training_run import TrainingRun
from pipelines.tasks.language_modeling.run_creation import compose_language_run
from pipelines.tasks.language_modeling.task import LanguageModelingTask
from pipelines.tasks.language_modeling.tokenizer import read_tokenizer


def answer(request: dict) -> object:
    """Return what was asked for, ready for JSON."""
    if "compose" in request:
        run = compose_language_run(tokenizer=read_tokenizer(request["place"]), **request["compose"])
        return json.loads(run.to_json())
    task = LanguageModelingTask(TrainingRun.from_mapping(request["run"]), request["place"])
    if "batches" in request:
        batches = itertools.islice(task.batches(**request["batches"]), request["num_batches"])
        return [{name: tensor.tolist() for name, tensor in batch.items()} for batch in batches]
    if "held_out" in request:
        return [{name: tensor.tolist() for name, tensor in batch.items()} for batch in task.held_out_batches()]
    if "start" in request:
        return digest(task.new_model())
    return task.check()


def digest(model) -> str:
    """Return a digest of a model's parameters."""
    found = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        found.update(name.encode() + tensor.contiguous().numpy().tobytes())
    return found.hexdigest()


if __name__ == "__main__":
    try:
        print(json.dumps(answer(json.loads(sys.argv[1]))))
    except ValueError as error:
        sys.exit(f"ValueError: {error}")
