"""What a job file in TOML may look like before it is parsed: looked at in one pass.

tomllib needs a time that is quadratic and worse in the length of a dotted key, recurses for each
level of nesting, and makes any number a text says. None of that has a use in a job file.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from cron import limits

_TOKEN = re.compile(
    # Possessive, and closed by the end as well: no text is looked at twice.
    r'"""(?:[^"\\]++|\\.|"{1,2}(?!"))*+(?:"""+|\\?\Z)'
    r"|'''(?:[^']++|'{1,2}(?!'))*+(?:'''+|\Z)"
    r'|"(?:[^"\\\n]++|\\[^\n])*+"?'
    r"|'[^'\n]*+'?"
    r"|\#[^\n]*"
    r"|(?P<line>\n)"
    r"|(?P<open>[\[{])"
    r"|(?P<close>[\]}])"
    r"|(?P<end>[=,])"
    r"|(?P<dot>\.)"
    r"|(?P<word>[^\s\"'#\[\]{}=,.]+)",
    re.DOTALL,
)
_HINT: Final = "write plain [[job]] tables, with at most env and payload below them"


class Excess(NamedTuple):
    """What is too much for a job file: its place (line and column from 1), and what to write."""

    line: int
    column: int
    message: str
    hint: str


def find_excess(text: str) -> Excess | None:
    """Return the first thing in a text of TOML that is not worth parsing, or None.

    The time is linear in the length of the text. A text that is no TOML may pass.
    """
    if len(text) > limits.JOB_FILE_CHARS_MAX:
        message = f"job file has {len(text)} characters, more than {limits.JOB_FILE_CHARS_MAX}"
        return Excess(0, 0, message, "split it into several files")
    depth = dots = all_dots = 0
    for token in _TOKEN.finditer(text):
        kind = token.lastgroup
        if kind == "dot":
            dots += 1
            all_dots += 1
            if all_dots > limits.JOB_FILE_ALL_DOTS_MAX:
                message = f"keys have more than {limits.JOB_FILE_ALL_DOTS_MAX:,} dots together"
                return _at(text, token.start(), message, "write tables instead of dotted keys")
            if dots > limits.JOB_FILE_DOTS_MAX:
                message = f"key has more than {limits.JOB_FILE_DOTS_MAX} dots"
                return _at(text, token.start(), message, _HINT)
        elif kind == "word":
            if token.end() - token.start() > limits.JOB_FILE_WORD_CHARS_MAX:
                message = f"word is longer than {limits.JOB_FILE_WORD_CHARS_MAX} characters"
                return _at(text, token.start(), message, "put a text into quotes; shorten a number")
        elif kind == "close":
            depth = max(0, depth - 1)
        elif kind == "open":
            depth += 1
            dots = 0
            if depth > limits.JOB_FILE_DEPTH_MAX:
                message = f"file is nested more than {limits.JOB_FILE_DEPTH_MAX} deep"
                return _at(text, token.start(), message, _HINT)
        elif kind is not None:  # the end of a line, a key or a value
            dots = 0
    return None


def _at(text: str, place: int, message: str, hint: str) -> Excess:
    begin = text.rfind("\n", 0, place) + 1
    return Excess(text.count("\n", 0, place) + 1, place - begin + 1, message, hint)
