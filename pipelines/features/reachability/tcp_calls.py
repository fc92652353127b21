"""A plain TCP call to a peer's address that says why it failed, and whether this machine can listen on one."""

import asyncio
import errno
import socket
import time
from dataclasses import dataclass

from pipelines.core.swarm.dialling import PeerAddress

GREETING = b"\x13/multistream/1.0.0\n"
"""What every libp2p node sends first on a TCP connection."""

FAMILIES = {"ip4": socket.AF_INET, "ip6": socket.AF_INET6, "dns4": socket.AF_INET, "dns6": socket.AF_INET6, "dns": 0}
NO_WAY = frozenset({errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.ENETDOWN})


@dataclass(frozen=True, kw_only=True)
class Call:
    """The result of a call to an address."""

    address: str

    outcome: str
    """`answered`; or `refused`, `silent`, `no way`, `no such name`, `no peer`, `other peer`, `malformed`, `failed`."""

    detail: str = ""
    seconds: float | None = None
    """Time until the answer."""


async def call(address: PeerAddress, timeout: float) -> Call:
    """Open a TCP connection and wait for libp2p's greeting; never raises for what the network does."""
    started = time.monotonic()
    try:
        async with asyncio.timeout(timeout):
            answered = await _greeted(address)
    except TimeoutError:
        return Call(address=address.text, outcome="silent", detail=f"no answer within {timeout:g} s")
    except ConnectionRefusedError:
        return Call(address=address.text, outcome="refused", detail="nothing listens on that port")
    except socket.gaierror as error:
        return Call(address=address.text, outcome="no such name", detail=f"{address.host}: {error.strerror}")
    except OSError as error:
        outcome = "no way" if error.errno in NO_WAY else "failed"
        return Call(address=address.text, outcome=outcome, detail=error.strerror or str(error))
    seconds = time.monotonic() - started
    if not answered:
        return Call(address=address.text, outcome="no peer", detail="something answers that is not a libp2p peer")
    return Call(address=address.text, outcome="answered", seconds=seconds)


def port_objection(address: PeerAddress) -> str | None:
    """Say why this machine cannot listen on an address; None if it can. UDP is not tried."""
    if address.transport != "tcp" or address.port == 0 or address.kind not in ("ip4", "ip6"):
        return None
    with socket.socket(FAMILIES[address.kind], socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if address.kind == "ip6":
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        try:
            listener.bind((address.host, address.port))
            listener.listen(1)
        except OSError as error:
            return error.strerror or str(error)
    return None


async def _greeted(address: PeerAddress) -> bool:
    reader, writer = await asyncio.open_connection(address.host, address.port, family=FAMILIES[address.kind])
    try:
        return await reader.readexactly(len(GREETING)) == GREETING
    except (asyncio.IncompleteReadError, ConnectionResetError):
        return False
    finally:
        writer.close()
