"""A call's request from the path, the query and the body of an HTTP request.

A field that the request does not have is refused by name, in the query and in the body: a misspelt
filter would list, or change, more than was meant. (gRPC clients of another release may send fields
that a replica does not know; people who write HTTP requests make typing errors.)
"""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from functools import cache
from typing import Any, Final, Union, get_args, get_origin
from urllib.parse import parse_qsl

import msgspec

from cron import limits
from cron.api.checks import checked
from cron.api.rpc import Request, decode, encode
from cron.errors import InvalidInput
from cron.web.routes import Route

JSON: Final = "application/json"


class Read(msgspec.Struct, frozen=True):
    """A checked request. `is_one`: its body was one value of the route's list."""

    request: Request
    is_one: bool = False


def read_request(route: Route, path_value: str, query: bytes, body: bytes) -> Read:
    """Return the checked request of a call. Of `query` and `body` the one counts in which the route
    has its fields; the other has to be empty.

    Raises:
        InvalidInput, LimitExceeded: it is not one.
    """
    if route.has_body:
        if query:
            raise InvalidInput(f"{route.method} {route.path} takes no query", "use the body")
        return _from_body(route, path_value, body)
    if body:
        raise InvalidInput(f"{route.method} {route.path} takes no body", "use the query")
    values = _from_query(route.rpc.request, query)
    if route.field:
        _put(values, route, path_value)
    try:
        request = msgspec.convert(values, route.rpc.request, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"query: {_place_first(str(error))}") from error
    return Read(checked(request))


def _from_body(route: Route, path_value: str, body: bytes) -> Read:
    kind = route.rpc.request
    is_one = False
    try:
        raw = decode(body or b"{}", dict[str, Any])
        if route.field:
            _put(raw, route, path_value)
        is_one = bool(route.one_of) and route.one_of not in raw
        if is_one:
            raw = {route.one_of: [raw]}
            body = b'{"%s":[%s]}' % (route.one_of.encode(), body or b"{}")
        elif route.field:
            body = encode(raw)
        request = decode(body or b"{}", kind)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"body: {_place_first(str(error))}") from error
    except msgspec.DecodeError as error:
        raise InvalidInput(f"body: not JSON: {error}") from error
    for place, name in _unknown(raw, request, ""):
        known = ", ".join(one.encode_name for one in msgspec.structs.fields(kind))
        hint = f"fields are {known}" if not place else ""
        raise InvalidInput(f"body: {place}{name[:80]}: unknown field", hint)
    return Read(checked(request), is_one)


def _put(values: dict[str, Any], route: Route, path_value: str) -> None:
    if route.field in values:
        raise InvalidInput(f"{route.field}: it is in the path already", "leave it out")
    is_list = fields_of(route)[route.field].is_list
    values[route.field] = [path_value] if is_list else path_value


def _unknown(raw: Any, value: Any, place: str) -> Iterator[tuple[str, str]]:
    """Yield the fields in `raw` that the structs in `value`, which was read from it, lack."""
    if isinstance(raw, list) and isinstance(value, list):
        for number, (one, read) in enumerate(zip(raw, value, strict=True)):
            yield from _unknown(one, read, f"{place.rstrip('.')}[{number}].")
    elif isinstance(raw, dict) and isinstance(value, msgspec.Struct):
        listed = msgspec.structs.fields(value)
        names = {one.encode_name: one.name for one in listed if one.name not in WRITTEN}
        for key, one in raw.items():
            if key not in names:
                yield place, key
            else:
                yield from _unknown(one, getattr(value, names[key]), f"{place}{key}.")


FILTER: Final = "filter"
WRITTEN: Final = ("within", "payloads", "run_as")
"""Fields that the replica writes itself, and nobody sends."""


class Parameter(msgspec.Struct, frozen=True):
    """How a field stands in a query: a list is repeated, a struct is JSON. `of` is the struct that
    has the field: that of the request, or of its filter."""

    of: type[msgspec.Struct]
    is_list: bool = False
    is_json: bool = False
    is_of_filter: bool = False


@cache
def parameters(kind: type[msgspec.Struct]) -> dict[str, Parameter]:
    """Return the fields of a request, by name, as a query has them. The fields of its `filter`
    stand beside the others."""
    hints = typing.get_type_hints(kind)
    found: dict[str, Parameter] = {}
    for name in kind.__struct_fields__:
        if name in WRITTEN:
            continue
        if name == FILTER:
            inner = next(one for one in _parts(hints[name]) if isinstance(one, type))
            for of_filter, one in parameters(inner).items():
                found[of_filter] = msgspec.structs.replace(one, is_of_filter=True)
        else:
            parts = _parts(hints[name])
            is_list = any(get_origin(one) is list for one in parts)
            is_json = any(
                isinstance(one, type) and issubclass(one, msgspec.Struct) for one in parts
            )
            found[name] = Parameter(kind, is_list, is_json)
    return found


def fields_of(route: Route) -> dict[str, Parameter]:
    """Return the fields of a route's request, by name, as a query has them."""
    kind: Any = route.rpc.request
    return parameters(kind)


def _parts(annotation: Any) -> list[Any]:
    """Return the types of an annotation without its checks and without None."""
    if get_origin(annotation) in (Union, types.UnionType):
        return [one for part in get_args(annotation) for one in _parts(part)]
    return [] if annotation is types.NoneType else [annotation]


def _from_query(kind: type[msgspec.Struct], query: bytes) -> dict[str, Any]:
    """Return the values of a query by field. Numbers are texts still."""
    known = parameters(kind)
    try:
        pairs = parse_qsl(
            query.decode("ascii"),
            keep_blank_values=True,
            errors="strict",
            max_num_fields=limits.HTTP_QUERY_FIELDS_MAX,
        )
    except ValueError as error:  # of which UnicodeDecodeError is one
        raise InvalidInput(f"query cannot be read: {error}") from error
    values: dict[str, Any] = {}
    for name, value in pairs:
        if name not in known:
            hint = f"parameters are {', '.join(known)}" if known else "there are no parameters"
            raise InvalidInput(f"query: {name[:80]!r} is not a parameter", hint)
        place = values.setdefault(FILTER, {}) if known[name].is_of_filter else values
        if known[name].is_list:
            place.setdefault(name, []).append(value)
        elif name in place:
            raise InvalidInput(f"query: {name} is there twice")
        elif known[name].is_json:
            place[name] = _json(name, value)
        else:
            place[name] = value
    return values


def _json(name: str, value: str) -> Any:
    try:
        return decode(value, dict[str, Any])
    except msgspec.DecodeError as error:
        raise InvalidInput(f"query: {name} is not a JSON object: {error}") from error


def _place_first(message: str) -> str:
    """Turn "Expected `int`, got `str` - at `$.limit`" into "limit: expected `int`, got `str`"."""
    what, _, where = message.partition(" - at `$")
    place = where.rstrip("`").lstrip(".")
    text = what[:1].lower() + what[1:]
    return f"{place}: {text}" if place else text
