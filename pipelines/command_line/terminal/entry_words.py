"""What people read about who may join a run, and who may publish it."""

from pathlib import Path

from pipelines.core.run.training_run import TrainingRun
from pipelines.core.swarm.network_options import NetworkOptions
from pipelines.features.publishing.repository.key_list import ListedKey, utc

HAS_NO_EFFECT_OVER_HUB = {
    "host_addresses": "--host",
    "announce_addresses": "--announce",
    "client_mode": "--client-mode",
    "use_relay": "--relay",
    "bandwidth_limit_mbit": "--bandwidth-limit",
    "identity_file": "--identity-file",
    "startup_timeout_seconds": "--startup-timeout",
}


def options_without_effect(repository: str, network: NetworkOptions) -> str | None:
    """Name the options of the network that were given for a run whose wire is the Hub; None: there are none."""
    usual = NetworkOptions()
    given = [
        option for name, option in HAS_NO_EFFECT_OVER_HUB.items() if getattr(network, name) != getattr(usual, name)
    ]
    return f"Without effect, as the wire of {repository} is the Hub: {', '.join(given)}." if given else None


def what_entering_asks(run: TrainingRun) -> str:
    """Say what is done on the way into a run's swarm, without the run's name at the end."""
    if run.wire == "hub":
        return "Making a bucket for"
    if run.is_open:
        return "Entering"
    return f"Asking {run.authorization_service}, which does not see your Hub token, to admit us to"


def who_may_join(run: TrainingRun, repository: str) -> str:
    """Say whether everybody may join a run."""
    if run.wire == "hub":
        place = repository.partition("/")[0]
        return f"Who may create buckets in {place} may join {repository}: the settings of {place} on the Hub say who."
    if run.is_open:
        return f"{repository} is an OPEN run: anyone may join, nobody is checked."
    return (
        f"Peers of {repository} are admitted by {run.authorization_service}, which looks on the Hub for a file of "
        "theirs; Hub tokens are not shown to it."
    )


def why_it_does_not_publish(repository: str, key_file: Path, key: str, entry: ListedKey | None) -> str:
    """Say what is to be done so that an auxiliary peer publishes."""
    if entry is not None and entry.revoked_at is not None:
        return (
            f"It does not publish: its key {key} was revoked at {utc(entry.revoked_at)}. For a new key delete "
            f"{key_file} and start again."
        )
    return (
        "It serves the swarm, and publishes as soon as the organiser has listed its key, which takes this command: "
        f"dalle-collab run keys {repository} --add {key}"
    )
