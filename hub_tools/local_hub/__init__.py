"""An embedded Hub that speaks the Hugging Face Hub's HTTP protocol, for one machine or a trusted network."""

from .controls.hub_controls import HubControls, HubFault, RateLimits
from .local_hub_process import LocalHub

__all__ = ["HubControls", "HubFault", "LocalHub", "RateLimits"]
