"""Views to messages and back.

Theory of operation. Each struct of the API has a message of the same name with the same fields, so
one loop over the fields translates all of them; a test compares the two definitions field by field.
`None` is a field that is not set.
"""

from __future__ import annotations

import types
from functools import cache
from typing import Annotated, Any, Final, NamedTuple, TypeVar, get_args, get_origin

import msgspec
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from cron.api.rpc import Rpc
from cron.api.v1 import admin_pb2

V = TypeVar("V", bound=msgspec.Struct)

SERVICE: Final = admin_pb2.DESCRIPTOR.services_by_name["Admin"]


class FieldPlan(NamedTuple):
    """How one field is carried: `struct` is the view inside it, if it is one or a list of them."""

    name: str
    is_list: bool
    is_optional: bool
    struct: type[msgspec.Struct] | None


@cache
def plan(view: type[msgspec.Struct]) -> tuple[FieldPlan, ...]:
    """Return how each field of a view is carried, in the order of its fields."""
    return tuple(_plan_field(f.name, f.type) for f in msgspec.structs.fields(view))


def _plan_field(name: str, annotation: Any) -> FieldPlan:
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    is_optional = isinstance(annotation, types.UnionType)
    is_list = get_origin(annotation) is list
    inner = annotation
    if is_optional or is_list:
        inner = next(one for one in get_args(annotation) if one is not types.NoneType)
    is_struct = isinstance(inner, type) and issubclass(inner, msgspec.Struct)
    return FieldPlan(name, is_list, is_optional, inner if is_struct else None)


def message_class(view: type[msgspec.Struct]) -> type[Message]:
    """Return the message that stands for a view."""
    found: type[Message] = getattr(admin_pb2, view.__name__)
    return found


def to_message(view: msgspec.Struct) -> Any:
    """Return the message of a view.

    Raises:
        ValueError: an integer does not fit into 64 bits.
    """
    values: dict[str, Any] = {}
    for field in plan(type(view)):
        value = getattr(view, field.name)
        if not value and (value is None or not field.is_optional):
            continue  # absent, or what an absent field means: most fields of most rows
        if field.struct is not None:
            value = [to_message(one) for one in value] if field.is_list else to_message(value)
        values[field.name] = value
    return message_class(type(view))(**values)


def request_class(call: str) -> type[Message]:
    """Return the message that asks a call of the service."""
    return GetMessageClass(SERVICE.methods_by_name[call].input_type)


def answer_class(call: str) -> type[Message]:
    """Return the message that answers a call of the service: one page of a stream."""
    return GetMessageClass(SERVICE.methods_by_name[call].output_type)


def from_answers(rpc: Rpc[Any, Any], messages: list[Any]) -> Any:
    """Return the answer to a call: a view, or the rows of all pages of a stream."""
    if not rpc.is_stream:
        (message,) = messages
        return to_view(message, rpc.view)
    (field,) = answer_class(rpc.name).DESCRIPTOR.fields
    return [to_view(row, rpc.view) for page in messages for row in getattr(page, field.name)]


def to_view(message: Any, view: type[V]) -> V:
    """Return the view that a message stands for."""
    values: dict[str, Any] = {}
    for field in plan(view):
        if field.is_optional and not message.HasField(field.name):
            values[field.name] = None
            continue
        value = getattr(message, field.name)
        if field.is_list:
            value = [to_view(one, field.struct) for one in value] if field.struct else list(value)
        elif field.struct is not None:
            value = to_view(value, field.struct)
        values[field.name] = value
    return view(**values)
