"""cron.web.openapi: does the document say what the routes take and answer?"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from cron.api.dead import DeadOutcome
from cron.api.rpc import encode
from cron.web.openapi import document
from cron.web.requests import WRITTEN
from cron.web.routes import Route, routes
from tests.unit.api_rig import FakeBackend, launch
from tests.unit.web_rig import site

ROUTES = routes()
DOCUMENT = document(ROUTES)
METHODS = ("get", "put", "post", "patch", "delete")


def parts(value: Any) -> Iterator[dict[str, Any]]:
    """All objects inside a value."""
    if isinstance(value, dict):
        yield value
        for one in value.values():
            yield from parts(one)
    elif isinstance(value, list):
        for one in value:
            yield from parts(one)


def resolved(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema, or the one that it refers to."""
    ref = schema.get("$ref")
    if ref is None:
        return schema
    found: dict[str, Any] = DOCUMENT["components"]["schemas"][ref.rpartition("/")[2]]
    return found


def operation(route: Route) -> dict[str, Any]:
    """What the document says of a route."""
    found: dict[str, Any] = DOCUMENT["paths"][route.path][route.method.lower()]
    return found


def test_it_is_a_document_of_openapi_3_1() -> None:
    assert DOCUMENT["openapi"] == "3.1.0"
    assert set(DOCUMENT) == {"openapi", "info", "paths", "components", "security"}
    ids = [one["operationId"] for one in operations()]
    assert len(ids) == len(set(ids))
    templates = [re.sub(r"\{\w+\}", "{}", path) for path in DOCUMENT["paths"]]
    assert len(templates) == len(set(templates)), "paths that differ by a variable's name alone"


def operations() -> list[dict[str, Any]]:
    return [
        one
        for methods in DOCUMENT["paths"].values()
        for method, one in methods.items()
        if method in METHODS
    ]


def test_every_reference_leads_somewhere_and_every_schema_is_used() -> None:
    schemas = DOCUMENT["components"]["schemas"]
    named = {one["$ref"] for one in parts(DOCUMENT) if "$ref" in one}
    assert {ref.removeprefix("#/components/schemas/") for ref in named} == set(schemas)
    assert len(schemas) > 40


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
def test_every_route_says_its_fields_and_its_answer(route: Route) -> None:
    said = operation(route)
    variables = re.findall(r"\{(\w+)\}", route.path)
    of_path = [one["name"] for one in said["parameters"] if one["in"] == "path"]
    assert of_path == variables
    fields = set(route.rpc.request.__struct_fields__) - {route.field, *WRITTEN}
    if route.has_body:
        schema = said["requestBody"]["content"]["application/json"]["schema"]
        options = [resolved(one) for one in schema.get("oneOf", [schema])]
        assert set(options[-1].get("properties", ())) == fields
        assert not [one for one in said["parameters"] if one["in"] == "query"]
    else:
        named = {one["name"] for one in said["parameters"] if one["in"] == "query"}
        assert named >= fields - {"filter"}
        assert "requestBody" not in said
        for one in said["parameters"]:
            assert "schema" in one or "content" in one
    answer = said["responses"]["200"]["content"]["application/json"]["schema"]
    row = answer["items"] if route.rpc.is_stream else answer
    assert row == {"$ref": f"#/components/schemas/{route.rpc.view.__name__}"}
    problem = said["responses"]["default"]["content"]["application/problem+json"]["schema"]
    assert resolved(problem)["required"] == ["type", "title", "status", "detail", "code"]


def test_a_filters_fields_stand_beside_the_others() -> None:
    (of_list,) = [one for one in ROUTES if one.rpc.name == "List"]
    named = {one["name"] for one in operation(of_list)["parameters"] if one["in"] == "query"}
    assert {"queue", "state", "prefix", "limit", "page"} <= named
    assert "filter" not in named


async def test_answers_are_as_the_document_says() -> None:
    backend = FakeBackend(show=[launch()], dead=None, redrive=DeadOutcome(launches=["x"]), jobs=[])
    async with site(backend) as served:
        said = await served.ask("GET", "/v1/openapi.json")
        rows = await served.ask("GET", "/v1/launches/backup@2026-11-20T15:00:00Z")
        problem = await served.ask("GET", "/v1/launches/x")
    assert said.body == encode(DOCUMENT)
    properties = resolved({"$ref": "/LaunchView"})["properties"]
    assert set(rows.json[0]) <= set(properties)
    schema = resolved({"$ref": "/ProblemDocument"})
    assert set(schema["required"]) <= set(problem.json) <= set(schema["properties"])
