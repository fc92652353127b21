"""An embedded Hub in a process of its own, for as long as a `with` block lasts."""

import json
import os
import secrets
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Self, TypeVar

from ..processes.child_process import ChildProcess, last_line
from .controls.hub_controls import CONTROL_TOKEN_VARIABLE, HubControls, RateLimits
from .protocol.hub_error import HubError
from .store.accounts import create_organization, create_token, create_user, namespace_kind, set_member
from .store.storage import HubStorage

STOP_SECONDS = 5
Result = TypeVar("Result")


def client_environment(endpoint: str) -> dict[str, str]:
    """Return the variables that point Hugging Face clients at this Hub and nowhere else."""
    return {
        "HF_ENDPOINT": endpoint,
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_UPDATE_CHECK": "1",
        "HF_UPDATE_DOWNLOAD_COUNTS": "0",
        "GRADIO_ANALYTICS_ENABLED": "False",
    }


class HubStartError(RuntimeError):
    """The embedded Hub did not start; the message has the last line of its log."""


class LocalHub:
    """Serves the Hub in `root` from another process, which ends with the `with` block and with its parent.

    `with LocalHub(root) as hub:` gives `hub.endpoint`; accounts are created by the methods below, without a request.
    A token is returned once and not stored.
    """

    def __init__(
        self,
        root: Path | str,
        *,
        port: int = 0,
        part_mebibytes: int = 256,
        environment: Mapping[str, str] = MappingProxyType({}),
        rate_limits: RateLimits | None = None,
        controlled: bool = False,
    ) -> None:
        """`environment` has variables of the server's process besides this one's.

        `rate_limits` are off without them; `RateLimits()` has the public Hub's. A `controlled` Hub fails when
        its `controls` say so, and counts requests: for tests.
        """
        self.rate_limits = rate_limits
        self.control_token = secrets.token_urlsafe(32) if controlled else ""
        self._environment = environment
        self.root = Path(root).resolve()
        self.port = port
        self.part_mebibytes = part_mebibytes
        self.endpoint = ""
        self.process: ChildProcess | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start the server, and wait until it accepts connections. A second start uses the same port again.

        Raises:
            HubStartError: it ended instead, such as where another one serves this folder.
        """
        self.root.mkdir(parents=True, exist_ok=True)
        with (self.root / "server.log").open("a") as log:
            environment = {**os.environ, CONTROL_TOKEN_VARIABLE: self.control_token, **self._environment}
            self.process = ChildProcess(self._command(), stdout=subprocess.PIPE, stderr=log, env=environment)
        assert self.process.stdout is not None
        self.endpoint = self.process.stdout.readline().strip()
        if not self.endpoint:
            self.kill()
            said = last_line(self.root / "server.log")
            raise HubStartError(f"The embedded Hub did not start. Its last log line: {said}")
        self.port = int(self.endpoint.rsplit(":", 1)[1])

    def stop(self, seconds: float = STOP_SECONDS) -> None:
        """Ask the server to stop, and kill it and all its children if it has not stopped within seconds."""
        if self.process is not None:
            with self.process:
                self.process.end(seconds)
        self.process = None

    def kill(self) -> None:
        """Kill the server and all its children with SIGKILL."""
        self.stop(0.0)

    @property
    def controls(self) -> HubControls:
        """What makes this Hub fail and counts its requests; `control_token` gives another process the same.

        Raises ValueError where the Hub is not `controlled`, or not started.
        """
        if not self.control_token or not self.endpoint:
            raise ValueError("This Hub has no controls: use `with LocalHub(root, controlled=True) as hub`")
        return HubControls(self.endpoint, self.control_token)

    def create_user(self, name: str, *, token_role: str = "write") -> str:
        """Create a user and return a token for it. Raises ValueError for a name that is taken or invalid."""
        return self._change(lambda connection: create_user(connection, name, token_role=token_role))

    def create_token(self, user: str, *, role: str = "write", name: str = "extra") -> str:
        """Return another token for a user, with role "read", "contributor" or "write".

        A contributor's token creates, and changes only what it has itself created.
        """
        return self._change(lambda connection: create_token(connection, user, role=role, name=name))

    def token_of(self, user: str) -> str:
        """Return a fresh token of a user, who is created if missing."""

        def create(connection: sqlite3.Connection) -> str:
            make = create_user if namespace_kind(connection, user) is None else create_token
            return make(connection, user)

        return self._change(create)

    def create_organization(self, name: str, members: Mapping[str, str] | None = None) -> None:
        """Create an organization with members, given as `{"alice": "admin"}`; roles are those of `add_member`."""

        def create(connection: sqlite3.Connection) -> None:
            create_organization(connection, name)
            for user, role in (members or {}).items():
                set_member(connection, name, user, role)

        self._change(create)

    def add_member(self, organization: str, user: str, role: str = "write") -> None:
        """Add a user to an organization, or change the role: "read", "contributor", "write" or "admin".

        A contributor reads all, creates repositories and buckets, and changes only those that he has created.
        """
        self._change(lambda connection: set_member(connection, organization, user, role))

    def environment(self, token: str | None = None) -> dict[str, str]:
        """Return the variables that point clients in other processes here, with a cache and keys of their own.

        They must be set before the first import of a client. Without a token the caller is anonymous.
        """
        folders = {"HF_HOME": str(self.root / "client_home"), "XDG_CONFIG_HOME": str(self.root / "client_config")}
        own = {"HF_TOKEN": token or "", **folders}
        return {**client_environment(self.endpoint), **own}

    def _change(self, change: Callable[[sqlite3.Connection], Result]) -> Result:
        try:
            with HubStorage(self.root).prepare().database.writing() as connection:
                return change(connection)
        except HubError as error:
            raise ValueError(error.message) from error

    def _command(self) -> list[str]:
        arguments = ["--root", str(self.root), "--port", str(self.port), "--part-mebibytes", str(self.part_mebibytes)]
        if self.rate_limits is not None:
            arguments += ["--rate-limits", json.dumps(asdict(self.rate_limits))]
        return [sys.executable, "-m", "hub_tools.local_hub", *arguments]
