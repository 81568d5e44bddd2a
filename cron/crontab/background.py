"""Finds commands that leave a process in the background, which ends with its launch.

A launch is over when its shell is. What it left in its process group is killed, and what left that
group as well where the executor has control groups (`launcher/executor/DESIGN.md`). cron kills
nobody, so such lines work there. The shell's text is scanned as
dash(1) and bash(1) split it: quotes, comments, redirections. It decides nothing but a warning.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from typing import Final

_KILLED: Final = "it is killed when its shell is over"
HINT: Final = "keep it in the foreground, or end the command with wait; a launch may run for days"
_MAYBE = re.compile("&|setsid|screen|tmux|daemon|sudo")
"""Without any of these there is nothing to find: most commands are not scanned."""
_DEPTH_MAX: Final = 4
"""Of `sh -c '...'` in `sh -c '...'`."""
_BASH_LIKE: Final = frozenset(("bash", "zsh"))
"""Shells in which `&>` is a redirection."""
_SHELL_STRING = re.compile(
    r"(?:\A|[ \t/;&|(])(?:(?P<shell>sh|bash|dash|ksh|zsh|su)[ \t](?:[^;&|]*[ \t])?-[a-z]*c|eval)"
    r"[ \t]+\Z"
)
_ELSEWHERE = re.compile(
    r"(?:\A|[ \t/;&|(])(?:crictl|docker|kubectl|lxc|machinectl|nerdctl|podman|ssh)[ \t][^;&|]*\Z"
)
"""Programs whose commands run in another place, and are nobody's children here."""
_LOOKED_BACK: Final = 200
"""Characters before a quoted text in which a shell is looked for that runs it."""
_CLOSINGS: Final = (("$((", "))"), ("((", "))"), ("[[", "]]"), ("'", "'"), ("`", "`"))
_AMPERSAND = re.compile(r"&&|[<>]&|\|&|&>|&")
_DOUBLE = re.compile(r"\"(?:\\.|[^\"\\])*\"", re.DOTALL)
_WAIT = re.compile(r"(?:\A|[;&|\n({])[ \t]*(?P<word>wait|fg)\b")
_DETACHING = re.compile(
    r"(?:\A|[;&|\n({]|\bnohup|\bexec|\bnice|\bsudo)[ \t]*(?:[^ \t\n;&|({]{0,200}/)?"
    r"(?P<program>setsid(?![^;&|\n]*[ \t](?:-[a-z]*w|--wait))(?=[ \t])"
    r"|screen(?=[^;&|\n]*[ \t]-[a-zA-Z]*d)"
    r"|tmux(?=[^;&|\n]*[ \t]new[^;&|\n]*[ \t]-[a-zA-Z]*d)"
    r"|start-stop-daemon(?=[^;&|\n]*[ \t](?:-[a-zA-Z]*b[a-zA-Z]*|--background)\b)"
    r"|sudo(?=(?:[ \t]+-[a-zA-Z]+)*[ \t]+(?:-[a-zA-Z]*b[a-zA-Z]*|--background)\b)"
    r"|daemonize|daemon)\b"
)


def background(script: str, shell: str) -> str:
    """Return the word by which a script leaves a process in the background, `&` or a program; ""
    if it does not seem to."""
    if _MAYBE.search(script) is None:
        return ""
    return _background(script, shell.rsplit("/", 1)[-1], _DEPTH_MAX)


def _background(script: str, shell: str, depth: int) -> str:
    plain, strings = _split(script)
    waits = [match.start("word") for match in _WAIT.finditer(plain)]
    ends = _group_ends(plain)
    for match in _AMPERSAND.finditer(plain):
        is_background = match[0] == "&" or (match[0] == "&>" and shell not in _BASH_LIKE)
        # Only the shell that began it can wait for it: none outside of the ( ) around it.
        last_wait = bisect_left(waits, ends[match.start()]) - 1
        if is_background and (last_wait < 0 or waits[last_wait] < match.start()):
            return "&"
    if (found := _DETACHING.search(plain)) is not None:
        return found["program"]
    for begin, end in strings if depth else ():
        before = plain[max(begin - 1 - _LOOKED_BACK, 0) : begin - 1]
        inner = _SHELL_STRING.search(before)
        if inner is None or _ELSEWHERE.search(before):
            continue
        if deeper := _background(script[begin:end], inner["shell"] or shell, depth - 1):
            return deeper
    return ""


def _group_ends(plain: str) -> list[int]:
    """Return of each place where the ( ) around it ends, or the end of the text."""
    ends, opened = [len(plain)] * len(plain), list[int]()
    closed: dict[int, int] = {}
    around = [-1] * len(plain)
    for at, character in enumerate(plain):
        around[at] = opened[-1] if opened else -1
        if character == "(":
            opened.append(at)
        elif character == ")" and opened:
            closed[opened.pop()] = at
    for at, begin in enumerate(around):
        ends[at] = closed.get(begin, len(plain))
    return ends


def _split(script: str) -> tuple[str, list[tuple[int, int]]]:
    """Return a script with _ for all that is quoted, computed or a comment, and where (begin, end)
    the quoted texts stand."""
    plain: list[str] = []
    strings: list[tuple[int, int]] = []
    unclosed: set[str] = set()
    at = 0
    while at < len(script):
        end = at
        if script[at] == "\\":
            end = at + 2
        elif script[at] == '"':
            closing = _DOUBLE.match(script, at)
            end = closing.end() if closing else len(script)
            strings.append((at + 1, end - 1 if closing else end))
        elif script[at] == "#" and (not at or script[at - 1] in " \t;&|(\n"):
            end = script.find("\n", at)
            end = len(script) if end < 0 else end
        else:
            for opening, close in _CLOSINGS:
                if not script.startswith(opening, at) or opening in unclosed:
                    continue
                end = script.find(close, at + len(opening)) + len(close)
                if end < len(close):
                    unclosed.add(opening)
                    end = at
                elif opening == "'":
                    strings.append((at + 1, end - 1))
                break
        plain.append(script[at] if end == at else "_" * (min(end, len(script)) - at))
        at = max(end, at + 1)
    return "".join(plain), strings


def message(how: str) -> str:
    """Return the warning about a command that leaves a process in the background by `how`."""
    end = _KILLED
    if how != "&":  # such a process has left the group
        end = f"its end is not seen, and where the executor has control groups {_KILLED}"
    return f"{how} leaves a process in the background: {end}"
