"""Patterns of job names: a plain name, or a shell-like one with `*`, `?` and `[...]`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import translate
from typing import Final

from cron.errors import InvalidInput, UnknownJob
from launcher.names import (
    DEFAULT_TENANT,
    NAME_PART_CHARS_MAX,
    BadName,
    parse_job_name,
    short_job_name,
)

PATTERN_CHARS_MAX: Final = 2 * NAME_PART_CHARS_MAX + 1
_LEGAL = re.compile(r"[A-Za-z0-9_.*?!\[\]-]+(?:/[A-Za-z0-9_.*?!\[\]-]+)?")
EVERYTHING: Final = "*/*"
_WILD = frozenset("*?[")


def is_wild(pattern: str) -> bool:
    """Whether a pattern may match more than one name."""
    return not _WILD.isdisjoint(pattern)


def parse_pattern(text: str) -> str:
    """Return the pattern with its tenant: `tenant/pattern`; "" stays "", which matches all.

    Raises:
        InvalidInput: it is too long or has a character that no name has.
    """
    if not text:
        return ""
    if len(text) > PATTERN_CHARS_MAX or not _LEGAL.fullmatch(text):
        raise InvalidInput(
            f"pattern {text[:PATTERN_CHARS_MAX]!r} is not one of job names",
            "a job name, or one with * ? [...] in it, such as 'billing*' or 'acme/*'",
        )
    if text == "*":
        return EVERYTHING  # of every tenant: whoever stops everything must not be taken by the word
    if is_wild(text):
        return text if "/" in text else f"{DEFAULT_TENANT}/{text}"
    try:
        return parse_job_name(text)
    except BadName as error:
        raise InvalidInput(str(error)) from error


def select(pattern: str, names: Iterable[str]) -> list[str]:
    """Return the full names that a parsed pattern matches, sorted."""
    if not pattern:
        return sorted(names)
    match = re.compile(translate(pattern)).match
    return sorted(name for name in names if match(name))


def no_such_job(pattern: str) -> UnknownJob:
    """Return the error for a name or pattern that no job has."""
    if not is_wild(pattern):
        return unknown_job(pattern)
    return UnknownJob(f"pattern {pattern!r} matches no job", "`raftcron jobs` lists them")


def unknown_job(name: str) -> UnknownJob:
    """Return the error for a job that does not exist."""
    return UnknownJob(f"job {short_job_name(name)} does not exist", "`raftcron jobs` lists them")
