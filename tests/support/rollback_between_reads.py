"""Reads a run's settings, rolls the run back, reads the rest: python rollback_between_reads.py REPOSITORY EPOCH.

Prints one JSON object: what was read before, and what a reader sees who begins afterwards.
"""

import json
import sys

from huggingface_hub import HfApi

from hub_tools.endpoint import prepare_hub_client
from pipelines.features.publishing.checkpoint_tensors import run_state_in
from pipelines.features.publishing.metrics.history import read_history
from pipelines.features.publishing.repository.rollback import carry_out, plan_rollback
from pipelines.features.publishing.repository.snapshot import RunSnapshot


def all_of(snapshot: RunSnapshot) -> dict[str, object]:
    return dict(
        commit=snapshot.commit,
        generation=snapshot.run.generation,
        state=snapshot.epoch,
        manifest=snapshot.signed_epoch,
        history=[point["epoch"] for point in read_history(snapshot)],
        checkpoint=run_state_in(snapshot.download_checkpoint()).epoch,
        num_keys=len(snapshot.keys.entries),
    )


def main(repository: str, epoch: str) -> None:
    prepare_hub_client()
    snapshot, fresh = RunSnapshot.read(repository), RunSnapshot.read(repository, in_cache=False)
    plan = plan_rollback(repository, int(epoch))
    HfApi().upload_file(repo_id=repository, path_in_repo="news.md", path_or_fileobj=b"Published in between.")
    rolled_back = carry_out(plan)
    after = all_of(RunSnapshot.read(repository))
    print(json.dumps(dict(before=all_of(snapshot), fresh=all_of(fresh), after=after, rolled_back=rolled_back)))


if __name__ == "__main__":
    main(*sys.argv[1:])
