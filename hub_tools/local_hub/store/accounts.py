"""Users, their tokens, and organizations with members and roles. Tokens are stored as sha256 digests only."""

import hashlib
import secrets
import sqlite3
from dataclasses import dataclass
from http import HTTPStatus

from ..protocol.client_paths import check_namespace
from ..protocol.hub_error import HubError, bad_request, invalid_token, login_needed
from .database import timestamp

ROLES = ("read", "contributor", "write", "admin")
"""Each may do what those before it may. A contributor reads all, creates, and changes only what he has created."""

TOKEN_ROLES = ("read", "contributor", "write")


@dataclass(frozen=True, kw_only=True)
class Caller:
    """Who makes a request."""

    user: str | None = None
    """Name of the user; None for an anonymous request."""

    token_name: str = ""
    """Name that the token was created with."""

    token_role: str = "read"
    """One of `TOKEN_ROLES`: a read token changes nothing, a contributor's only what it has itself created."""

    token: str = ""
    """Digest of the token."""

    def role_in(self, connection: sqlite3.Connection, namespace: str) -> str | None:
        """Return this caller's role in a namespace (one of `ROLES`), or None for a stranger."""
        if self.user is None:
            return None
        if self.user.lower() == namespace.lower():
            return "admin"
        query = "SELECT role FROM members WHERE organization=? COLLATE NOCASE AND user=? COLLATE NOCASE"
        row = connection.execute(query, (namespace, self.user)).fetchone()
        return row["role"] if row else None


def create_user(connection: sqlite3.Connection, name: str, *, token_role: str = "write") -> str:
    """Create a user and return a fresh token for it; the token cannot be shown again."""
    _check_free(connection, check_namespace(name, "user"))
    connection.execute("INSERT INTO users VALUES (?, ?)", (name, timestamp()))
    return create_token(connection, name, role=token_role)


def create_token(connection: sqlite3.Connection, user: str, *, role: str = "write", name: str = "default") -> str:
    """Return a fresh token of an existing user. Only its digest is kept."""
    if role not in TOKEN_ROLES:
        raise bad_request(f"Invalid token role {role!r}: use {', '.join(TOKEN_ROLES)}")
    _check_user(connection, user)
    token = f"hf_{secrets.token_urlsafe(32)}"
    connection.execute("INSERT INTO tokens VALUES (?, ?, ?, ?, ?)", (_digest(token), user, name, role, timestamp()))
    return token


def create_organization(connection: sqlite3.Connection, name: str) -> None:
    """Create an organization without members."""
    _check_free(connection, check_namespace(name, "organization"))
    connection.execute("INSERT INTO organizations VALUES (?, ?)", (name, timestamp()))


def set_member(connection: sqlite3.Connection, organization: str, user: str, role: str) -> None:
    """Add a user to an organization with this role, or change the role."""
    if role not in ROLES:
        raise bad_request(f"Invalid role {role!r}: use {', '.join(ROLES)}")
    _check_user(connection, user)
    if namespace_kind(connection, organization) != "org":
        raise bad_request(f"There is no organization {organization!r}. Create it: hub-tools org create {organization}")
    connection.execute("INSERT OR REPLACE INTO members VALUES (?, ?, ?)", (organization, user, role))


def caller_with_token(connection: sqlite3.Connection, token: str | None) -> Caller:
    """Return who holds this token; anonymous for None. Raises the 401 for a token that is not known."""
    if token is None:
        return Caller()
    row = connection.execute("SELECT * FROM tokens WHERE sha256=?", (_digest(token),)).fetchone()
    if row is None:
        raise invalid_token()
    return Caller(user=row["user"], token_name=row["name"], token_role=row["role"], token=row["sha256"])


def namespace_kind(connection: sqlite3.Connection, name: str) -> str | None:
    """Return "user", "org" or None."""
    for kind, table in (("user", "users"), ("org", "organizations")):
        if connection.execute(f"SELECT 1 FROM {table} WHERE name=?", (name,)).fetchone():
            return kind
    return None


def members_of(connection: sqlite3.Connection, organization: str) -> list[sqlite3.Row]:
    """Return the rows (user, role) of an organization's members, by name."""
    return connection.execute(
        "SELECT user, role FROM members WHERE organization=? COLLATE NOCASE ORDER BY user", (organization,)
    ).fetchall()


def organizations_of(connection: sqlite3.Connection, user: str) -> list[sqlite3.Row]:
    """Return the rows (organization, role) of a user's organizations, by name."""
    return connection.execute(
        "SELECT organization, role FROM members WHERE user=? COLLATE NOCASE ORDER BY organization", (user,)
    ).fetchall()


def record_creator(connection: sqlite3.Connection, caller: Caller, kind: str, number: int) -> None:
    """Remember who made a "repository" or a "bucket", and with which token."""
    connection.execute("INSERT INTO creators VALUES (?, ?, ?, ?)", (kind, number, caller.user, caller.token))


def check_can_create(connection: sqlite3.Connection, caller: Caller, namespace: str, *, action: str) -> None:
    """Raise the 401 or 403 unless the caller may create something in the namespace."""
    _check_role(connection, caller, namespace, action, "contributor", by_contributors_token=True)


def check_can_change(
    connection: sqlite3.Connection, caller: Caller, namespace: str, made: tuple[str, int], *, action: str, role: str
) -> None:
    """Raise the 401 or 403 unless the caller made this, a kind and an id, and may still create, or holds `role`."""
    row = connection.execute("SELECT user, token FROM creators WHERE kind=? AND id=?", made).fetchone()
    is_own = row is not None and caller.user is not None and row["user"].lower() == caller.user.lower()
    by_token = is_own and row["token"] == caller.token
    _check_role(connection, caller, namespace, action, "contributor" if is_own else role, by_token)


def check_can_write(connection: sqlite3.Connection, caller: Caller, namespace: str, *, action: str, role: str) -> None:
    """Raise the 401 or 403 unless the caller holds `role` (one of `ROLES`) in the namespace and a write token."""
    _check_role(connection, caller, namespace, action, role, by_contributors_token=False)


def _check_role(
    connection: sqlite3.Connection,
    caller: Caller,
    namespace: str,
    action: str,
    role: str,
    by_contributors_token: bool,
) -> None:
    if caller.user is None:
        raise login_needed(action)
    if caller.token_role == "read" or not (caller.token_role == "write" or by_contributors_token):
        limit = "read" if caller.token_role == "read" else "create, and change what it has created"
        message = f"Token {caller.token_name!r} of {caller.user} may only {limit}: a write token is needed to {action}"
        raise HubError(HTTPStatus.FORBIDDEN, message)
    held = caller.role_in(connection, namespace)
    if held is None or ROLES.index(held) < ROLES.index(role):
        message = f"{caller.user} has role {held or 'none'} in {namespace}, {role} is needed to {action}"
        raise HubError(HTTPStatus.FORBIDDEN, f"{message}. Ask an admin: hub-tools org add {namespace} {caller.user}")


def _check_free(connection: sqlite3.Connection, name: str) -> None:
    kind = namespace_kind(connection, name)
    if kind:
        raise HubError(
            HTTPStatus.CONFLICT,
            f"The name {name!r} is taken by {'a user' if kind == 'user' else 'an org'}. "
            "For another token of a user: hub-tools user token NAME",
        )


def _check_user(connection: sqlite3.Connection, user: str) -> None:
    if namespace_kind(connection, user) != "user":
        raise bad_request(f"There is no user {user!r}. Create it: hub-tools user create {user}")


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()
