"""What the embedded Hub answers when it refuses: a status, the error code that clients act on, and one clear line."""

from http import HTTPStatus


class HubError(Exception):
    """A refusal with an HTTP status, an optional `X-Error-Code` and a message for the user."""

    def __init__(self, status: HTTPStatus, message: str, *, code: str | None = None, **fields: object) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.fields = fields

    def headers(self) -> dict[str, str]:
        """Return the headers from which the clients choose their exception."""
        headers = {"X-Error-Message": _header_text(self.message)}
        if self.code:
            headers["X-Error-Code"] = self.code
        return headers

    def body(self) -> dict[str, object]:
        """Return the JSON body: `error` and the refusal's own fields."""
        return {"error": self.message, **self.fields}


def bad_request(message: str) -> HubError:
    """Return a 400: the request itself is wrong."""
    return HubError(HTTPStatus.BAD_REQUEST, message)


def invalid_token() -> HubError:
    """Return the 401 for a token that this Hub does not know."""
    # The client tells a refused token from a hidden repository by this exact text.
    return HubError(HTTPStatus.UNAUTHORIZED, "Invalid credentials in Authorization header")


def login_needed(action: str) -> HubError:
    """Return the 401 for an anonymous caller that wants to write."""
    return HubError(HTTPStatus.UNAUTHORIZED, f"A token is needed to {action}. Set HF_TOKEN or run: hf auth login")


def forbidden(message: str) -> HubError:
    """Return a 403: the caller is known and has no permission."""
    return HubError(HTTPStatus.FORBIDDEN, message)


def repository_not_found(repository: str, *, anonymous: bool) -> HubError:
    """Return the answer for a repository that is missing or hidden: 401 to anonymous callers, 404 to others."""
    status = HTTPStatus.UNAUTHORIZED if anonymous else HTTPStatus.NOT_FOUND
    return HubError(status, f"Repository not found: {repository}", code="RepoNotFound")


def revision_not_found(revision: str) -> HubError:
    """Return the 404 for an unknown branch, tag or commit."""
    return HubError(HTTPStatus.NOT_FOUND, f"Invalid rev id: {revision}", code="RevisionNotFound")


def entry_not_found(path: str) -> HubError:
    """Return the 404 for a file or folder that the revision does not have."""
    return HubError(HTTPStatus.NOT_FOUND, f"Entry not found: {path}", code="EntryNotFound")


def not_offered(what: str) -> HubError:
    """Return the 501 for a feature that the embedded Hub leaves to the public one."""
    return HubError(HTTPStatus.NOT_IMPLEMENTED, f"The embedded Hub has no {what}")


def disk_full(reason: object) -> HubError:
    """Return the 507 for a write that did not fit; nothing of it became visible."""
    message = f"No space left on the Hub's disk ({reason}). Nothing was changed; free some space and try again"
    return HubError(HTTPStatus.INSUFFICIENT_STORAGE, message)


def _header_text(message: str) -> str:
    return message.encode("ascii", "replace").decode().replace("\n", " ").replace("\r", " ")
