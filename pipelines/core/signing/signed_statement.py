"""The one format of all that is signed: a purpose, and values in one text.

A statement that others keep or pass on is a dataclass of plain values that names its key, and travels as JSON: its
fields and `signature`. What is signed within a call is not sent again: both sides make `signed_bytes` of what they
know.
"""

import dataclasses
import json
import math
import types
import typing
from typing import Any, ClassVar, Protocol, TypeVar

from hub_tools.foreign.json_texts import parse_json
from pipelines.core.signing.publisher_keys import is_signed_by

PROTOCOL_VERSION = 2
"""Of what peers sign and say to each other: those of another version do not understand each other."""

LONGEST_TEXT = 256
"""Characters of one text in a statement, unless its class says otherwise."""


Statement = TypeVar("Statement", bound="SignedStatement")
Built = TypeVar("Built")


class StatementRefusedError(ValueError):
    """A statement that is damaged, or not signed with the key that it names."""


class NotSignedError(StatementRefusedError):
    """A statement that is whole, and not signed with the key that it names."""


class SigningKey(Protocol):
    """A private key, of a peer or of a publisher."""

    @property
    def public(self) -> str:
        """The public half as text."""

    def sign(self, data: bytes) -> str:
        """Return the signature in base64."""


class SignedStatement(Protocol):
    """A frozen dataclass of plain values, or of tuples, dictionaries and other dataclasses of these."""

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field]]

    PURPOSE: ClassVar[str]
    """What a signature is for: it counts for nothing else."""

    MOST_BYTES: ClassVar[int]
    """Of the text."""

    @property
    def key(self) -> str:
        """The key of who says it, with which it is signed."""


def signed_bytes(purpose: str, *values: object) -> bytes:
    """Return what is signed: for this purpose alone, one text of the values, which JSON has, or bytes."""
    return f"dalle-collab {PROTOCOL_VERSION} {purpose}\0".encode() + canonical_json(values)


def canonical_json(values: object) -> bytes:
    """Return the one text of these values; bytes are hexadecimal digits."""
    return json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=bytes.hex).encode()


def signed_text(statement: SignedStatement, key: SigningKey, indent: int | None = None) -> bytes:
    """Return the text of a statement. Its `key` must be the public half of this one."""
    values = plain_values(statement) | {"signature": signature_of(statement, key)}
    return json.dumps(values, indent=indent, ensure_ascii=False).encode() + b"\n"


def signature_of(statement: SignedStatement, key: SigningKey) -> str:
    """Return the signature of a statement, in base64."""
    assert statement.key == key.public, "a statement names the key that signs it"
    return key.sign(_bytes_of(statement))


def is_signed(statement: SignedStatement, signature: str) -> bool:
    """Return whether a statement is signed with the key that it names."""
    return is_signed_by(statement.key, _bytes_of(statement), signature)


def read_statement(kind: type[Statement], text: bytes) -> Statement:
    """Return the statement in a text that may be anybody's; raises as `read_signed`."""
    return read_signed(kind, text)[0]


def read_signed(kind: type[Statement], text: bytes) -> tuple[Statement, str]:
    """Return the statement in a text that may be anybody's, and its signature.

    Raises:
        StatementRefusedError: it is too long, of another kind, or has a value of another type.
        NotSignedError: it has another signature.
    """
    try:
        if len(text) > kind.MOST_BYTES:
            raise ValueError(f"{len(text)} bytes; expected at most {kind.MOST_BYTES}")
        values = parse_json(text)
        if not isinstance(values, dict):
            raise ValueError(f"a {type(values).__name__}; expected an object")
        signature = values.pop("signature", None)
        statement = built(kind, values)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise StatementRefusedError(f"this is no {kind.__name__}: {str(error)[:LONGEST_TEXT]}") from error
    if not isinstance(signature, str) or not is_signed(statement, signature):
        raise NotSignedError(f"this {kind.__name__} is not signed with the key that it names")
    return statement, signature


def _bytes_of(statement: SignedStatement) -> bytes:
    # Of what is understood, not of a text: 1 and 1.0 are the same number.
    return signed_bytes(statement.PURPOSE, plain_values(built(type(statement), plain_values(statement))))


def plain_values(statement: SignedStatement) -> dict[str, object]:
    """Return the fields of a statement as JSON has them."""
    plain: dict[str, object] = json.loads(json.dumps(dataclasses.asdict(statement)))
    return plain


def built(kind: type[Built], values: object) -> Built:
    """Return a dataclass made of what JSON has; ValueError if a field is missing, unknown or of another type."""
    hints, longest = typing.get_type_hints(kind), getattr(kind, "LONGEST_TEXT", LONGEST_TEXT)
    wanted = {item.name: hints[item.name] for item in dataclasses.fields(kind)}  # type: ignore[arg-type]
    if not isinstance(values, dict) or set(values) != set(wanted):
        raise ValueError(f"the fields are {sorted(values)[:20] if isinstance(values, dict) else values!r}")
    return kind(**{name: _checked(name, values[name], wanted[name], longest) for name in wanted})


def _checked(name: str, value: object, wanted: Any, longest: int) -> Any:
    form, parts = typing.get_origin(wanted), typing.get_args(wanted)
    if form is tuple and isinstance(value, list):
        return tuple(_checked(name, one, parts[0], longest) for one in value)
    if form is dict and isinstance(value, dict) and all(len(key) <= longest for key in value):
        return {key: _checked(name, one, parts[1], longest) for key, one in value.items()}
    if form is types.UnionType:  # with None
        return None if value is None else _checked(name, value, parts[0], longest)
    if dataclasses.is_dataclass(wanted) and isinstance(wanted, type):
        return built(wanted, value)
    if wanted is float:
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            return float(value)
    elif type(value) is wanted and (not isinstance(value, str) or len(value) <= longest):
        return value
    raise ValueError(f"{name} is {str(value)[:40]!r}; expected {getattr(wanted, '__name__', wanted)}")
