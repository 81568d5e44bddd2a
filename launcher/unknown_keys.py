"""What is wrong with an unknown key of a configuration: the place, and the nearest known key."""

from __future__ import annotations

import difflib
import re
from typing import Any, Final

import msgspec
from msgspec import inspect

_UNKNOWN: Final = re.compile(r"Object contains unknown field `(.*?)`(?: - at `\$(.*)`)?", re.DOTALL)
_STEP: Final = re.compile(r"\.([^.\[\]]+)|\[([^\]]*)\]")
_SHOWN_MAX: Final = 60


def explain_unknown(
    error: msgspec.ValidationError, kind: type[msgspec.Struct]
) -> tuple[str, str] | None:
    """Return the place of an unknown key and what to do about it, None if the error is another one.

    The place is written as in `lease.give_up: not a known key`. The way out names the nearest known
    key of that table, or the table that the key belongs to, or all keys of the table.
    """
    found = _UNKNOWN.fullmatch(str(error))
    if found is None:
        return None
    key, path = found[1], found[2] or ""
    root = inspect.type_info(kind)
    table = _table_at(root, path)
    place = ".".join(filter(None, (_shown(path), key[:_SHOWN_MAX])))
    return f"{place}: not a known key", _way_out(key, path, table, root)


def _way_out(key: str, path: str, table: inspect.StructType | None, root: inspect.Type) -> str:
    known = [field.encode_name for field in table.fields] if table is not None else []
    elsewhere = [where for where in _tables_with(key, root, "") if where != _shown(path)]
    if elsewhere:
        return f"{key} belongs to {_named(elsewhere[0])}"
    near = difflib.get_close_matches(key, known, 1) or [
        one for one in known if _plain(one).startswith(_plain(key))
    ]
    if near:
        return f"the nearest known key is {near[0]}"
    return f"known keys of {_named(_shown(path))} are {', '.join(known)}"


def _plain(key: str) -> str:
    return key.replace("_", "").replace("-", "").lower()


def _named(place: str) -> str:
    return f"the table [{place}]" if place else "the top of the file"


def _shown(path: str) -> str:
    """Return a path as people write it, without the places in lists and tables of names."""
    return ".".join(step[0] for step in _STEP.findall(path) if step[0])


def _table_at(kind: inspect.Type, path: str) -> inspect.StructType | None:
    """Return the struct that a path of msgspec leads to."""
    for name, _ in _STEP.findall(path):
        struct = _struct_of(kind)
        if not name:  # what a list, tuple or table has in it
            element: Any = getattr(kind, "value_type", None) or getattr(kind, "item_type", None)
            kind = element if isinstance(element, inspect.Type) else kind
        elif struct is not None:
            kind = next((one.type for one in struct.fields if one.encode_name == name), kind)
    return _struct_of(kind)


def _struct_of(kind: inspect.Type) -> inspect.StructType | None:
    """Return the struct that a type is, or may be."""
    for one in kind.types if isinstance(kind, inspect.UnionType) else (kind,):
        if isinstance(one, inspect.StructType):
            return one
    return None


def _tables_with(key: str, kind: inspect.Type, place: str) -> list[str]:
    """Return the places of tables that have a key, the ones further up first."""
    struct = _struct_of(kind)
    if struct is None:
        return []
    found = [place] if any(one.encode_name == key for one in struct.fields) else []
    for field in struct.fields:
        below = f"{place}.{field.encode_name}" if place else field.encode_name
        found += _tables_with(key, field.type, below)
    return found
