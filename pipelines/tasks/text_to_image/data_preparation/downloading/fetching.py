"""Fetches one picture from a stranger's server: bounded in size, time and hops, and never from our own network."""

import asyncio
import datetime
import errno
import ipaddress
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus

import aiohttp
import yarl

from hub_tools.checks import check_counts, check_positive
from pipelines.tasks.text_to_image.data_preparation.downloading.politeness import (
    LARGEST_RESERVATIONS_BYTES,
    RESERVATIONS_PATH,
    Hosts,
    is_opted_out,
    is_reserved,
    reserved_paths,
    seconds_to_rest,
)
from pipelines.tasks.text_to_image.data_preparation.sources.file_kinds import suffix_by_content, unsupported_format

USER_AGENT = "dalle-collab (collects captioned pictures; honours X-Robots-Tag: noai and TDM-Reservation)"
MOST_HOPS = 5
LONGEST_ADDRESS = 4096
CHUNK_BYTES = 2**16
NOT_PUBLIC = "not a public address"
NAT64 = ipaddress.ip_network("64:ff9b::/96")
"""Where networks without IPv4 reach IPv4, its private addresses too."""
BUSY_STATUSES = frozenset((HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE))
TEMPORARY_STATUSES = frozenset((HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS))


@dataclass(frozen=True, kw_only=True)
class FetchingOptions:
    """Limits of a download."""

    num_at_once: int = 32
    """Pictures on their way at the same time."""
    num_at_once_per_host: int = 4
    """Of these, from one host."""
    timeout_seconds: float = 30.0
    """For one picture, from the first connection to the last byte."""
    largest_bytes: int = 16 * 2**20
    """Of one picture; with num_at_once it bounds memory."""
    allow_private: bool = False
    """Whether addresses inside private networks are fetched: a list of strangers could name your router's pages."""
    user_agent: str = USER_AGENT
    """How servers see us."""

    def __post_init__(self) -> None:
        check_counts(self, "num_at_once", "num_at_once_per_host", "largest_bytes")
        check_positive(self, "timeout_seconds")


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Why there is no picture."""

    reason: str
    """One of a bounded number of words."""
    is_temporary: bool = False
    """Whether a second try makes sense."""


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A picture's file."""

    content: bytes
    suffix: str
    """By its content, such as `.jpg`."""


class Fetcher:
    """Fetches pictures through one session."""

    def __init__(self, session: aiohttp.ClientSession, options: FetchingOptions):
        self._session = session
        self._options = options
        self.hosts = Hosts(options.num_at_once_per_host)
        self._reservations: dict[yarl.URL, asyncio.Future[Sequence[tuple[str, bool]]]] = {}
        self.patience_seconds = 1.0
        """How long a host that asked for a pause is waited for; those that want more fail for now."""

    async def fetch(self, address: str) -> Picture | Failure:
        """The picture, or why there is none; nothing is raised for whatever a server does."""
        url = _parse(address)
        if url is None:
            return Failure(reason="invalid_address")
        for _ in range(MOST_HOPS + 1):
            async with self.hosts.slot(url.host):
                answer = await self._ask(url)
            if not isinstance(answer, yarl.URL):
                return answer
            url = answer
        return Failure(reason="too_many_redirects")

    async def _ask(self, url: yarl.URL) -> Picture | Failure | yarl.URL:
        """What one request gives: a picture, a failure, or where to ask next."""
        host = str(url.host)
        if self.hosts.is_given_up(host):
            return Failure(reason="host_given_up", is_temporary=True)
        if is_reserved(url.path, await self._rules(url)):
            return Failure(reason="opted_out")
        pause = self.hosts.seconds_left(host)
        if pause > self.patience_seconds:
            return Failure(reason="host_busy", is_temporary=True)
        await asyncio.sleep(pause)
        try:
            async with (
                asyncio.timeout(self._options.timeout_seconds),
                self._session.get(url, allow_redirects=False) as response,
            ):
                self.hosts.heard(host, answered=response.status not in BUSY_STATUSES)
                # Each hop is judged like the first: its address, its host's limits, its wishes.
                return await self._judge(response, host)
        except TimeoutError:
            self.hosts.heard(host, answered=False)
            return Failure(reason="timed_out", is_temporary=True)
        except aiohttp.InvalidURL:
            return Failure(reason="invalid_address")
        except aiohttp.ClientConnectorDNSError:
            return Failure(reason="no_such_host")
        except aiohttp.ClientConnectorError as error:
            if NOT_PUBLIC in str(error):
                return Failure(reason="private_address")
            self.hosts.heard(host, answered=False)
            return Failure(reason="no_connection", is_temporary=True)
        except (aiohttp.ClientPayloadError, aiohttp.ServerDisconnectedError):
            return Failure(reason="cut_off", is_temporary=True)
        except (aiohttp.ClientError, OSError, ValueError):
            return Failure(reason="bad_answer", is_temporary=True)

    async def _rules(self, url: yarl.URL) -> Sequence[tuple[str, bool]]:
        """What the host reserves; it is asked once, and whoever comes meanwhile waits for the answer."""
        origin = url.origin()
        if origin not in self._reservations:
            self._reservations[origin] = asyncio.ensure_future(self._ask_for_rules(origin))
        return await asyncio.shield(self._reservations[origin])

    async def _ask_for_rules(self, origin: yarl.URL) -> Sequence[tuple[str, bool]]:
        try:
            async with (
                asyncio.timeout(self._options.timeout_seconds),
                self._session.get(origin.with_path(RESERVATIONS_PATH), allow_redirects=False) as response,
            ):
                content = (
                    await _read(response, LARGEST_RESERVATIONS_BYTES) if response.status == HTTPStatus.OK else None
                )
                return reserved_paths(content or b"")
        except (aiohttp.ClientError, OSError, ValueError):  # TimeoutError is an OSError
            return ()

    async def _judge(self, response: aiohttp.ClientResponse, host: str) -> Picture | Failure | yarl.URL:
        headers = response.headers
        if is_opted_out(headers.getall("X-Robots-Tag", ()), headers.getall("TDM-Reservation", ())):
            return Failure(reason="opted_out")
        if response.status in (301, 302, 303, 307, 308):
            return _next_url(response.url, headers.get("Location"))
        if response.status in BUSY_STATUSES:
            self.hosts.rest(host, seconds_to_rest(headers.get("Retry-After"), datetime.datetime.now(datetime.UTC)))
        if response.status != HTTPStatus.OK:
            is_temporary = response.status >= 500 or response.status in TEMPORARY_STATUSES
            return Failure(reason=f"http_{response.status}", is_temporary=is_temporary)
        content = await _read(response, self._options.largest_bytes)
        return Failure(reason="too_large") if content is None else _judge_content(content)


@asynccontextmanager
async def opened_fetcher(options: FetchingOptions) -> AsyncIterator[Fetcher]:
    """A fetcher with its connections."""
    connector = aiohttp.TCPConnector(
        limit=options.num_at_once,
        socket_factory=_any_socket if options.allow_private else _public_socket,
    )
    session = aiohttp.ClientSession(
        connector=connector,
        headers={"User-Agent": options.user_agent, "Accept": "image/*", "Accept-Encoding": "identity"},
        cookie_jar=aiohttp.DummyCookieJar(),
        # A page that unpacks to gigabytes is never unpacked; pictures are compressed by themselves.
        auto_decompress=False,
        requote_redirect_url=False,
        raise_for_status=False,
    )
    async with session:
        yield Fetcher(session, options)


def _parse(address: str) -> yarl.URL | None:
    """The address if it is one of the web, without a password for anybody."""
    if len(address) > LONGEST_ADDRESS:
        return None
    try:
        url = yarl.URL(address)
        is_fine = url.scheme in ("http", "https") and bool(url.host) and url.user is None and url.password is None
        return url.with_fragment(None) if is_fine and url.port else None
    except ValueError:
        return None


def _next_url(url: yarl.URL, location: str | None) -> yarl.URL | Failure:
    try:
        target = _parse(str(url.join(yarl.URL(location)))) if location else None
    except ValueError:
        target = None
    return target or Failure(reason="invalid_redirect")


async def _read(response: aiohttp.ClientResponse, most_bytes: int) -> bytes | None:
    """The whole body, or None as soon as it is known to be too large."""
    if (response.content_length or 0) > most_bytes:
        return None
    body = bytearray()
    async for chunk in response.content.iter_chunked(CHUNK_BYTES):
        body += chunk
        if len(body) > most_bytes:
            return None
    return bytes(body)


def _judge_content(content: bytes) -> Picture | Failure:
    suffix = suffix_by_content(content)
    if suffix is not None:
        return Picture(content=content, suffix=suffix)
    if not content:
        return Failure(reason="empty")
    return Failure(reason="unsupported_format" if unsupported_format("", content) else "not_a_picture")


def _public_socket(address: tuple) -> socket.socket:
    """A socket to a public address, checked after names were resolved: names may point anywhere, and change."""
    if not _is_public(address[4][0]):
        raise OSError(errno.EACCES, NOT_PUBLIC)
    return _any_socket(address)


def _is_public(host: str) -> bool:
    address = ipaddress.ip_address(host.partition("%")[0])
    inner = getattr(address, "ipv4_mapped", None) or getattr(address, "sixtofour", None)
    if address in NAT64:
        inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.is_global and not address.is_multicast and (inner is None or inner.is_global)


def _any_socket(address: tuple) -> socket.socket:
    family, kind, protocol = address[:3]
    return socket.socket(family, kind, protocol)
