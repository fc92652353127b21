"""All that the golden tests need of the project, in one place: when modules move, this file alone follows."""

# ruff: noqa: F401
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "pipelines" / "training"))

from published_runs import publish_training_material
from publishing_program import main as publish_made_up_checkpoints
from swarm_of_processes import tiny_run
from swarm_peer import made_up_batch

from hub_tools.endpoint import prepare_hub_client
from hub_tools.local_hub import LocalHub
from pipelines.command_line.main import app as command_line
from pipelines.training.admission_records import AdmissionRecords
from pipelines.training.admitted_averaging import AdmissionGate
from pipelines.training.authorization_tokens import Admission, AdmissionRequest, issue_token, public_text
from pipelines.training.authorized_dht import SwarmDHT, access_token
from pipelines.training.auxiliary_options import AuxiliaryOptions
from pipelines.training.averaging_reducer import RobustPartReducer
from pipelines.training.dial_back import DialBack
from pipelines.training.group_search import PacedKeyManager
from pipelines.training.local_steps import make_optimizer
from pipelines.training.peer_admission import PeerAdmission
from pipelines.training.peer_metrics import (
    AuxiliaryStatus,
    PeerIntroduction,
    PeerMetrics,
    StateRecord,
    SwarmRecords,
    suspect_record,
)
from pipelines.training.process_group import guard_process_group
from pipelines.training.publisher_election import candidacy
from pipelines.training.publisher_keys import PublisherKey
from pipelines.training.robust_aggregation import AggregationRule
from pipelines.training.run_repository import download_checkpoint
from pipelines.training.state_digest import StateManifest
from pipelines.training.state_download import farewell_request, manifest_request, tensors_request
from pipelines.training.suspects import Offence, Suspect
from pipelines.training.training_peer import initial_model
from pipelines.training.training_run import AGGREGATION_RULES, AVERAGING_COMPRESSIONS
from pipelines.training.wire_codec import averaging_compression, read_part
