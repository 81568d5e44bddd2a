"""Which executors a job may run on, as a crontab says it: `zone=eu, disk, class!=small`.

Terms separated by commas, all of which must hold:

    zone=eu        the label zone is eu        zone=eu|us     one of these
    zone!=eu       it is not, or is not there  zone!=eu|us    none of these
    disk           the label is there          !disk          it is not

A label's name is written as in an executor's configuration; a value is plain text without `,`, `|`,
`=` and `!`. Every executor has the labels `executor` (its id) and `host`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Final

import msgspec

WHERE_CHARS_MAX: Final = 500
WHERE_TERMS_MAX: Final = 20
"""Each costs a look into every executor's labels when a place class is asked for first."""
EXECUTOR_LABEL: Final = "executor"
HOST_LABEL: Final = "host"
BUILT_IN: Final = (EXECUTOR_LABEL, HOST_LABEL)
"""Labels that every executor has, whatever its configuration says."""

_LABEL: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}", re.ASCII)
_EXAMPLE: Final = "write zone=eu, zone!=eu, zone=eu|us, zone or !zone, with commas between"


class BadWhere(ValueError):
    """A text does not say where; `column`, from 1, is where in it that shows.

    `problem` and `way_out` are for messages that count columns from elsewhere.
    """

    def __init__(self, column: int, problem: str, way_out: str = _EXAMPLE) -> None:
        super().__init__(f"column {column}: {problem}; {way_out}")
        self.column, self.problem, self.way_out = column, problem, way_out


class Term(msgspec.Struct, frozen=True, order=True, array_like=True):
    """One condition on one label: it is among `values`, or is there at all if there are none;
    `negated` turns that round."""

    label: str
    values: tuple[str, ...] = ()
    negated: bool = False

    def __str__(self) -> str:
        if not self.values:
            return f"!{self.label}" if self.negated else self.label
        return f"{self.label}{'!=' if self.negated else '='}{'|'.join(self.values)}"

    def holds(self, labels: Mapping[str, str]) -> bool:
        """Whether an executor with `labels` fits. A label that is not there has no value."""
        value = labels.get(self.label)
        is_met = value is not None and (not self.values or value in self.values)
        return is_met is not self.negated


class Where(msgspec.Struct, frozen=True, array_like=True):
    """All conditions on an executor, sorted; as text it is canonical, and empty for any."""

    terms: tuple[Term, ...] = ()

    def __str__(self) -> str:
        return ",".join(map(str, self.terms))

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether an executor with `labels`, built-in ones included, fits."""
        return all(term.holds(labels) for term in self.terms)


@lru_cache(maxsize=4096)
def parse_where(text: str) -> Where:
    """Return what `text` says; nothing but spaces means any executor.

    Raises:
        BadWhere: it is too long, or not of this form; the message names column and way out.
    """
    if len(text) > WHERE_CHARS_MAX:
        problem = f"there are {len(text)} characters, at most {WHERE_CHARS_MAX} are read"
        raise BadWhere(WHERE_CHARS_MAX + 1, problem, "give these executors a label of their own")
    if not text.strip():
        return Where()
    terms = []
    for number, (column, piece) in enumerate(_pieces(text, ",", 1), 1):
        if number > WHERE_TERMS_MAX:
            problem = f"there are more than {WHERE_TERMS_MAX} terms"
            raise BadWhere(column, problem, "give these executors a label of their own")
        terms.append(_term(column, piece))
    return Where(tuple(sorted(set(terms))))


def _pieces(text: str, separator: str, column: int) -> Iterator[tuple[int, str]]:
    """Yield the parts of `text`, which begins at `column`, each with the column it begins at."""
    for piece in text.split(separator):
        yield column + len(piece) - len(piece.lstrip()), piece.strip()
        column += len(piece) + 1


def _term(column: int, text: str) -> Term:
    if not text:
        raise BadWhere(column, "there is no term here", "take away the comma, or " + _EXAMPLE)
    name, equals, values = text.partition("=")
    if not equals:
        negated = name.startswith("!")
        bare = name.removeprefix("!").lstrip()
        return Term(_label(column + len(name) - len(bare), bare), (), negated)
    negated = name.endswith("!")
    label = _label(column, name.removesuffix("!").rstrip())
    begin = column + len(name) + 1
    found = {_value(at, value, label) for at, value in _pieces(values, "|", begin)}
    return Term(label, tuple(sorted(found)), negated)


def _label(column: int, text: str) -> str:
    if not _LABEL.fullmatch(text):
        rule = "up to 100 of A-Z a-z 0-9 _ . - are, not beginning with . or -"
        raise BadWhere(column, f"{text!r} is not the name of a label", rule)
    return text


def _value(column: int, text: str, label: str) -> str:
    if not text:
        way_out = f"write {label}=eu, or {label} alone where any value will do"
        raise BadWhere(column, f"label {label} has no value here", way_out)
    bad = next((one for one in text if one in "=!" or not one.isprintable()), "")
    if bad:
        problem = f"{bad!r} cannot be in a value of label {label}"
        raise BadWhere(column + text.index(bad), problem)
    return text
