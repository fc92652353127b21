"""Requests that are not answered, and the checks that all requests share."""

import contextlib
from collections.abc import Mapping

from hub_tools.checks import is_number
from modeling_dalle_collab.sampling_dalle_collab import SamplingOptions

MOST_AT_ONCE_OF_ONE = 16
"""Pictures or texts of one request."""


class RefusedRequestError(ValueError):
    """A request that is not answered, with the status and OpenAI's kind of error."""

    def __init__(self, status: int, kind: str, text: str) -> None:
        super().__init__(text)
        self.status, self.kind = status, kind


def bad(text: str) -> RefusedRequestError:
    """Return the error for a request that makes no sense."""
    return RefusedRequestError(400, "invalid_request_error", text)


def check_names(values: Mapping[str, object], known: set[str], ignored: set[str]) -> None:
    """Refuse what would have no effect."""
    if unknown := sorted(set(values) - known - ignored):
        raise bad(f"Unknown: {', '.join(unknown)[:100]}. Known: {', '.join(sorted(known))}.")


def whole_number(values: Mapping[str, object], name: str, default: int, least: int, most: int) -> int:
    """Return a number of a request, in a range."""
    value = values.get(name)
    value = default if value is None else value
    if type(value) is not int or not least <= value <= most:
        raise bad(f"{name} must be a whole number from {least} to {most}.")
    return value


def text_of(value: object, name: str, most: int) -> str:
    """Return a text of a request, of some characters that can be encoded."""
    if isinstance(value, str) and 0 < len(value) <= most:
        with contextlib.suppress(UnicodeEncodeError):  # half of a surrogate pair, which JSON can say
            value.encode("utf-8")
            return value
    raise bad(f"{name} must be a text of 1 to {most} characters.")


def seed_of(values: Mapping[str, object]) -> int:
    """Return the seed of a request."""
    return whole_number(values, "seed", 0, -(2**63), 2**63 - 1)


def sampling_of(values: Mapping[str, object], names: set[str], **fixed: object) -> SamplingOptions:
    """Return the sampling options out of some of a request's values."""
    sampling = {name: values[name] for name in names if values.get(name) is not None}
    if not all(is_number(value) and abs(value) <= 2**31 for value in sampling.values()):
        raise bad(f"{', '.join(sorted(sampling))} must be numbers.")
    try:
        return SamplingOptions.from_mapping(sampling | fixed)
    except (ValueError, TypeError) as error:
        raise bad(str(error)) from error
