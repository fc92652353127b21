"""Running the admission service: its key in a file, its settings from the environment of a Space, and uvicorn."""

import base64
import binascii
import os
import stat
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from huggingface_hub import HfApi

from hub_tools.http_serving import serve_application
from hub_tools.hub_client import install_hub_client
from hub_tools.printing.printable import one_line
from hub_tools.run_files import ADMISSION_LISTS_FILE
from pipelines.core.signing.publisher_keys import PublisherKey
from pipelines.features.admission_service.lists import ListsOnHub
from pipelines.features.admission_service.service import AdmissionService, ServiceOptions, build_application

HUB_TIMEOUT_SECONDS = 10.0
SPACE_PORT = 7860
"""Where the Hub's proxy expects a Space."""


def load_or_create_key(path: Path) -> PublisherKey:
    """Return the authority's key from its file, created if missing and readable only by its owner.

    Raises:
        ValueError: the file has no key, or others may read it.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        if stat.S_IMODE(path.stat().st_mode) & 0o077:
            raise ValueError(f"Others can read the key in {path}. Restrict it: chmod 600 {path}") from None
        return key_from_text(path.read_text(encoding="utf-8", errors="replace"), str(path))
    key = Ed25519PrivateKey.generate()
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(base64.b64encode(key.private_bytes_raw()).decode() + "\n")
    return PublisherKey(key)


def key_from_text(text: str, source: str) -> PublisherKey:
    """Return the key in a file of `load_or_create_key` or in a Space's secret."""
    try:
        return PublisherKey(Ed25519PrivateKey.from_private_bytes(base64.b64decode(text.strip(), validate=True)))
    except (ValueError, binascii.Error):
        raise ValueError(
            f"{source} has no key of an authority. Create a new one: dalle-collab run authorize ORG/RUN "
            "--key-file NEW.key"
        ) from None


def open_service(
    repository: str,
    key: PublisherKey,
    api: HfApi,
    cache: Path,
    options: ServiceOptions,
    *,
    run_id: str,
    averaging_timeout_seconds: float,
) -> AdmissionService:
    """Return the service for a run with this id and round time-out, after reading its lists once.

    Raises:
        ValueError: tokens would expire faster than a round needs, or the lists are invalid.
    """
    install_hub_client(HUB_TIMEOUT_SECONDS)  # peers are waiting for the answer
    shortest = 2 * averaging_timeout_seconds
    if options.lifetime_seconds < shortest:
        raise ValueError(
            f"Tokens would last {options.lifetime_seconds:.0f} s; expected at least {shortest:.0f} s, twice the run's "
            "averaging_timeout_seconds, or peers would lose admission in the middle of a round."
        )
    lists = ListsOnHub(repository, api, cache)
    lists.read()
    if lists.problem:
        raise ValueError(f"{lists.problem} Fix {ADMISSION_LISTS_FILE} in {repository} first: it says who is banned.")
    return AdmissionService(repository=repository, run_id=run_id, key=key, api=api, lists=lists, options=options)


def serve_admission(
    service: AdmissionService,
    host: str,
    port: int,
    on_ready: Callable[[str], None],
    *,
    trusted_proxies: str | None = None,
) -> None:
    """Serve until SIGINT or SIGTERM; see `serve_application`."""
    command = f"dalle-collab run authorize {service.repository}"
    serve_application(
        build_application(service), host, port, on_ready, command=command, trusted_proxies=trusted_proxies
    )


def serve_as_space(environment: Mapping[str, str], *, run_id: str, averaging_timeout_seconds: float) -> None:
    """Serve as a Space on the Hub, with the settings in its variables and the key in its secret.

    The run's id and time-out of a round are given, as for `open_service`.
    """
    try:
        repository, key_text = environment["RUN_REPOSITORY"], environment["AUTHORIZATION_KEY"]
    except KeyError as error:
        raise SystemExit(one_line(f"Set {error.args[0]} in the settings of this Space; see its README.")) from None
    port = int(environment.get("GRADIO_SERVER_PORT") or SPACE_PORT)
    options = ServiceOptions(
        lifetime_seconds=60 * float(environment.get("TOKEN_MINUTES") or 10),
        grace_seconds=60 * float(environment.get("GRACE_MINUTES") or 60),
    )
    with tempfile.TemporaryDirectory(prefix="dalle-collab-authorize-") as cache:
        key = key_from_text(key_text, "AUTHORIZATION_KEY")
        service = open_service(
            repository, key, HfApi(), Path(cache), options,
            run_id=run_id, averaging_timeout_seconds=averaging_timeout_seconds,
        )  # fmt: skip
        # A Space can be reached only through the Hub's proxy, which names the client.
        serve_admission(service, "0.0.0.0", port, lambda address: print(f"Serving {repository}."), trusted_proxies="*")
