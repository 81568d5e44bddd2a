"""Names of jobs that have none in their file: readable, and a function of the job alone.

A name is made of the program that the command runs and a digest of user and command:
`backup-sh-1a2b`. Releases before format 12 made `job-` and ten digits of the digest. A cell keeps
the name under which it knows a job (`kept`), so that a file that is applied again makes no second
job.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from launcher.protocol.work import WorkSpec

DIGITS: Final = 4
"""Digits of the digest in a name; where another job of the file has the same, LONG_DIGITS."""
LONG_DIGITS: Final = 10
_EARLIER: Final = "job"
_SLUG_CHARS_MAX: Final = 40
_SCANNED_CHARS_MAX: Final = 1_000
"""Characters of a command in which its program is looked for."""
_TOKEN = re.compile(
    r"\$\(\([^)]*\)\)|\$\([^()]*\)|[;&|(){}\n]+|(?:[^ \t\n;&|(){}\"']|\"[^\"]*\"|'[^']*')+|[\"']"
)
_BREAK = re.compile(r"[;&|(){}\n]+")
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_AMOUNT = re.compile(r"[0-9.]+[smhd]?")
_NOT_IN_NAMES = re.compile(r"[^a-z0-9_]+")
_WRAPPERS: Final = frozenset(
    (
        *("busybox", "chronic", "chroot", "command", "cronic", "doas", "env", "exec", "flock"),
        *("ionice", "nice", "nohup", "setsid", "stdbuf", "sudo", "systemd-inhibit", "time"),
        "timeout",
    )
)
"""Programs that run the program behind them."""
_TAKES_FIRST: Final = frozenset(("chroot", "flock"))
"""Those of them whose first argument is a file."""
_WITH_VALUE: Final = frozenset(("-g", "-u"))
"""Options of them whose value is a word."""
_KEYWORDS: Final = frozenset(("!", "do", "else", "if", "then", "until", "while"))
_PREPARING: Final = frozenset(
    (
        *(".", "[", "[[", "case", "cd", "export", "for", "pushd", "set"),
        *("sleep", "source", "test", "true", "umask"),
    )
)
"""Commands that prepare the one behind them."""
_INTERPRETER = re.compile(r"(?:bash|dash|ksh|node|perl|php|python|ruby|sh|zsh)[0-9.]*")
_SWITCHING: Final = frozenset(("runuser", "su"))
"""Programs that run a command line, behind -c, as another user."""
_REDIRECTION = re.compile(r"[0-9]*[<>]")
_DEPTH_MAX: Final = 3
"""Of `sh -c` in `sh -c`."""


class Unnamed(NamedTuple):
    """The names of a job that has none in its file: two that it may get, and the one that an
    earlier release gave it."""

    short: str
    long: str
    earlier: str


class DefaultNames:
    """Gives each job of one file a name; equal jobs are numbered in the file's order."""

    def __init__(self, tenant: str) -> None:
        self._tenant = tenant
        self._equals: dict[str, int] = {}
        self._taken: dict[str, str] = {}

    def name(self, owner: str, command: str, handler: str = "") -> tuple[str, Unnamed]:
        """Return a job's name, and all names that it may have. `owner` is its user, or tells its
        handler."""
        # surrogatepass: the command of a job file was not checked for surrogates.
        text = f"{owner}\0{command}".encode("utf-8", "surrogatepass")
        digest = hashlib.sha256(text).hexdigest()[:LONG_DIGITS]
        slug = _slug(handler) if handler else _slug(program(command))
        count = self._equals[digest] = self._equals.get(digest, 0) + 1
        suffix = f"-{count}" if count > 1 else ""
        names = Unnamed(
            f"{self._tenant}/{slug}-{digest[:DIGITS]}{suffix}",
            f"{self._tenant}/{slug}-{digest}{suffix}",
            f"{self._tenant}/{_EARLIER}-{digest}{suffix}",
        )
        is_free = self._taken.setdefault(names.short, digest) == digest
        return (names.short if is_free else names.long), names


def program(command: str, depth: int = 0) -> str:
    """Return the program that a command runs, or the script that its interpreter runs, without
    folders; "" if none can be told. It is a guess for a name, and decides nothing else. No value of
    a variable and no file of a redirection is in it."""
    tokens = _TOKEN.findall(command[:_SCANNED_CHARS_MAX])
    words = [*_words(tokens)]
    first = next(_programs(iter(words), depth), "")
    return first or next((_last_part(one) for one in words if not _BREAK.fullmatch(one)), "")


def _words(tokens: Iterable[str]) -> Iterator[str]:
    """Yield the tokens without assignments and redirections."""
    is_file = False
    for token in tokens:
        redirection = _REDIRECTION.match(token)
        if is_file or _ASSIGNMENT.match(token) or redirection:
            is_file = redirection is not None and token[redirection.end() :].strip("<>&|") == ""
        else:
            yield token


def _programs(tokens: Iterator[str], depth: int) -> Iterator[str]:
    """Yield the names of programs that the simple commands of a line run."""
    is_awaited, skipped = True, 0
    for token in tokens:
        name = _last_part(token)
        if _BREAK.fullmatch(token):
            is_awaited, skipped = True, 0
        elif not is_awaited or token in _KEYWORDS:
            continue
        elif token.startswith("-"):
            skipped += token in _WITH_VALUE
        elif skipped:
            skipped -= 1
        elif name in _PREPARING:
            is_awaited = False
        elif name in _WRAPPERS:
            skipped += name in _TAKES_FIRST
        elif _INTERPRETER.fullmatch(name) or name in _SWITCHING:
            yield _script(tokens, name in _SWITCHING, depth) or name
        elif name and not _AMOUNT.fullmatch(token):
            yield name


def _script(tokens: Iterable[str], is_user_first: bool, depth: int) -> str:
    """Return the script that an interpreter gets, or the program of the command line that it gets,
    "" if it gets none. With `is_user_first`, the name of a user is no script."""
    is_line = is_code = False
    for token in tokens:
        if _BREAK.fullmatch(token):
            return ""
        if is_code:
            return ""
        if is_line:
            return program(token.strip("\"'"), depth + 1) if depth < _DEPTH_MAX else ""
        if token in ("-c", "--command"):
            is_line = True
        elif token in ("-e", "-r"):
            is_code = True
        elif not token.startswith("-") and not is_user_first:
            return _last_part(token)
    return ""


def _last_part(token: str) -> str:
    return token.strip("\"'").rstrip("/").rsplit("/", 1)[-1]


def _slug(text: str) -> str:
    return _NOT_IN_NAMES.sub("-", text.lower())[:_SLUG_CHARS_MAX].strip("-_") or _EARLIER


def kept(names: Unnamed, chosen: str, is_same: Callable[[str], bool | None]) -> str:
    """Return the name of a job in a cell. `is_same` tells of a name whether the job of that name
    runs the same command as the same user; None if there is no job of it.

    A job that is there keeps its name, also where another source has it: equal commands without a
    name are one job. A name that another command has is not taken.
    """
    known = (one for one in (names.earlier, names.long, names.short) if is_same(one))
    return next(known, "") or (chosen if is_same(chosen) is None else names.long)


def is_same_work(one: WorkSpec, other: WorkSpec) -> bool:
    """Return whether two works are of jobs with the same default name, if they have none: the same
    command or handler with its payload, and the same user."""
    if one.handler or other.handler:
        return (one.handler, one.payload) == (other.handler, other.payload)
    return (one.argv[-1:], one.user) == (other.argv[-1:], other.user)
