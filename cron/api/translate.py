"""Views to messages and back.

Theory of operation. Each struct of the API has a message of the same name, whose fields have the
names, types and order of the struct's, numbered from 1. Its descriptor is made from the struct when
it is first needed: a command needs two of ninety. `admin.proto` says the same as text, for other
programs. It is generated and compared by a test, so that nobody moves a field without seeing it.
`None` is a field that is not set.
"""

from __future__ import annotations

import types
from collections.abc import Iterable
from functools import cache
from typing import Annotated, Any, Final, NamedTuple, TypeVar, get_args, get_origin

import msgspec
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from cron.api.rpc import Rpc

V = TypeVar("V", bound=msgspec.Struct)

PACKAGE: Final = "raftcron.v1"
SERVICE: Final = f"{PACKAGE}.Admin"
_POOL: Final = DescriptorPool()
_TYPES: Final = {
    str: FieldDescriptorProto.TYPE_STRING,
    int: FieldDescriptorProto.TYPE_INT64,
    bool: FieldDescriptorProto.TYPE_BOOL,
    bytes: FieldDescriptorProto.TYPE_BYTES,
}


class FieldPlan(NamedTuple):
    """How one field is carried: `kind` is the type of its value, or of each in a list; `struct` is
    the same where that is a view."""

    name: str
    kind: type[Any]
    is_list: bool
    is_optional: bool
    struct: type[msgspec.Struct] | None


@cache
def plan(view: type[msgspec.Struct]) -> tuple[FieldPlan, ...]:
    """Return how each field of a view is carried, in the order of its fields."""
    found = []
    for field in msgspec.structs.fields(view):
        kind = field.type
        if get_origin(kind) is Annotated:
            kind = get_args(kind)[0]
        is_optional, is_list = isinstance(kind, types.UnionType), get_origin(kind) is list
        if is_optional or is_list:
            kind = next(one for one in get_args(kind) if one is not types.NoneType)
        struct = kind if issubclass(kind, msgspec.Struct) else None
        found.append(FieldPlan(field.name, kind, is_list, is_optional, struct))
    return tuple(found)


@cache
def message_class(view: type[msgspec.Struct]) -> type[Message]:
    """Return the message that stands for a view."""
    name = f"{PACKAGE}.{view.__name__}"
    file = FileDescriptorProto(name=name, package=PACKAGE, syntax="proto3")
    message = file.message_type.add(name=view.__name__)
    for number, field in enumerate(plan(view), 1):
        one = message.field.add(name=field.name, number=number)
        one.label = one.LABEL_REPEATED if field.is_list else one.LABEL_OPTIONAL
        if field.struct is not None:
            inner = message_class(field.struct).DESCRIPTOR
            one.type_name = f".{inner.full_name}"
            if inner.file.name not in file.dependency:
                file.dependency.append(inner.file.name)
            continue
        one.type = _TYPES[field.kind]
        if field.is_optional:
            one.proto3_optional = True
            one.oneof_index = len(message.oneof_decl)
            message.oneof_decl.add(name=f"_{field.name}")
    _POOL.AddSerializedFile(file.SerializeToString())
    return GetMessageClass(_POOL.FindMessageTypeByName(name))


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


@cache
def page_of(row: type[msgspec.Struct]) -> type[msgspec.Struct]:
    """Return the struct of a page of rows."""
    name = f"{row.__name__.removesuffix('View')}Page"
    return msgspec.defstruct(name, [("rows", list[row])], frozen=True)  # type: ignore[valid-type]


def answer_class(rpc: Rpc[Any, Any]) -> type[Message]:
    """Return the message that answers a call: its view's, or that of a page of a stream's rows."""
    return message_class(page_of(rpc.view) if rpc.is_stream else rpc.view)


def from_answers(rpc: Rpc[Any, Any], messages: Iterable[Any]) -> Any:
    """Return the answer to a call: a view, or the rows of all pages of a stream."""
    if rpc.is_stream:
        return [to_view(row, rpc.view) for page in messages for row in page.rows]
    (message,) = messages
    return to_view(message, rpc.view)
