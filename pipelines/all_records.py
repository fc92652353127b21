"""All kinds of records that features have: nodes store for each other, so who opens one names them all."""

from pipelines.features.servers.complaints import COMPLAINTS
from pipelines.features.servers.server_record import SERVERS
from pipelines.training.ledger.records import GRADIENTS, LEASES, TRAINED

ALL_RECORDS = (COMPLAINTS, SERVERS, GRADIENTS, LEASES, TRAINED)
