"""What every node of the DHT runs besides its own work: who opens one hands these over."""

from pipelines.features.clock import watch_clock
from pipelines.features.reachability.dial_back import offer_dial_back

ALL_SERVICES = (offer_dial_back, watch_clock)
