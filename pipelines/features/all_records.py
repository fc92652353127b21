"""All kinds of records that features have: nodes store for each other, so who opens one names them all."""

from pipelines.features.ledger.records import GRADIENTS, LEASES, TRAINED
from pipelines.features.servers.complaints import COMPLAINTS
from pipelines.features.servers.server_record import SERVERS

ALL_RECORDS = (COMPLAINTS, SERVERS, GRADIENTS, LEASES, TRAINED)
