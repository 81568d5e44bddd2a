"""`python -m launcher.targets.rendering`: renders templates of channels, in a process of its own.

A template is a program of the operator, and what it is fed with comes from jobs. Jinja2's sandbox
keeps it from everything but its variables. No sandbox bounds its time and memory: a loop within a
loop, or a text that is doubled again and again. So this process has a bound of memory and, for each
piece of work, one of processor time, at which the system ends it. The parent, `templates.py`, says
what it was that ended it.

Work comes as JSON on the standard input, and an answer for each piece as a line of JSON.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Final

from jinja2 import StrictUndefined, Template, TemplateSyntaxError, nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

from launcher.lengths import length_ms

PROBLEM_CHARS_MAX: Final = 300


class Environment(ImmutableSandboxedEnvironment):
    """The language of the templates: Jinja2's own in its sandbox, and the filter `later`."""

    def __init__(self) -> None:
        super().__init__(
            undefined=StrictUndefined,
            autoescape=False,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self.policies["truncate.leeway"] = 0  # a bound is a bound
        self.policies["json.dumps_kwargs"] = {"default": _no_json}
        del self.globals["lipsum"]  # chance
        self.filters["later"] = later


class Problem(Exception):
    """A template cannot be used: the line, 0 if none is known, and why."""

    def __init__(self, line: int, text: str) -> None:
        super().__init__(text)
        self.line = line


def later(at: str, length: str) -> str:
    """Return the instant that is `length`, such as `30d`, after an instant of RFC 3339; the filter
    of this name."""
    moment = datetime.fromisoformat(at) + timedelta(milliseconds=length_ms(length))
    return moment.isoformat().replace("+00:00", "Z")


def _no_json(value: object) -> None:
    """Refuse what is no JSON. A variable that there is not is said as such: its text is an
    error."""
    raise TypeError(f"{str(value)[:100]} is no JSON")


def compiled(environment: Environment, text: str, known: frozenset[str] | None) -> Template:
    """Return a template, which names no variable but those that are `known`, unless that is None.

    Raises:
        Problem: it is none.
    """
    try:
        tree = environment.parse(text)
        if known is not None:
            _check_names(tree, known | environment.globals.keys())
        return environment.from_string(tree)
    except Problem:
        raise
    except TemplateSyntaxError as error:
        raise Problem(error.lineno, error.message or "it is no template") from error
    except Exception as error:  # constants are computed here: whatever that comes to
        raise Problem(0, str(error) or type(error).__name__) from error


def _check_names(tree: nodes.Template, known: frozenset[str]) -> None:
    """Raise a Problem if a template reads a variable that there is not, also where it would not
    come by with what it is tried with."""
    own = {one.name for one in tree.find_all(nodes.Name) if one.ctx != "load"}
    own |= {one.name for one in tree.find_all(nodes.Macro)} | {
        "caller",
        "kwargs",
        "loop",
        "varargs",
    }
    for one in tree.find_all(nodes.Name):
        if one.ctx == "load" and one.name not in own | known:
            raise Problem(one.lineno, f"there is no variable {one.name!r}")


def rendered(template: Template, view: Mapping[str, Any], bytes_max: int) -> str:
    """Return the text that a template makes, of at most `bytes_max` bytes.

    Raises:
        Problem: it fails, or the text is too long.
    """
    pieces: list[str] = []
    size = 0
    try:
        for piece in template.generate(view):
            size += len(piece.encode("utf-8", "replace"))
            if size > bytes_max:
                raise Problem(0, f"it makes more than {bytes_max:,} bytes")
            pieces.append(piece)
    except Problem:
        raise
    except MemoryError as error:
        pieces.clear()
        raise Problem(_line_of(error.__traceback__), "it takes too much memory") from error
    except Exception as error:  # whatever a template does wrong
        said = str(error) or type(error).__name__
        raise Problem(_line_of(error.__traceback__), said) from error
    return "".join(pieces)


def _line_of(trace: TracebackType | None) -> int:
    """Return the line of a template in which an error was raised, 0 if it was in none."""
    line = 0
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == "<template>":
            line = trace.tb_lineno
        trace = trace.tb_next
    return line


def check_json(text: str) -> None:
    """Return if a text is JSON, of which there is one reading.

    Raises:
        Problem: it is not.
    """
    try:
        json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        where = text.count("\n", 0, error.pos) + 1 if isinstance(error, json.JSONDecodeError) else 0
        at = f" at line {where} of the body" if where else ""
        raise Problem(0, f"it makes no JSON{at}: write {{{{ value | tojson }}}}") from error


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def done(work: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer to a piece of work: its `texts`, or why there are none.

    `templates` are texts by their names, `views` what they see in turn, `known` the variables that
    there are, `bytes_max` the bound of each text. `is_json`: the template `body` makes JSON.
    """
    environment, name = Environment(), ""
    known = frozenset(work["known"])
    try:
        templates: dict[str, Template] = {}
        for name, text in work["templates"].items():
            templates[name] = compiled(environment, text, known)
        texts = []
        for view in work["views"]:
            found = {}
            for name, template in templates.items():
                found[name] = rendered(template, view, work["bytes_max"])
                if name == "body" and work["is_json"]:
                    check_json(found[name])
            texts.append(found)
    except Problem as problem:
        said = " ".join(str(problem).split())[:PROBLEM_CHARS_MAX]
        return {"name": name, "line": problem.line, "problem": said}
    return {"texts": texts}


def main(
    read: Callable[[], str] = sys.stdin.read, write: Callable[[str], object] = sys.stdout.write
) -> None:
    """Answer what is asked for, within the bounds that come with it."""
    asked = json.loads(read())
    resource.setrlimit(resource.RLIMIT_AS, (asked["memory_bytes"],) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for work in asked["work"]:
        signal.setitimer(signal.ITIMER_PROF, asked["cpu_s"])  # SIGPROF ends the process
        write(json.dumps(done(work)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
