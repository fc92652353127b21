"""Being admitted to a run before its swarm is entered, and leaving it when that ends: what people read about it."""

import contextlib
import dataclasses
import threading
from collections.abc import Iterator

from rich.console import Console

from pipelines.admission.client import PeerAdmission, seek_admission
from pipelines.training.run.door import door_of
from pipelines.training.run.peer_options import PeerOptions
from pipelines.training.run.training_run import TrainingRun


@contextlib.contextmanager
def admitted(
    console: Console, run: TrainingRun, repository: str, options: PeerOptions
) -> Iterator[tuple[PeerOptions, PeerAdmission | None]]:
    """Yield options with the identity to which the Hub token of this machine admits, and the admission.

    After the block, raises the error with which the authority has refused to renew the admission, if it has.
    """
    from huggingface_hub import get_token

    what = (
        "Entering" if run.is_open else f"Asking {run.authorization_service}, which sees your Hub token, to admit us to"
    )
    with contextlib.ExitStack() as stack:
        with console.status(f"{what} {repository}"):
            identity_file, admission = stack.enter_context(
                seek_admission(door_of(run, repository), options.identity_file, get_token())
            )
        yield dataclasses.replace(options, identity_file=identity_file), admission
        if admission is not None:
            admission.raise_refusal()


def who_may_join(run: TrainingRun, repository: str) -> str:
    """Say whether everybody may join a run."""
    if run.is_open:
        return f"{repository} is an OPEN run: everybody may take part, nobody is checked."
    return (
        f"Peers of {repository} are admitted by {run.authorization_service}, to which a Hub token that reads is enough."
    )


def stop_when_refused(admission: PeerAdmission | None, stop: threading.Event) -> None:
    """Have `stop` set as soon as the authority does not renew the admission any more."""
    if admission is not None:
        admission.on_refusal(stop.set)
