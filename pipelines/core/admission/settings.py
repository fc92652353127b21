"""The two settings of a run that say who admits peers to it, as an `AdmissionConfig`; without them it is open."""

import ipaddress
import re
from dataclasses import dataclass
from urllib.parse import urlsplit

PUBLIC_KEY = r"ed25519:[A-Za-z0-9+/]{43}="
"""Text of a public key of an organiser, an authority or a publisher."""


@dataclass(frozen=True, kw_only=True)
class AdmissionConfig:
    """Where peers ask for admission to one run, and whose tokens are valid there."""

    repository: str
    """The run's repository, `ORG/RUN`, for messages."""

    run_id: str
    service_address: str
    """Address of the admission service; empty: the run is open to everybody."""

    authority_key: str
    """The service's public key; empty where the run is open."""

    @property
    def is_open(self) -> bool:
        """Whether everybody may join, with or without an account on the Hub."""
        return not self.service_address


def check_admission_settings(service: str, key: str) -> None:
    """Raise ValueError unless both settings are set and usable, or both are empty: then the run is open."""
    if not service and not key:
        return
    if not service or not key:
        raise ValueError(
            "authorization_service and authorization_key belong together, but one of them is empty. Write both: "
            "dalle-collab run authorize ORG/RUN; or open the run: dalle-collab run authorize ORG/RUN --open"
        )
    if not re.fullmatch(PUBLIC_KEY, key):
        raise ValueError(
            f"authorization_key is {key!r}; expected ed25519: and the base64 of a public key, which is written by: "
            "dalle-collab run authorize ORG/RUN"
        )
    check_service_address(service)


def check_service_address(address: str) -> None:
    """Raise ValueError unless peers may ask there: over https, or inside a private network."""
    try:
        parts = urlsplit(address)
        host, _ = parts.hostname, parts.port
    except ValueError:
        parts, host = urlsplit(""), None
    if not host or parts.scheme not in ("http", "https") or parts.username or parts.query or parts.fragment:
        raise ValueError(
            f"The admission service's address is {address!r}; expected for example https://my-org-door.hf.space"
        )
    if parts.scheme == "http" and not _is_private(host):
        raise ValueError(
            f"The admission service's address {address} is not encrypted, and not in a private network. Put it behind "
            "https: as a Space, or behind a reverse proxy with a certificate"
        )


def is_on_this_machine(address: str) -> bool:
    """Tell whether a service is one of this machine, by its loopback address."""
    return _is_address(urlsplit(address).hostname or "", "is_loopback")


def _is_private(host: str) -> bool:
    return _is_address(host, "is_private")


def _is_address(host: str, trait: str) -> bool:
    """Tell whether a host is given by an address that `ipaddress` ascribes a trait, or is this machine by name."""
    if host == "localhost":
        return True
    try:
        return getattr(ipaddress.ip_address(host), trait)
    except ValueError:
        return False


def network_of(host: str) -> str:
    """Return what one customer of a network has to himself: the IPv4 address, or the IPv6 /48 network; or the name.

    A site gets a /48 or a part of one (RFC 6177), and has as many addresses of it as it likes.
    """
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host.lower()
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is None:
            return str(ipaddress.ip_network((address, 48), strict=False))
        address = address.ipv4_mapped
    return str(address)
