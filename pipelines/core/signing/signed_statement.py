"""Statements as files: dataclasses of plain values, signed with the key that they name; read with all types checked.

The text is JSON: the statement's fields and `signature`, that of a domain and the canonical JSON of the fields.
"""

import dataclasses
import json
import math
import typing
from typing import Any, ClassVar, Protocol, TypeVar

from hub_tools.foreign.json_texts import parse_json
from pipelines.core.signing.publisher_keys import PublisherKey, canonical_json, is_signed_by

LONGEST_TEXT = 256
"""Characters of one text in a statement."""


Statement = TypeVar("Statement", bound="SignedStatement")
Built = TypeVar("Built")


class StatementRefusedError(ValueError):
    """A statement that is damaged, or not signed with the key that it names."""


class SignedStatement(Protocol):
    """A frozen dataclass of texts, numbers and tuples of these or of other dataclasses; `key` is who says it."""

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field]]

    DOMAIN: ClassVar[bytes]
    """What a signature is for: it counts for nothing else."""

    MOST_BYTES: ClassVar[int]
    """Of the text."""

    @property
    def key(self) -> str:
        """The key of who says it, with which it is signed."""


def signed_text(statement: SignedStatement, key: PublisherKey) -> bytes:
    """Return the text of a statement. Its `key` must be the public half of this one."""
    return json.dumps(plain_values(statement) | {"signature": signature_of(statement, key)}).encode() + b"\n"


def signature_of(statement: SignedStatement, key: PublisherKey) -> str:
    """Return the signature of a statement, in base64."""
    assert statement.key == key.public, "a statement names the key that signs it"
    return key.sign(_signed_bytes(statement))


def is_signed(statement: SignedStatement, signature: str) -> bool:
    """Return whether a statement is signed with the key that it names."""
    return is_signed_by(statement.key, _signed_bytes(statement), signature)


def read_statement(kind: type[Statement], text: bytes) -> Statement:
    """Return the statement in a text that may be anybody's; raises as `read_signed`."""
    return read_signed(kind, text)[0]


def read_signed(kind: type[Statement], text: bytes) -> tuple[Statement, str]:
    """Return the statement in a text that may be anybody's, and its signature.

    Raises:
        StatementRefusedError: it is too long, of another kind, has a value of another type, or another signature.
    """
    try:
        if len(text) > kind.MOST_BYTES:
            raise ValueError(f"{len(text)} bytes; expected at most {kind.MOST_BYTES}")
        values = parse_json(text)
        if not isinstance(values, dict):
            raise ValueError(f"a {type(values).__name__}; expected an object")
        signature = values.pop("signature", None)
        statement = built(kind, values)
    except (ValueError, TypeError, UnicodeError, RecursionError) as error:
        raise StatementRefusedError(f"this is no {kind.__name__}: {str(error)[:LONGEST_TEXT]}") from error
    if not isinstance(signature, str) or not is_signed(statement, signature):
        raise StatementRefusedError(f"this {kind.__name__} is not signed with the key that it names")
    return statement, signature


def _signed_bytes(statement: SignedStatement) -> bytes:
    # Of what is understood, not of a text: 1 and 1.0 are the same number.
    return statement.DOMAIN + canonical_json(plain_values(built(type(statement), plain_values(statement))))


def plain_values(statement: Any) -> dict[str, Any]:
    """Return the fields of a statement as JSON has them."""
    return json.loads(json.dumps(dataclasses.asdict(statement)))


def built(kind: type[Built], values: object) -> Built:
    """Return a dataclass made of what JSON has; ValueError if a field is missing, unknown or of another type."""
    types = typing.get_type_hints(kind)
    wanted = {item.name: types[item.name] for item in dataclasses.fields(kind)}  # type: ignore[arg-type]
    if not isinstance(values, dict) or set(values) != set(wanted):
        raise ValueError(f"the fields are {sorted(values)[:20] if isinstance(values, dict) else values!r}")
    return kind(**{name: _checked(name, values[name], wanted[name]) for name in wanted})


def _checked(name: str, value: Any, wanted: Any) -> Any:
    if typing.get_origin(wanted) is tuple and isinstance(value, list):
        return tuple(_checked(name, one, typing.get_args(wanted)[0]) for one in value)
    if dataclasses.is_dataclass(wanted):
        return built(typing.cast("type[Any]", wanted), value)
    if wanted is float:
        if type(value) in (int, float) and math.isfinite(value):
            return float(value)
    elif type(value) is wanted and (wanted is not str or len(value) <= LONGEST_TEXT):
        return value
    raise ValueError(f"{name} is {str(value)[:40]!r}; expected {getattr(wanted, '__name__', wanted)}")
