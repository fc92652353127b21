"""Who am I, who is in an organization, and small pictures for both."""

import sqlite3
from http import HTTPStatus
from urllib.parse import quote

from fastapi import APIRouter, Request, Response

from ...printing.marked_up import escaped
from ..protocol.hub_error import HubError, login_needed
from ..store.accounts import Caller, members_of, namespace_kind, organizations_of
from .request_parts import CallerOf, Decoded, Storage, endpoint_of

router = APIRouter()


@router.get("/api/whoami-v2")
def whoami(request: Request, caller: CallerOf, storage: Storage) -> dict:
    """Describe the caller, their token's role and their organizations."""
    if caller.user is None:
        raise login_needed("ask who you are")
    with storage.database.reading() as connection:
        return _describe_caller(connection, caller, endpoint_of(request))


@router.get("/api/organizations/{organization}/members")
def list_members(organization: Decoded, request: Request, storage: Storage) -> list[dict]:
    """List an organization's members with their roles."""
    with storage.database.reading() as connection:
        _check_kind(connection, organization, "org")
        endpoint = endpoint_of(request)
        return [
            {**_describe_user(endpoint, row["user"]), "role": row["role"]}
            for row in members_of(connection, organization)
        ]


@router.get("/api/organizations/{organization}/overview")
def organization_overview(organization: Decoded, request: Request, storage: Storage) -> dict:
    """Describe an organization."""
    with storage.database.reading() as connection:
        _check_kind(connection, organization, "org")
        described = _describe_organization(endpoint_of(request), organization)
        return {**described, "numUsers": len(members_of(connection, organization))}


@router.get("/api/users/{user}/overview")
def user_overview(user: Decoded, request: Request, storage: Storage) -> dict:
    """Describe a user."""
    with storage.database.reading() as connection:
        _check_kind(connection, user, "user")
        endpoint = endpoint_of(request)
        rows = organizations_of(connection, user)
        orgs = [_describe_organization(endpoint, row["organization"]) for row in rows]
        return {**_describe_user(endpoint, user), "orgs": orgs}


@router.get("/avatars/{name}.svg")
def avatar(name: Decoded) -> Response:
    """Draw the first letter of a name; pages of Gradio apps show it beside a login."""
    letter = escaped(name[:1].upper())
    picture = (
        '<svg xmlns="http://www.w3.org/2000/svg" width="64" height="64"><rect width="64" height="64" fill="#456"/>'
        f'<text x="32" y="44" font-size="36" text-anchor="middle" fill="#fff">{letter}</text></svg>'
    )
    return Response(picture, media_type="image/svg+xml", headers={"Content-Security-Policy": "default-src 'none'"})


def _describe_caller(connection: sqlite3.Connection, caller: Caller, endpoint: str) -> dict:
    user = str(caller.user)
    organizations = [
        {**_describe_organization(endpoint, row["organization"]), "roleInOrg": row["role"]}
        for row in organizations_of(connection, user)
    ]
    token = {"displayName": caller.token_name, "role": caller.token_role}
    return {
        **_describe_user(endpoint, user),
        "type": "user",
        "id": user,
        "name": user,
        "email": None,
        "emailVerified": True,
        "canPay": False,
        "orgs": organizations,
        "auth": {"type": "access_token", "accessToken": token},
    }


def _describe_user(endpoint: str, user: str) -> dict:
    avatar_url = f"{endpoint}/avatars/{quote(user)}.svg"
    return {"user": user, "fullname": user, "avatarUrl": avatar_url, "isPro": False, "type": "user"}


def _describe_organization(endpoint: str, name: str) -> dict:
    avatar_url = f"{endpoint}/avatars/{quote(name)}.svg"
    return {"type": "org", "id": name, "name": name, "fullname": name, "avatarUrl": avatar_url, "isEnterprise": False}


def _check_kind(connection: sqlite3.Connection, name: str, kind: str) -> None:
    if namespace_kind(connection, name) != kind:
        what = "organization" if kind == "org" else "user"
        raise HubError(HTTPStatus.NOT_FOUND, f"There is no {what} {name!r} on this Hub")
