"""Names of attempts as text: one way to write each, and no need to parse what was just written."""

from __future__ import annotations

import pytest

from launcher.names import AttemptName, BadName, LaunchName
from launcher.pool.spelling import Spelling

NAME = AttemptName(LaunchName("acme/report", 1_767_225_600), 2)
TEXT = "acme/report@2026-01-01T00:00:00Z#2"


def test_what_was_written_is_read_as_the_very_same_name():
    spelling = Spelling()
    assert spelling.write(NAME) == TEXT
    assert spelling.read(TEXT) is NAME


def test_what_was_never_written_is_parsed():
    assert Spelling().read(TEXT) == NAME


@pytest.mark.parametrize(
    "text",
    [
        "",
        "report@2026-01-01T00:00:00Z#2",  # without its tenant
        "acme/report@2026-01-01T00:00:00Z",  # without its attempt
        "acme/report@2026-01-01T00:00:00Z#2/1",
        "acme/report@2026-02-30T00:00:00Z#1",
        "a b@2026-01-01T00:00:00Z#1",
    ],
)
def test_names_written_in_another_way_are_refused_each_time(text):
    spelling = Spelling()
    for _ in range(2):
        with pytest.raises(BadName):
            spelling.read(text)


def test_names_are_forgotten_when_newer_ones_fill_its_bound_twice():
    spelling = Spelling(kept=2)
    first = spelling.read(TEXT)
    names = [AttemptName(NAME.launch, number) for number in range(3, 8)]
    for name in names[:2]:
        spelling.write(name)
    assert spelling.read(TEXT) is first
    for name in names[2:]:
        spelling.write(name)
    assert spelling.read(TEXT) == first
    assert spelling.read(TEXT) is not first


@pytest.mark.parametrize(
    "name",
    [
        NAME,
        AttemptName(LaunchName("a/b", 0, 7), 1),
        AttemptName(LaunchName("a/b", 5), 3, 2),
        AttemptName(LaunchName("a/b", 5, 1), 3, 2),
    ],
)
def test_whatever_is_written_is_read_by_others(name):
    assert Spelling().read(Spelling().write(name)) == name
