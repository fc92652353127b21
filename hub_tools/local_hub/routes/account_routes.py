"""Who am I, and who is in an organization."""

import sqlite3
from http import HTTPStatus

from fastapi import APIRouter

from ..protocol.hub_error import HubError, login_needed
from ..store.accounts import Caller, members_of, namespace_kind, organizations_of
from .request_parts import CallerOf, Decoded, Storage

router = APIRouter()


@router.get("/api/whoami-v2")
def whoami(caller: CallerOf, storage: Storage) -> dict:
    """Describe the caller, their token's role and their organizations."""
    if caller.user is None:
        raise login_needed("ask who you are")
    with storage.database.reading() as connection:
        return _describe_caller(connection, caller)


@router.get("/api/organizations/{organization}/members")
def list_members(organization: Decoded, storage: Storage) -> list[dict]:
    """List an organization's members with their roles."""
    with storage.database.reading() as connection:
        _check_kind(connection, organization, "org")
        rows = members_of(connection, organization)
        return [{**_describe_user(row["user"]), "role": row["role"]} for row in rows]


@router.get("/api/users/{user}/overview")
def user_overview(user: Decoded, storage: Storage) -> dict:
    """Describe a user."""
    with storage.database.reading() as connection:
        _check_kind(connection, user, "user")
        orgs = [_describe_organization(row["organization"]) for row in organizations_of(connection, user)]
        return {**_describe_user(user), "orgs": orgs}


def _describe_caller(connection: sqlite3.Connection, caller: Caller) -> dict:
    user = str(caller.user)
    organizations = [
        {**_describe_organization(row["organization"]), "roleInOrg": row["role"]}
        for row in organizations_of(connection, user)
    ]
    role = "fineGrained" if caller.token_role == "contributor" else caller.token_role
    token = {"displayName": caller.token_name, "role": role}
    return {
        **_describe_user(user),
        "type": "user",
        "id": user,
        "name": user,
        "email": None,
        "emailVerified": True,
        "canPay": False,
        "orgs": organizations,
        "auth": {"type": "access_token", "accessToken": token},
    }


def _describe_user(user: str) -> dict:
    # Gradio asks for the picture when somebody logs in; there are none.
    return {"user": user, "fullname": user, "avatarUrl": "", "isPro": False, "type": "user"}


def _describe_organization(name: str) -> dict:
    return {"type": "org", "id": name, "name": name, "fullname": name, "avatarUrl": "", "isEnterprise": False}


def _check_kind(connection: sqlite3.Connection, name: str, kind: str) -> None:
    if namespace_kind(connection, name) != kind:
        what = "organization" if kind == "org" else "user"
        raise HubError(HTTPStatus.NOT_FOUND, f"There is no {what} {name!r} on this Hub")
