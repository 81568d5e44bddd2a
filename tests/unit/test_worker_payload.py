"""Payloads become what handlers declare, or are refused with the field named."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import pytest

from launcher.worker.errors import BadPayload
from launcher.worker.registry import UnknownType, dump, reader


class Invoice(msgspec.Struct):
    customer: str
    cents: int
    lines: list[int] = []


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


@pytest.mark.parametrize(
    ("declared", "payload", "value"),
    [
        (Invoice, b'{"customer":"acme","cents":5}', Invoice("acme", 5)),
        (Point, b'{"x":1}', Point(1)),
        (dict, b'{"a":[1,null]}', {"a": [1, None]}),
        (dict[str, int], b'{"a":1}', {"a": 1}),
        (list[int], b"[1]", [1]),
        (str, b'"text"', "text"),
        (int, b"5", 5),
        (bytes, b"\x00\xff", b"\x00\xff"),
        (bytes, b"", b""),
        (Any, b'{"a":1}', {"a": 1}),
        (Any, b"", None),
        (None, b"", None),
        (None, b"null", None),
        (Invoice | None, b"", None),
        (str | None, b'"a"', "a"),
    ],
)
def test_a_payload_becomes_what_is_declared(declared: Any, payload: bytes, value: object) -> None:
    read = reader(declared)(payload)
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize(
    ("declared", "payload", "message"),
    [
        (Invoice, b'{"customer":"acme"}', "payload does not fit Invoice: .*field `cents`"),
        (Invoice, b'{"customer":"a","cents":"5"}', r"expected `int`, got `str` .*\$\.cents"),
        (Invoice, b'{"customer":"a","cents":5,"lines":[1,"2"]}', r"\$\.lines\[1\]"),
        (Invoice, b"", "there is no payload: expected `object`, got `null`"),
        (Point, b'{"y":1}', "field `x`"),
        (dict, b"[]", "expected `object`, got `array`"),
        (dict, b"{not json", "payload is not JSON: object keys must be strings"),
        (str, b'"\xff\xfe"', "payload is not JSON"),
        (None, b"5", "expected `null`, got `int`"),
        (Any, b"[" * 100_000, "payload is not JSON"),
        (dict, b"{} {}", "trailing"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_field(
    declared: Any, payload: bytes, message: str
) -> None:
    with pytest.raises(BadPayload, match=message):
        reader(declared)(payload)


@pytest.mark.parametrize("declared", [object(), pytest.Session, Invoice | Point])
def test_a_type_that_no_payload_can_become_is_refused_before_one_comes(declared: Any) -> None:
    with pytest.raises(UnknownType, match=r"JSON"):
        reader(declared)


def test_a_payload_goes_out_as_json_and_bytes_as_they_are() -> None:
    assert dump({"a": Point(1)}) == b'{"a":{"x":1,"y":0}}'
    assert dump(b"\xff") == b"\xff"
    assert dump(None) == b"null"
    with pytest.raises(TypeError):
        dump(object())
