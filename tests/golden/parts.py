"""All that the golden tests need of the project, in one place: when modules move, this file alone follows."""

# ruff: noqa: F401
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from made_up_tasks import made_up_batch, made_up_task
from published_runs import publish_training_material
from publishing_program import main as publish_made_up_checkpoints
from swarm_of_processes import tiny_run

from hub_tools.endpoint import prepare_hub_client
from hub_tools.local_hub import LocalHub
from hub_tools.processes.process_group import guard_process_group
from pipelines.command_line.main import app as command_line
from pipelines.core.admission.averaging_gate import AdmissionGate
from pipelines.core.admission.client import peer_admission
from pipelines.core.admission.dht_gate import SwarmDHT, access_token
from pipelines.core.admission.record_owners import AdmissionRecords
from pipelines.core.admission.tokens import Admission, TokenCheck, token_of
from pipelines.core.averaging.group.matchmaking import PacedKeyManager
from pipelines.core.averaging.reduce.reducer import RobustPartReducer
from pipelines.core.averaging.reduce.robust_aggregation import AggregationRule
from pipelines.core.averaging.reduce.suspects import Misbehaviour, Suspect
from pipelines.core.averaging.wire.codec import averaging_compression, read_part
from pipelines.core.averaging.wire.signed_parts import WeighedInput, answer_statement, part_statement
from pipelines.core.epoch.assembly import make_optimizer
from pipelines.core.epoch.reduction import reduction_of
from pipelines.core.peer.training_peer import suspect_record
from pipelines.core.run.admission_config import admission_config_of
from pipelines.core.run.sections import AGGREGATION_RULES, AVERAGING_COMPRESSIONS
from pipelines.core.signing.publisher_keys import PublisherKey
from pipelines.core.signing.rsa_keys import RsaKey
from pipelines.core.signing.signed_statement import signed_bytes
from pipelines.core.state.anchors import statement_of
from pipelines.core.state.digest import StateManifest
from pipelines.core.state.download import manifest_request, tensors_request
from pipelines.core.state.exchange import SERVICE
from pipelines.core.swarm.peer_records import AuxiliaryStatus, PeerIntroduction, PeerMetrics, StateRecord
from pipelines.core.swarm.records import AUXILIARIES, INTRODUCTIONS, METRICS, STATES, SwarmRecords
from pipelines.core.swarm.streams.server import handler_name
from pipelines.features.admission_service.requests import binding
from pipelines.features.all_records import ALL_RECORDS
from pipelines.features.anchors.anchor import signed_record
from pipelines.features.publishing.auxiliary.auxiliary_options import AuxiliaryOptions
from pipelines.features.publishing.auxiliary.publishing.publisher_election import candidacy
from pipelines.features.publishing.repository.key_list import ROLES, KeyList
from pipelines.features.publishing.repository.snapshot import RunSnapshot
from pipelines.features.reachability.dial_back import DialBack
from pipelines.features.servers.server_list import ServerList
from pipelines.features.sparse.announcement import Announcement, receipt_statement
from pipelines.tasks.text_to_image.model import initial_model
