"""Templates in their bounds: time, memory, bytes, and nothing but their variables."""

from __future__ import annotations

from typing import Any

import pytest

from launcher.targets.templates import TEXT_BYTES_MAX, BadTemplate, Piece, Place, rendered

LOOPS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
NESTED = "{% for a in x %}" * 12 + "{% endfor %}" * 12
DOUBLED = "{% set n = namespace(s='x' * 99) %}{% for a in range(60) %}{% set n.s = n.s ~ n.s %}"
TIMEOUT_S = 120.0
"""Far beyond what any of them takes on a busy machine: the bound is of processor time."""


def piece(text: str, *views: dict[str, Any], is_json: bool = False) -> Piece:
    known = frozenset({"x"})
    return Piece({"body": Place(text, "t.j2")}, list(views) or [{"x": [1] * 30}], known, is_json)


def body_of(one: Piece) -> str:
    [found] = rendered([one], TIMEOUT_S)
    assert isinstance(found, list), found
    return found[0]["body"]


def problem(text: str) -> str:
    [found] = rendered([piece(text)], TIMEOUT_S)
    assert isinstance(found, BadTemplate), found
    return str(found)


@pytest.mark.parametrize("text", [LOOPS, NESTED, "{{ 9 ** (9 ** 9) }}"])
def test_a_template_without_end_is_ended_by_its_processor_time(text: str) -> None:
    assert problem(text) == "t.j2: it takes more than 2 s of processor time"


@pytest.mark.parametrize(
    "text",
    [
        "{{ 'x' * 10**9 }}",
        "{{ [0] * 10**9 }}",
        DOUBLED + "{% endfor %}",
        "{{ '%1000000000d' % 1 }}",
        "{{ 'x' | center(10**9) }}",
        "{{ 'x'.ljust(10**9) }}",
        "{{ '{:>1000000000}'.format(1) }}",
    ],
)
def test_a_template_that_takes_all_memory_is_ended(text: str) -> None:
    assert problem(text) == "t.j2: line 1: it takes too much memory"


def test_a_text_without_end_is_cut_off() -> None:
    text = "{% for a in range(99999) %}{{ 'x' * 99 }}{% endfor %}"
    assert problem(text) == f"t.j2: it makes more than {TEXT_BYTES_MAX:,} bytes"
    full = "{{ 'x' * SIZE }}".replace("SIZE", str(TEXT_BYTES_MAX))
    assert len(body_of(piece(full))) == TEXT_BYTES_MAX


@pytest.mark.parametrize(
    "text",
    [
        "{{ ''.__class__ }}",
        "{{ x.__class__.__mro__ }}",
        "{{ ''['__class__'] }}",
        "{{ '' | attr('__class__') }}",
        "{{ range.__globals__ }}",
        "{{ cycler.__init__.__globals__.os }}",
        "{{ '{0.__class__}'.format(x) }}",
        "{{ x.append(1) }}",
        "{{ x.clear() }}",
        "{{ x | map('attr', '__class__') | join }}",
        "{{ self._TemplateReference__context.environment }}",
        "{{ joiner.__call__.__globals__ }}",
        "{{ namespace.__init__ }}",
        "{% include '/etc/passwd' %}",
        "{% import '/etc/passwd' as x %}",
        "{% extends '/etc/passwd' %}",
        "{{ lipsum() }}",
        "{{ undefined_name }}",
    ],
)
def test_a_template_gets_out_of_its_sandbox_nowhere(text: str) -> None:
    problem(text)


def test_what_a_view_contains_is_text_and_no_template() -> None:
    assert body_of(piece("{{ x }}", {"x": "{{ 7 * 7 }}{% raw %}"})) == "{{ 7 * 7 }}{% raw %}"


def test_the_templates_behind_one_that_is_ended_are_rendered() -> None:
    found = rendered(
        [piece("a"), piece(LOOPS), piece("b"), piece("{{ y }}"), piece("c")], TIMEOUT_S
    )
    assert [one[0]["body"] if isinstance(one, list) else str(one) for one in found] == [
        "a", "t.j2: it takes more than 2 s of processor time", "b",
        "t.j2: line 1: there is no variable 'y'", "c",
    ]  # fmt: skip


def test_a_template_that_is_a_secret_is_in_no_message() -> None:
    one = Piece({"body": Place("{{ s3cret }", "its URL", is_secret=True)}, [], frozenset(), False)
    [found] = rendered([one], TIMEOUT_S)
    assert str(found) == "its URL: line 1: it cannot be rendered"


def test_a_process_that_has_no_time_left_is_killed() -> None:
    [found] = rendered([piece(LOOPS)], 0.001)
    assert str(found) == "t.j2: it was not rendered in time"


@pytest.mark.parametrize(
    ("at", "length", "said"),
    [
        ("2026-11-20T15:00:00Z", "5m", "2026-11-20T15:05:00Z"),
        ("2026-12-31T23:59:59Z", "1s", "2027-01-01T00:00:00Z"),
        ("2028-02-28T00:00:00Z", "1d", "2028-02-29T00:00:00Z"),
    ],
)
def test_the_filter_later_adds_a_length_to_an_instant(at: str, length: str, said: str) -> None:
    assert body_of(piece("{{ x[0] | later(x[1]) }}", {"x": [at, length]})) == said
