"""The OpenAPI 3.1 document of the HTTP API, made from the table of calls and its structs."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Sequence
from functools import partial
from importlib.metadata import version
from typing import Any, Final

import msgspec

from cron.api.reading import BEHIND, STALE, Behind
from cron.api.rpc import Where, encode
from cron.web.health import Health
from cron.web.problems import CONTENT_TYPE, Answer, ProblemDocument
from cron.web.requests import JSON, WRITTEN, fields_of
from cron.web.routes import Route

_REF: Final = "#/components/schemas/{name}"
_ABOUT: Final = """\
Every replica answers. It asks the leader where only the leader may answer. Times end in _s (epoch
seconds) or _ms (epoch milliseconds), UTC; 0 is never. Bytes are base64. A field that is left out
has its default; an answer leaves out such fields. A reader must ignore fields that it does not
know. A list in a query is a parameter that is repeated."""
_PROBLEM: Final = {
    "description": "Refused. Only 504 leaves open whether a change happened.",
    "content": {CONTENT_TYPE: {"schema": {"$ref": _REF.format(name=ProblemDocument.__name__)}}},
}


class Document:
    """The document, made when it is first asked for."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self._routes = routes
        self._content = b""

    def answer(self) -> Answer:
        """Return the answer that has it."""
        self._content = self._content or encode(document(self._routes))
        return Answer(200, {"content-type": JSON}, self._content)


def document(routes: Sequence[Route]) -> dict[str, Any]:
    """Return the document as JSON's values."""
    kinds = [one for route in routes for one in (route.rpc.request, route.rpc.view)]
    schemas = _schemas([*kinds, ProblemDocument, Health, Behind])
    paths: dict[str, dict[str, Any]] = {
        "/healthz": {"get": _health("Alive", "Whether the replica is alive.")},
        "/readyz": {"get": _health("Ready", "Whether the replica can answer or forward calls.")},
    }
    count = Counter(route.rpc.name for route in routes)
    for route in routes:
        of_route = _operation(route, schemas)
        if count[route.rpc.name] > 1 and route.field:
            of_route["operationId"] += f"By{route.shown.title()}"
        paths.setdefault(route.path, {})[route.method.lower()] = of_route
    used = {name: schemas[name] for name in sorted(_used(paths, schemas))}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "raftcron",
            "version": version("raftcron"),
            "description": _joined(_ABOUT),
        },
        "paths": paths,
        "components": {
            "schemas": used,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"token": []}],
    }


def bounds(annotation: Any) -> dict[str, int]:
    """Return what a schema says of the check of a number."""
    for check in getattr(annotation, "__metadata__", ()):
        said = check.keywords if isinstance(check, partial) else {}
        if "high" in said:
            return {"minimum": said["low"], "maximum": said["high"]}
        if "most" in said:
            return {"minimum": 0, "maximum": said["most"]}
    return {}


def _schemas(kinds: list[type[msgspec.Struct]]) -> dict[str, Any]:
    _, schemas = msgspec.json.schema_components(kinds, ref_template=_REF)
    for kind in set(kinds):
        properties = schemas[kind.__name__]["properties"]
        for field in msgspec.structs.fields(kind):
            properties[field.encode_name] |= bounds(field.type)
    for schema in schemas.values():
        schema["description"] = _joined(schema["description"])
        for name in WRITTEN:
            schema["properties"].pop(name, None)
    return schemas


def _operation(route: Route, schemas: dict[str, Any]) -> dict[str, Any]:
    rpc = route.rpc
    schema = schemas[rpc.request.__name__]
    found: dict[str, Any] = {
        "operationId": rpc.name,
        "summary": schema["description"].partition(". ")[0],
        "description": schema["description"],
        "parameters": _parameters(route, schemas),
        "responses": {"200": _answer(route), "default": _PROBLEM},
    }
    if route.has_body:
        ref: dict[str, Any] = {"$ref": _REF.format(name=rpc.request.__name__)}
        body = ref
        if in_path := route.field:
            properties = {
                name: one for name, one in schema["properties"].items() if name != in_path
            }
            required = [name for name in schema.get("required", ()) if name != in_path]
            body = {"type": "object", "properties": properties, "required": required}
        if route.one_of:
            body = {"oneOf": [schema["properties"][route.one_of]["items"], ref]}
        found["requestBody"] = {
            "required": bool(body.get("required") or schema.get("required")),
            "content": {JSON: {"schema": body}},
        }
    return found


def _parameters(route: Route, schemas: dict[str, Any]) -> list[dict[str, Any]]:
    schema = schemas[route.rpc.request.__name__]
    listed: list[dict[str, Any]] = []
    if route.field:
        of_path = {"name": route.shown, "in": "path", "required": True}
        of_field = schema["properties"][route.field]
        listed.append({**of_path, "schema": of_field.get("items", of_field)})
    if not route.has_body:
        for name, how in fields_of(route).items():
            if name == route.field:
                continue
            one: dict[str, Any] = {"name": name, "in": "query"}
            owner = schemas[how.of.__name__]
            if name in owner.get("required", ()):
                one["required"] = True
            of_field = owner["properties"][name]
            if how.is_json:
                one["content"] = {JSON: {"schema": of_field}}
            else:
                one["schema"] = of_field
            listed.append(one)
    if route.rpc.where is Where.ANY:
        text = "1: the replica that is asked answers at once, from what it has applied."
        stale = {"name": STALE, "in": "header", "description": text}
        listed.append({**stale, "schema": {"const": "1"}})
    return listed


def _answer(route: Route) -> dict[str, Any]:
    rpc = route.rpc
    view: dict[str, Any] = {"$ref": _REF.format(name=rpc.view.__name__)}
    schema = {"type": "array", "items": view} if rpc.is_stream else view
    found: dict[str, Any] = {
        "description": "The rows." if rpc.is_stream else "The answer.",
        "content": {JSON: {"schema": schema}},
    }
    if rpc.where is Where.ANY:
        behind = {"$ref": _REF.format(name=Behind.__name__)}
        text = f"With {STALE}: how far behind the leader the answer may be."
        found["headers"] = {BEHIND: {"description": text, "content": {JSON: {"schema": behind}}}}
    return found


def _health(name: str, text: str) -> dict[str, Any]:
    content = {JSON: {"schema": {"$ref": _REF.format(name=Health.__name__)}}}
    return {
        "operationId": name,
        "summary": text.rstrip("."),
        "responses": {
            "200": {"description": "It is.", "content": content},
            "503": {"description": "It is not.", "content": content},
        },
    }


def _used(value: Any, schemas: dict[str, Any]) -> set[str]:
    """Return the names of the schemas that a value refers to, and those refer to."""
    found: set[str] = set()
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            name = str(one.get("$ref", "")).rpartition("/")[2]
            if name and name not in found:
                found.add(name)
                waiting.append(schemas[name])
            waiting += one.values()
        elif isinstance(one, list):
            waiting += one
    return found


def _joined(text: str) -> str:
    return " ".join(inspect.cleandoc(text).split())
