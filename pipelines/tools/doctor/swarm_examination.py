"""The part of an examination that is about the swarm: it needs hivemind, which a run over the Hub does not."""

import contextlib
import dataclasses
from collections.abc import Iterator

from huggingface_hub import get_token

from pipelines.core.admission.client import AdmissionRefusedError, AdmissionUnreachableError, seek_admission
from pipelines.core.admission.dht_gate import authorizer_of
from pipelines.core.admission.tokens import TokenCheck
from pipelines.core.averaging.wire.codec import averaging_compression, check_codec
from pipelines.core.run.admission_config import admission_config_of
from pipelines.core.run.training_run import TrainingRun
from pipelines.features.publishing.repository.organiser import link_file
from pipelines.features.servers.complaints import COMPLAINTS
from pipelines.features.servers.server_record import SERVERS
from pipelines.tools.doctor import hub_checks, swarm_checks
from pipelines.tools.doctor.check_result import CheckResult, fail, ok
from pipelines.tools.doctor.examination import Examination, needs_of
from pipelines.tools.doctor.link_checks import check_round, remembered_link
from pipelines.tools.doctor.probing.probe import probe_swarm
from pipelines.tools.doctor.probing.probe_result import SwarmFinding

SECONDS_TO_SEEK_ADMISSION = 10.0
"""A joining peer is more patient; the doctor should answer soon."""


def check_wire_codec(run: TrainingRun) -> CheckResult:
    """Send a vector through the run's codec, as a receiving peer would."""
    try:
        check_codec(averaging_compression(run))
    except RuntimeError as error:
        seen, _, cure = str(error).rpartition(". ")
        return fail("wire codec", seen, "a vector that survives it", cure)
    return ok("wire codec", f"{run.averaging_compression}: a vector survives it")


def check_link(examination: Examination, run: TrainingRun) -> CheckResult:
    """Say what a round will take on this machine's link."""
    limit = examination.network.bandwidth_limit_mbit
    measured = remembered_link(link_file(examination.repository), limit)
    return check_round(run, needs_of(examination).num_parameters, measured, limit)


def check_swarm(examination: Examination, run: TrainingRun) -> Iterator[CheckResult]:
    """Probe the swarm through every entry address, and have another peer call this machine."""
    results, finding = look_at_swarm(examination, run)
    yield from results
    yield swarm_checks.check_daemon(finding)
    if finding.daemon_seconds is None:
        return
    yield from swarm_checks.check_entries(examination.repository, finding)
    if (result := swarm_checks.check_one_swarm(examination.repository, finding)) is not None:
        yield result
    yield swarm_checks.check_clock(swarm_checks.clock_sources(finding), examination.hub_clock_offset)
    yield swarm_checks.check_reachability(finding, client_mode=examination.network.client_mode)


def look_at_swarm(examination: Examination, run: TrainingRun) -> tuple[list[CheckResult], SwarmFinding]:
    """Probe the swarm as the peer would, with an admission if the run requires one; a stranger sees less.

    Returns the finding about the admission, none for an open run, and the result of the probe.
    """
    repository, name = examination.repository, "admission"
    network, admission, results = examination.network, None, []
    with contextlib.ExitStack() as stack:
        try:
            identity_file, admission = stack.enter_context(
                seek_admission(
                    admission_config_of(run, repository),
                    network.identity_file,
                    get_token(),
                    seconds_to_try=SECONDS_TO_SEEK_ADMISSION,
                )
            )
            network = dataclasses.replace(network, identity_file=identity_file)
        except (AdmissionRefusedError, AdmissionUnreachableError) as error:
            results.append(hub_checks.failure(name, error, "a token of the run's authority"))
        if admission is not None and admission.has_authority:
            results.append(ok(name, f"the authority admits {admission.username}", "a token of the run's authority"))
        finding = probe_swarm(
            run.swarm_id,
            run.entry_addresses,
            network,
            authorizer=authorizer_of(admission),
            check=TokenCheck(run.run_id, run.authorization_key),
            kinds=(SERVERS, COMPLAINTS),
            now=examination.now,
            announce=examination.announce,
        )
    return results, finding
