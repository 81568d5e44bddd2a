"""What `where` of a job says, what it refuses, and whom it fits."""

from __future__ import annotations

import pytest

from cron.where import WHERE_CHARS_MAX, WHERE_TERMS_MAX, BadWhere, Term, Where, parse_where

EU = {"zone": "eu", "disk": "", "executor": "e1", "host": "h1"}


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ("", True),
        ("   ", True),
        ("zone=eu", True),
        ("zone=us", False),
        ("zone=us|eu", True),
        ("zone=us|asia", False),
        ("zone!=us", True),
        ("zone!=eu", False),
        ("zone!=us|asia", True),
        ("zone!=us|eu", False),
        ("gpu!=a100", True),  # what is not there is not a100
        ("gpu=a100", False),
        ("zone", True),
        ("disk", True),  # also where its value is empty
        ("gpu", False),
        ("!gpu", True),
        ("!zone", False),
        ("zone=eu,disk,!gpu,executor=e1", True),
        ("zone=eu,disk,!gpu,executor=e2", False),
        ("zone=eu,zone=us", False),
    ],
)
def test_all_terms_must_hold(text: str, *, fits: bool) -> None:
    assert parse_where(text).matches(EU) is fits


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("", ""),
        (" zone = eu ", "zone=eu"),
        ("zone != us | eu", "zone!=eu|us"),
        ("! gpu", "!gpu"),
        ("zone=eu, a", "a,zone=eu"),
        ("zone=b|a|b,zone=a|b", "zone=a|b"),
        ("rack=row 3|row 2", "rack=row 2|row 3"),
        ("zone=Zürich", "zone=Zürich"),
    ],
)
def test_the_same_is_written_in_one_way(text: str, canonical: str) -> None:
    where = parse_where(text)
    assert str(where) == canonical
    assert parse_where(canonical) == where


def test_what_is_parsed_is_terms_in_order() -> None:
    assert parse_where("!b,a=2|1") == Where((Term("a", ("1", "2")), Term("b", (), negated=True)))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("zone=", "column 6: label zone has no value here; write zone=eu, or zone alone where"),
        ("zone=eu|", "column 9: label zone has no value here"),
        ("zone=eu||us", "column 9: label zone has no value here"),
        ("zone=eu,", "column 9: there is no term here; take away the comma"),
        (",zone", "column 1: there is no term here"),
        ("zone==eu", "column 6: '=' cannot be in a value of label zone; write zone=eu, zone!=eu"),
        ("a, zone=e!u", "column 10: '!' cannot be in a value of label zone"),
        ("a=x\ty", "column 4: '\\t' cannot be in a value of label a"),
        ("a,  -b", "column 5: '-b' is not the name of a label; up to 100 of A-Z"),
        ("a, ! b c", "column 6: 'b c' is not the name of a label"),
        ("a,!", "column 4: '' is not the name of a label"),
        ("=eu", "column 1: '' is not the name of a label"),
        ("!zone=eu", "column 1: '!zone' is not the name of a label"),
        ("zone>3", "column 1: 'zone>3' is not the name of a label"),
        ("zöne=eu", "column 1: 'zöne' is not the name of a label"),
        ("x" * 101, "column 1: 'xxx"),
    ],
)
def test_a_mistake_is_named_with_its_column_and_a_way_out(text: str, message: str) -> None:
    with pytest.raises(BadWhere) as caught:
        parse_where(text)
    assert str(caught.value).startswith(message)
    assert str(caught.value).startswith(f"column {caught.value.column}: ")
    assert "; " in str(caught.value)


def test_there_is_a_most_of_terms() -> None:
    terms = [f"label{number}" for number in range(WHERE_TERMS_MAX + 1)]
    assert len(parse_where(",".join(terms[:-1])).terms) == WHERE_TERMS_MAX
    with pytest.raises(BadWhere, match=f"more than {WHERE_TERMS_MAX} terms; give these"):
        parse_where(",".join(terms))


def test_there_is_a_most_of_characters() -> None:
    text = "a=" + "x" * (WHERE_CHARS_MAX - 2)
    assert parse_where(text).matches({"a": text[2:]})
    with pytest.raises(BadWhere, match="column 501: there are 501 characters, at most 500"):
        parse_where(text + "x")
