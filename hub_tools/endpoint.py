"""Which Hub the clients talk to, and what must be switched off when it is not huggingface.co."""

import logging
import os
import sys
from urllib.parse import urlsplit

from .printing.printable import open_closed_streams

PUBLIC_ENDPOINT = "https://huggingface.co"
PUBLIC_HOSTS = frozenset({"huggingface.co", "www.huggingface.co", "hf.co", "hub-ci.huggingface.co"})
PRIVATE_HUB_SETTINGS = {
    # The client never falls back from Xet: on a Hub without it every LFS upload fails.
    "HF_HUB_DISABLE_XET": "1",
    # These would be sent to hosts other than the Hub that the user chose.
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_UPDATE_DOWNLOAD_COUNTS": "0",
}

BARS_THAT_GO = {"TQDM_DELAY": "2", "TQDM_LEAVE": ""}
"""Bars of libraries are for what takes long, and are gone with it: none remains between lines or after a result."""


def current_endpoint() -> str:
    """Return the Hub's address that the clients use, without a trailing slash."""
    constants = sys.modules.get("huggingface_hub.constants")
    if constants is not None:
        return constants.ENDPOINT
    return (os.environ.get("HF_ENDPOINT") or PUBLIC_ENDPOINT).rstrip("/")


def is_public_hub(endpoint: str) -> bool:
    """Say whether the address is huggingface.co's."""
    return urlsplit(endpoint).hostname in PUBLIC_HOSTS


def prepare_hub_client() -> None:
    """Set up this process's and its children's Hub clients for the Hub that HF_ENDPOINT names, and for forking.

    Call it first thing in `main`; it also works after the clients were imported. Closed standard streams are opened.
    """
    open_closed_streams()
    if not is_public_hub(current_endpoint()):
        for name, value in PRIVATE_HUB_SETTINGS.items():
            os.environ.setdefault(name, value)
        constants = sys.modules.get("huggingface_hub.constants")
        if constants is not None:
            vars(constants).update(HF_HUB_DISABLE_XET=True, HF_HUB_DISABLE_TELEMETRY=True)
    if not sys.stderr.isatty():  # a bar in a file is a line for each of its steps
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    for name, value in BARS_THAT_GO.items():
        os.environ.setdefault(name, value)
    # Where files are asked for by patterns, there may be none yet, as in a run that has just been created.
    logging.getLogger("huggingface_hub._snapshot_download").addFilter(_says_something)
    from hub_tools.hub_client import install_hub_client  # imports the client, which reads the settings above

    install_hub_client()


def _says_something(record: logging.LogRecord) -> bool:
    return not str(record.msg).startswith("No files matched")
