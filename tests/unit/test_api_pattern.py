from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from cron.api.checks import PATTERN_CHARS_MAX, is_wild, parse_pattern
from cron.errors import InvalidInput
from cron.scheduler.job_filter import JobFilter, select_jobs


def select(text: str, names: list[str]) -> list[str]:
    """Return the jobs of these names that a pattern finds."""
    jobs: list[Any] = [SimpleNamespace(name=name, job=None) for name in names]
    return select_jobs(jobs, JobFilter(parse_pattern(text)), is_live=False)


NAMES = ["default/backup", "default/billing.daily", "acme/backup", "default/b"]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("backup", ["default/backup"]),
        ("acme/backup", ["acme/backup"]),
        ("b*", ["default/b", "default/backup", "default/billing.daily"]),
        ("*/backup", ["acme/backup", "default/backup"]),
        ("acme/*", ["acme/backup"]),
        ("*", sorted(NAMES)),
        ("*/*", sorted(NAMES)),
        ("?", ["default/b"]),
        ("b[ai]*", ["default/backup", "default/billing.daily"]),
        ("billing?daily", ["default/billing.daily"]),
        ("nothing", []),
        ("", sorted(NAMES)),
    ],
)
def test_a_pattern_finds_names_as_a_shell_would(text, found):
    assert select(text, NAMES) == found


def test_a_pattern_without_a_tenant_stays_in_the_default_one():
    assert parse_pattern("b*") == "default/b*"
    assert parse_pattern("backup") == "default/backup"


@pytest.mark.parametrize(
    "text", ["a b", "a\x00", "a/b/c", "ü*", "-x", "a" * (PATTERN_CHARS_MAX + 1)]
)
def test_what_cannot_match_a_name_is_refused(text):
    with pytest.raises(InvalidInput):
        parse_pattern(text)


def test_only_patterns_with_wild_characters_are_wild():
    assert is_wild("a*")
    assert not is_wild("acme/backup")


def test_a_malicious_pattern_takes_no_time():
    before = time.monotonic()
    assert select("*a" * 90 + "b", ["default/" + "a" * 100]) == []
    assert time.monotonic() - before < 50
