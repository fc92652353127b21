"""The process that reads a swarm for the dashboard: a client of the DHT that writes a JSON line per snapshot.

A separate program, because hivemind forks and must not do so in a process that serves pages; the page survives
whatever happens here. Reads one JSON line of settings from standard input; exits with its parent process.
"""

import dataclasses
import hashlib
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipelines.core.run.training_run import TrainingRun
    from pipelines.core.swarm.records import SwarmRecords
    from pipelines.features.servers.complaints import Accused

SHORTEST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 5.0
PAUSE_FACTOR = 2.0
"""Pause after a snapshot, as a multiple of its duration: each one checks every signature of a large swarm."""

LONELY_SECONDS = 60.0
"""Without any record for this long, the node may have lost the swarm, and rejoins it."""


def watch(repository: str, settings: Mapping[str, object], identity_file: Path | None = None) -> None:
    """Poll the swarm of a run; end when nothing has been seen for `LONELY_SECONDS`."""
    from pipelines.core.run.training_run import TrainingRun

    run = TrainingRun.from_mapping(settings)
    if run.wire == "hub":
        watch_rounds(repository, run)
        return
    from huggingface_hub import get_token

    from pipelines.core.admission.client import seek_admission
    from pipelines.core.run.admission_config import admission_config_of
    from pipelines.core.swarm.network_options import NetworkOptions
    from pipelines.core.swarm.node import open_dht
    from pipelines.core.swarm.records import SwarmRecords
    from pipelines.features.all_records import ALL_RECORDS
    from pipelines.features.all_services import ALL_SERVICES

    with (
        seek_admission(admission_config_of(run, repository), identity_file, get_token()) as (own_identity, admission),
        open_dht(
            repository,
            run.entry_addresses,
            NetworkOptions(client_mode=True, identity_file=own_identity),
            admission=admission,
            services=ALL_SERVICES,
        ) as dht,
    ):
        records = SwarmRecords(dht, run.swarm_id, admission=admission, kinds=ALL_RECORDS).open()
        last_seen = time.monotonic()
        while time.monotonic() - last_seen < LONELY_SECONDS:
            started = time.monotonic()
            look = look_once(records)
            if look["peers"] or look["num_auxiliaries"] or look["servers"]:
                last_seen = started
            print(json.dumps(look), flush=True)
            pause = PAUSE_FACTOR * (time.monotonic() - started)
            time.sleep(min(LONGEST_PAUSE_SECONDS, max(SHORTEST_PAUSE_SECONDS, pause)))


def watch_rounds(repository: str, run: "TrainingRun") -> None:
    """Poll the lists of a run over the Hub until the program is ended."""
    from pipelines.features.hub_rounds.files import RoundFiles
    from pipelines.features.hub_rounds.reading import RoundReader
    from pipelines.tools.pages.dashboard.swarm.rounds_watch import NewestKeys, RoundsWatch

    files = RoundFiles(repository, run)
    rounds = RoundsWatch(RoundReader(files, run.contributions_per_round, NewestKeys(repository, files)), run)
    while True:
        print(json.dumps(rounds.look()), flush=True)
        time.sleep(max(SHORTEST_PAUSE_SECONDS, min(LONGEST_PAUSE_SECONDS, run.window_seconds / 4)))


def look_once(records: "SwarmRecords") -> dict[str, object]:
    """Return one snapshot as JSON values; see `swarm_snapshot.SwarmSnapshot.from_values`."""
    from pipelines.core.state.votes import count_votes
    from pipelines.core.swarm.records import AUXILIARIES, INTRODUCTIONS, METRICS, PROGRESS, STATES
    from pipelines.features.servers.server_record import SERVERS

    reports, states = records.read_dated(PROGRESS), records.read(STATES)
    metrics, introductions = records.read(METRICS), records.read(INTRODUCTIONS)
    verdict = count_votes(states, set(reports), users=records.admissions.users(states))
    return dict(
        time=time.time(),
        peers=[_peer(key, *reports[key], metrics.get(key), introductions.get(key)) for key in sorted(reports)],
        num_auxiliaries=len(records.read(AUXILIARIES)),
        servers=[server.dict() for _, server in sorted(records.read(SERVERS).items())],
        accused=[dataclasses.asdict(one) for one in _accused(records)],
        verdict=verdict and {name: getattr(verdict, name) for name in ("epoch", "num_votes", "num_voters", "outvoted")},
    )


def _accused(records: "SwarmRecords") -> "list[Accused]":
    from pipelines.features.servers.complaints import COMPLAINTS, accused_servers

    return accused_servers(records.read(COMPLAINTS), names_users=records.admissions.counts_users)


def _peer(key: bytes, progress: Any, until: float, metrics: Any, introduction: Any) -> dict[str, object]:
    from pipelines.core.swarm.node import readable_peer_id

    return dict(
        key=hashlib.sha256(key).hexdigest()[:16],
        peer_id=readable_peer_id(progress.peer_id),
        progress={name: getattr(progress, name) for name in ("epoch", "samples_per_second", "client_mode")},
        valid_until=until,
        metrics=metrics and metrics.dict(),
        introduction=introduction and introduction.dict(),
    )


def main() -> None:
    """Watch the run named on standard input; report an error in one line."""
    from hub_tools.endpoint import prepare_hub_client
    from hub_tools.one_line_errors import explain_error
    from hub_tools.processes.process_group import guard_process_group

    guard_process_group()
    prepare_hub_client()
    settings = json.loads(sys.stdin.readline())
    try:
        watch(settings["repository"], settings["run"], Path(settings["identity_file"]))
    except (ValueError, OSError) as error:
        print(json.dumps(dict(error=explain_error(error))), flush=True)
        raise SystemExit(1) from error


if __name__ == "__main__":
    main()
