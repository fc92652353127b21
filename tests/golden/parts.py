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
from pipelines.admission.averaging_gate import AdmissionGate
from pipelines.admission.client import peer_admission
from pipelines.admission.dht_gate import SwarmDHT, access_token
from pipelines.admission.record_owners import AdmissionRecords
from pipelines.admission.tokens import Admission, AdmissionRequest, TokenCheck, issue_token, public_text
from pipelines.all_records import ALL_RECORDS
from pipelines.command_line.main import app as command_line
from pipelines.features.servers.server_list import ServerList
from pipelines.swarm.dial_back import DialBack
from pipelines.swarm.peer_records import AuxiliaryStatus, PeerIntroduction, PeerMetrics, StateRecord
from pipelines.swarm.records import SwarmRecords
from pipelines.training.auxiliary.auxiliary_options import AuxiliaryOptions
from pipelines.training.auxiliary.publishing.publisher_election import candidacy
from pipelines.training.averaging.contributions.announcement import Announcement, receipt_statement
from pipelines.training.averaging.group.matchmaking import PacedKeyManager
from pipelines.training.averaging.reduce.reducer import RobustPartReducer
from pipelines.training.averaging.reduce.robust_aggregation import AggregationRule
from pipelines.training.averaging.reduce.suspects import Offence, Suspect
from pipelines.training.averaging.wire.codec import averaging_compression, read_part
from pipelines.training.peer.process_group import guard_process_group
from pipelines.training.peer.reports import suspect_record
from pipelines.training.repository.key_list import ROLES, KeyList
from pipelines.training.repository.snapshot import RunSnapshot
from pipelines.training.run.door import door_of
from pipelines.training.run.sections import AGGREGATION_RULES, AVERAGING_COMPRESSIONS
from pipelines.training.signing.publisher_keys import PublisherKey
from pipelines.training.state.digest import StateManifest
from pipelines.training.state.download import farewell_request, manifest_request, tensors_request
from pipelines.training.swarm_optimizer.assembly import averager_of, make_optimizer
from pipelines.training.tasks.text_to_image.model import initial_model
