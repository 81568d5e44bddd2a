"""From a job's payload to what a handler declares that it takes.

A payload is JSON, and an empty one reads as `null`. A handler that declares `bytes` gets it as it
is. Everything else is checked strictly by msgspec: a number in quotes is no number.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec

from launcher.worker.errors import BadPayload

Reader: TypeAlias = Callable[[bytes], Any]


class UnknownType(ValueError):
    """Nothing can be read from JSON into this type."""


def reader(declared: Any) -> Reader:
    """Return what reads a payload into `declared`: a Struct, dataclass, dict, str, None, Any ...

    The reader raises BadPayload, with the field named, for what does not fit.

    Raises:
        UnknownType: no payload can become one of these.
    """
    if declared is bytes:
        return bytes
    try:
        if isinstance(msgspec.inspect.type_info(declared), msgspec.inspect.CustomType):
            raise UnknownType(f"{_name(declared)} is no type that JSON can be read into")
        decode = msgspec.json.Decoder(declared, strict=True).decode
    except (TypeError, NameError) as error:
        raise UnknownType(f"{_name(declared)} is no type to read JSON into: {error}") from error

    def read(payload: bytes) -> Any:
        try:
            return decode(payload or b"null")
        except msgspec.ValidationError as error:
            what = f"payload does not fit {_name(declared)}" if payload else "there is no payload"
            raise BadPayload(f"{what}: {_lowered(str(error))}") from error
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            said = str(error).removeprefix("JSON is malformed: ")
            raise BadPayload(f"payload is no JSON: {_lowered(said)}") from error

    return read


def dump(payload: object) -> bytes:
    """Return a payload's bytes as a job has them: bytes as they are, all else as JSON.

    Raises:
        TypeError: it has something that JSON has not.
    """
    return payload if isinstance(payload, bytes) else msgspec.json.encode(payload)


def _name(declared: Any) -> str:
    if declared is None or isinstance(declared, types.GenericAlias | types.UnionType):
        return str(declared)
    return getattr(declared, "__name__", str(declared))


def _lowered(text: str) -> str:
    return text[:1].lower() + text[1:]
