"""Command lines of systemd's services (systemd.service(5)) as one command of a shell.

systemd starts each line itself, without a shell. So each word is quoted here, and the joining
shell reads nothing of the unit's text but words. A line that has a shell of its own keeps it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

from cron import limits
from cron.crontab.systemd.syntax import (
    BLANKS,
    Assignment,
    Unfit,
    behind_blanks,
    next_word,
    split_words,
)

PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""systemd's own search path, which is also the PATH of a service."""
OF_USER: Final = ("HOME", "USER", "LOGNAME")
"""Variables that systemd and an executor both set from a user's entry."""
_NAME: Final = re.compile("[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_DOLLAR: Final = re.compile(r"\$\$|\$\{([^}]*)(\})?", re.ASCII)
_FILE: Final = re.compile(r"[^/=]+")
_UNSAFE: Final = re.compile(r"[\x00-\x1f\x7f\"'\\]")
_MARKS: Final = "-@:+!|"
_CODES: Final = {
    "USAGE": 64, "DATAERR": 65, "NOINPUT": 66, "NOUSER": 67, "NOHOST": 68, "UNAVAILABLE": 69,
    "SOFTWARE": 70, "OSERR": 71, "OSFILE": 72, "CANTCREAT": 73, "IOERR": 74, "TEMPFAIL": 75,
    "PROTOCOL": 76, "NOPERM": 77, "CONFIG": 78, "SUCCESS": 0, "FAILURE": 1,
}  # fmt: skip
_CODE_MAX: Final = 255


class Context(NamedTuple):
    """What the words of a command can refer to. `is_root`: the service runs as root anyway."""

    expand: Callable[[str], str]
    known: Mapping[str, str]
    of_user: tuple[str, ...]
    is_root: bool


class Step(NamedTuple):
    """A program with its arguments, as words of a shell."""

    words: tuple[str, ...]
    ignores_failure: bool

    def __str__(self) -> str:
        text = " ".join(self.words)
        return f"{{ {text} || true; }}" if self.ignores_failure else text


def steps(line: Assignment, context: Context) -> Iterator[Step]:
    """Yield the programs of a line, which has several where words are a semicolon.

    Raises:
        Unfit: a part of it cannot mean the same here.
    """
    text, at = line.value, 0
    if len(text) > limits.CRONTAB_LINE_BYTES_MAX:
        raise Unfit(f"it is longer than {limits.CRONTAB_LINE_BYTES_MAX} characters")
    while (first := next_word(text, at)) is not None:
        at = first.end
        if first.text == ";":
            continue
        words: list[str] = []
        while at < len(text):
            is_escaped = text[at : at + 2] == "\\;"
            end = at + 1 + is_escaped
            if (is_escaped or text[at] == ";") and text[end : end + 1].strip(BLANKS) == "":
                at = behind_blanks(text, end)
                if not is_escaped:
                    break
                words.append(";")
            else:
                word = next_word(text, at)
                if word is None:
                    break
                words.append(context.expand(word.text))
                at = word.end
        yield _step(first.text, words, context)


def _step(first: str, words: list[str], context: Context) -> Step:
    path = first.lstrip(_MARKS)
    marks = first[: len(first) - len(path)]
    path = context.expand(path)
    rights = "".join(mark for mark in marks if mark not in "-@:")
    if rights not in ("", "+", "!", "!!") or max(map(marks.count, "-@:")) > 1:
        raise Unfit(f"{marks} is no prefix of a command that can be carried over")
    if rights and not context.is_root:
        raise Unfit(f"{marks} runs it as root, and a job has one user")
    if "@" in marks:
        if not words or words[0] != path:
            raise Unfit("@ gives the program another name, and no shell can")
        words = words[1:]
    if "$" in path:
        raise Unfit("systemd replaces no variable in the path of a program")
    if _UNSAFE.search(path) or path.endswith("/"):
        raise Unfit(f"{path[:40]!r} is no program that systemd starts")
    if path.startswith("/"):
        program = [path]
    elif _FILE.fullmatch(path) is None:
        raise Unfit(f"{path[:40]!r} is no program that systemd starts")
    elif context.known.get("PATH") != PATH:
        raise Unfit("systemd looks for it in other folders than those of PATH: write its path")
    else:
        program = ["/usr/bin/env", path]  # a builtin of the shell is another program
    quoted = [shlex.quote(one) for one in program]
    length = 0
    for word in words:
        found = [shlex.quote(word)] if ":" in marks else _replaced(word, context)
        length += sum(map(len, found))
        if length > limits.CRONTAB_LINE_BYTES_MAX:
            raise Unfit(f"it is longer than {limits.CRONTAB_LINE_BYTES_MAX} characters")
        quoted += found
    return Step(tuple(quoted), "-" in marks)


def _replaced(word: str, context: Context) -> list[str]:
    """Return the words that a word is for the shell, its variables replaced as systemd does."""
    if word[:1] == "$" and word[1:2] not in ("{", "$"):
        value = _value(word[1:], context)
        if value is None:
            raise Unfit(f"{word} is split into words: write ${{{word[1:]}}}")
        if "\\" in value:
            raise Unfit(f"{word} has a backslash, and is split into words")
        return [shlex.quote(one) for one in split_words(value)]
    found, at = "", 0
    text = ""
    for match in _DOLLAR.finditer(word):
        text += word[at : match.start()]
        at = match.end()
        if match[0] == "$$":
            text += "$"
            continue
        if not match[2]:
            raise Unfit(f"{match[0][:40]} is not closed")
        value = _value(match[1], context)
        if value is None:
            found += (shlex.quote(text) if text else "") + f'"{match[0]}"'
            text = ""
        else:
            text += value
    text += word[at:]
    return [found + (shlex.quote(text) if text or not found else "")]


def _value(name: str, context: Context) -> str | None:
    """Return the value of a variable, None if the executor sets it as systemd does."""
    if not _NAME.fullmatch(name):
        raise Unfit(f"${name[:40]} is no variable's name; a dollar sign is $$")
    if name in context.known:
        return context.known[name]
    if name in context.of_user:
        return None
    raise Unfit(f"variable {name} is not set in the unit: write it as Environment=")


def exit_codes(text: str) -> list[int]:
    """Return the codes of a `SuccessExitStatus=`.

    Raises:
        Unfit: one is another thing than a code, such as a signal.
    """
    codes = []
    for word in text.split():
        code = _CODES.get(word, int(word) if re.fullmatch("[0-9]{1,3}", word, re.ASCII) else -1)
        if not 0 <= code <= _CODE_MAX:
            raise Unfit(f"{word[:40]} is no code that a command ends with")
        codes.append(code)
    return codes


def accepting(step: str, codes: list[int]) -> str:
    """Return a command that succeeds with these codes, too."""
    accepted = "|".join(map(str, sorted(set(codes) - {0})))
    if not accepted:
        return step
    return f"{{ {step} || case $? in {accepted}) ;; *) exit $? ;; esac; }}"


def environment(lines: list[Assignment], expand: Callable[[str], str]) -> dict[str, str]:
    """Return the variables of `Environment=` lines.

    Raises:
        Unfit: a word is no variable, which systemd leaves out.
    """
    found = {}
    for line in lines:
        if len(line.value) > limits.CRONTAB_LINE_BYTES_MAX:
            raise Unfit(f"it is longer than {limits.CRONTAB_LINE_BYTES_MAX} characters")
        for word in split_words(line.value, is_strict=True):
            name, mark, value = expand(word).partition("=")
            if not mark or not _NAME.fullmatch(name):
                raise Unfit(f"{word[:40]} is no NAME=VALUE")
            found[name] = value
    return found
