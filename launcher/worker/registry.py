"""Which functions are handlers: `@handler`, and the requirements on a function.

The decorator checks what can be checked during the import. `Registry.check` resolves annotations
after all imports, since they may name classes further down. Each error says where the function is
and what to do.

A payload is JSON, and an empty one reads as `null`. A handler that declares `bytes` gets the bytes.
All other types are checked strictly by msgspec: a number in quotes is no number.
"""

from __future__ import annotations

import importlib
import inspect
import re
import traceback
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple, ParamSpec, Protocol, TypeAlias, TypeVar, cast, overload

import msgspec

from launcher.client.front import Front, HandlerFunction
from launcher.errors import LauncherError
from launcher.lengths import Length, length_ms
from launcher.protocol.names import NAME_PART_CHARS_MAX
from launcher.protocol.work import NO_TIMEOUT_MS
from launcher.worker.context import Context
from launcher.worker.errors import BadApp, BadHandler, BadPayload
from launcher.worker.wire import Served

P = ParamSpec("P")
R = TypeVar("R")
_NAME: Final = re.compile(rf"[A-Za-z0-9_][A-Za-z0-9_.-]{{0,{NAME_PART_CHARS_MAX - 1}}}", re.ASCII)
_RESERVED: Final = "command"
"""The pool of jobs that are commands."""
HANDLERS_MAX: Final = 1_000
"""In one registry: their names of 100 characters are a Hello of 0.1 MB."""
_POSITIONAL: Final = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class Call(NamedTuple):
    """How a handler is called. `read` decodes its payload, None if it takes none."""

    read: Reader | None
    takes_context: bool


class Handler:
    """A function with its name and the author's options."""

    def __init__(self, function: Callable[..., Any], served: Served) -> None:
        self.function = function
        self.served = served
        self.name = served.name
        self.place = place_of(function)
        self.is_async = inspect.iscoroutinefunction(function)
        self._call: Call | None = None

    def resolve(self) -> Call:
        """Return how it is called; its annotations are resolved once.

        Raises:
            BadHandler: its annotations cannot be resolved, or name a type that JSON cannot be.
        """
        if self._call is None:
            self._call = self._resolved()
        return self._call

    def check(self, payload: bytes) -> None:
        """Check JSON that is to become a payload.

        Raises:
            BadPayload: it does not fit the type that the handler declares.
            BadHandler: as `resolve`.
        """
        read = self.resolve().read
        if read is not None and read is not bytes:
            read(payload)

    def _resolved(self) -> Call:
        named = _taken(self.function, self.place)
        try:
            hints = typing.get_type_hints(self.function)
        except (NameError, TypeError, AttributeError) as error:
            raise BadHandler(
                f"{self.place}: annotations of {self.name} cannot be read: {error}",
                "import what they name outside `if TYPE_CHECKING`, at the top of the module",
            ) from error
        if named and hints.get(named[0].name) is Context:
            return Call(None, takes_context=True)
        takes_context = len(named) > 1
        if not named:
            return Call(None, takes_context=False)
        first = named[0].name
        declared = hints.get(first, Any)
        try:
            return Call(reader(declared), takes_context)
        except UnknownType as error:
            raise BadHandler(
                f"{self.place}: parameter {first} of {self.name}: {error}",
                "declare a msgspec.Struct, a dataclass, dict, list, str, bytes, None or Any",
            ) from error


class Registry:
    """Handlers by name. A program has one, `REGISTRY`, unless it makes more for itself."""

    def __init__(self) -> None:
        self._handlers: dict[str, Handler] = {}

    def __len__(self) -> int:
        return len(self._handlers)

    def __iter__(self) -> Iterator[Handler]:
        return iter(self._handlers.values())

    def get(self, name: str) -> Handler | None:
        """Return the handler of that name, or None."""
        return self._handlers.get(name)

    def find(self, function: Callable[..., Any]) -> Handler | None:
        """Return the first handler that is this function, or None."""
        return next((one for one in self if one.function is function), None)

    def add(self, added: Handler) -> None:
        """Add a handler; one from the same place, as of a module read again, replaces itself.

        Raises:
            BadHandler: another function has the name, or there are too many.
        """
        known = self._handlers.get(added.name)
        if known is not None and known.place != added.place:
            raise BadHandler(
                f"{added.place}: handler {added.name} is already at {known.place}",
                'give one of them another name: @handler("other.name")',
            )
        if known is None and len(self) >= HANDLERS_MAX:
            raise BadHandler(f"{added.place}: more than {HANDLERS_MAX} handlers in one worker")
        self._handlers[added.name] = added

    def check(self) -> None:
        """Resolve all annotations.

        Raises:
            BadHandler: those of one handler cannot be resolved.
        """
        for one in self:
            one.resolve()

    def handler(
        self,
        name: str | None = None,
        *,
        timeout: Length | None = None,
        heartbeat: Length | None = None,
    ) -> Decorator:
        """Return a decorator that registers a function and returns it, with `submit`; see
        `handler`."""

        def register(function: Callable[P, R]) -> HandlerFunction[P, R]:
            described = describe(function, name, timeout, heartbeat)
            self.add(described)
            vars(function)["submit"] = Front(described.name, described.check)
            return cast("HandlerFunction[P, R]", function)

        return register


class Decorator(Protocol):
    """What registers a function as a handler."""

    def __call__(self, function: Callable[P, R], /) -> HandlerFunction[P, R]:
        """Return the function, with `submit`."""


REGISTRY: Final = Registry()
"""Where `@handler` registers."""


@overload
def handler(name: Callable[P, R]) -> HandlerFunction[P, R]: ...


@overload
def handler(
    name: str | None = None,
    *,
    timeout: Length | None = None,
    heartbeat: Length | None = None,
) -> Decorator: ...


def handler(
    name: Any = None,
    *,
    timeout: Length | None = None,
    heartbeat: Length | None = None,
) -> Any:
    """Make a function a handler: `@handler`, or `@handler("billing.invoice", timeout="5m")`.

    The name defaults to `module.function`. After `timeout`, by default an hour ("none": any time),
    it is cancelled, and killed 10 s later (the executor's `term_grace_ms`); so it is where it lets
    `heartbeat` pass without `Context.heartbeat`. A job may say less of both.
    The function is returned as it is, with `submit` (`launcher.client.front`): it is called as
    before, and `invoice.submit(payload)` hands over a task.

    Launches of one handler may be of several collections: a job says its own.

    Raises:
        BadHandler: it cannot be a handler, or its name is taken.
    """
    if callable(name):
        return REGISTRY.handler()(name)
    return REGISTRY.handler(name, timeout=timeout, heartbeat=heartbeat)


def describe(
    function: Callable[..., Any],
    name: str | None = None,
    timeout: Length | None = None,
    heartbeat: Length | None = None,
    *,
    resumes: bool = False,
) -> Handler:
    """Return the Handler of a function, registered nowhere.

    With `resumes` it gets an attempt again that it had begun in a worker which is dead; then
    `Context.is_resumed` is set. Only for handlers that can find out what became of it.

    Raises:
        BadHandler: it cannot be a handler.
    """
    place = place_of(function)
    if not inspect.isfunction(function):
        raise BadHandler(f"{place}: {function!r} is no function", "write a `def` that calls it")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise BadHandler(
            f"{place}: {function.__qualname__} is a generator and would never run",
            "return instead of yield",
        )
    _taken(function, place)
    served = Served(
        _checked_name(function, name, place),
        _checked_length("timeout", timeout, place),
        _checked_length("heartbeat", heartbeat, place),
        resumes,
    )
    return Handler(function, served)


def place_of(function: Callable[..., Any]) -> str:
    """Return `file:line` of a function, or of what it wraps."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else "somewhere"


def _taken(function: Callable[..., Any], place: str) -> list[inspect.Parameter]:
    """Return the parameters that get a value: the payload, and the Context if there is one."""
    named = list(inspect.signature(function).parameters.values())
    passed = [one for one in named if one.kind in _POSITIONAL]
    required = [one.name for one in passed if one.default is one.empty]
    required_by_name = [
        one.name for one in named if one.kind is one.KEYWORD_ONLY and one.default is one.empty
    ]
    if required[:1] == ["self"]:
        raise BadHandler(
            f"{place}: {function.__qualname__} is a method, and nobody would give it its self",
            "register a function, or put @staticmethod above @handler",
        )
    if len(required) > 2 or required_by_name:
        extra = (required[2:] + required_by_name)[0]
        raise BadHandler(
            f"{place}: nobody would give {function.__qualname__} its parameter {extra}",
            "a handler takes (payload), (payload, context), (context: Context) or nothing",
        )
    # A second parameter with a default is the author's own, unless its annotation is Context.
    second = passed[1:2]
    if second and second[0].default is not second[0].empty:
        noted = second[0].annotation
        text = noted if isinstance(noted, str) else getattr(noted, "__name__", "")
        if text.rpartition(".")[2].split(" ")[0] != Context.__name__:
            second = []
    return passed[:1] + second


def _checked_name(function: Callable[..., Any], name: str | None, place: str) -> str:
    said = name if name is not None else f"{function.__module__}.{function.__qualname__}"
    if not isinstance(said, str) or not _NAME.fullmatch(said):
        raise BadHandler(
            f"{place}: {said!r} is not a handler's name: up to {NAME_PART_CHARS_MAX} of "
            "A-Z a-z 0-9 _ . - not beginning with . or -",
            'give it one: @handler("billing.invoice")',
        )
    if said == _RESERVED:
        raise BadHandler(
            f"{place}: the name {said!r} is that of jobs without a handler",
            'give it another: @handler("billing.invoice")',
        )
    return said


def _checked_length(what: str, said: Length | None, place: str) -> int:
    if said is None:
        return 0
    if said == "none" and what == "timeout":
        return NO_TIMEOUT_MS
    try:
        ms = length_ms(said)
    except (ValueError, TypeError) as error:
        raise BadHandler(f"{place}: {what}: {error}") from error
    if ms == 0:
        raise BadHandler(f"{place}: {what} of nothing", "leave it out for no bound")
    return ms


Reader: TypeAlias = Callable[[bytes], Any]


class UnknownType(ValueError):
    """Nothing can be read from JSON into this type."""


def reader(declared: Any) -> Reader:
    """Return what reads a payload into `declared`: a Struct, dataclass, dict, str, None, Any ...

    The reader raises BadPayload, with the field named, for what does not fit.

    Raises:
        UnknownType: no payload can become one of these.
    """
    if declared is bytes:
        return bytes
    try:
        if isinstance(msgspec.inspect.type_info(declared), msgspec.inspect.CustomType):
            raise UnknownType(f"{_name(declared)} is no type that JSON can be read into")
        decode = msgspec.json.Decoder(declared, strict=True).decode
    except (TypeError, NameError) as error:
        raise UnknownType(f"{_name(declared)} is no type to read JSON into: {error}") from error

    def read(payload: bytes) -> Any:
        try:
            return decode(payload or b"null")
        except msgspec.ValidationError as error:
            what = f"payload does not fit {_name(declared)}" if payload else "there is no payload"
            raise BadPayload(f"{what}: {_lowered(str(error))}") from error
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            said = str(error).removeprefix("JSON is malformed: ")
            raise BadPayload(f"payload is not JSON: {_lowered(said)}") from error

    return read


def dump(payload: object) -> bytes:
    """Return a payload's bytes as a job has them: bytes as they are, all else as JSON.

    Raises:
        TypeError: it has something that JSON has not.
    """
    return payload if isinstance(payload, bytes) else msgspec.json.encode(payload)


def _name(declared: Any) -> str:
    if declared is None or isinstance(declared, types.GenericAlias | types.UnionType):
        return str(declared)
    return getattr(declared, "__name__", str(declared))


def _lowered(text: str) -> str:
    return text[:1].lower() + text[1:]


_APP: Final = re.compile(r"(?P<module>[^\W\d]\w*(\.[^\W\d]\w*)*)(:(?P<registry>[^\W\d]\w*))?")
_EXAMPLE: Final = '@handler("billing.invoice")'


def load(app: str) -> Registry:
    """Import `module` or `module:registry` and return the checked handlers that it registers.

    Raises:
        BadApp: it cannot be imported, or registers no handler.
        BadHandler: one of its functions cannot be a handler.
    """
    match = _APP.fullmatch(app)
    if match is None or app.endswith(".py"):
        raise BadApp(f"{app!r} is no module like app.tasks", "leave out the path and the .py")
    module = _imported(match["module"])
    registry = getattr(module, match["registry"], None) if match["registry"] else REGISTRY
    if not isinstance(registry, Registry):
        raise BadApp(f"{app}: {match['registry']} is no Registry of that module")
    if not len(registry):
        raise BadApp(f"{app} registers no handler", f"put {_EXAMPLE} above a function of it")
    registry.check()
    return registry


def _imported(name: str) -> object:
    try:
        return importlib.import_module(name)
    except LauncherError:
        raise
    except (Exception, SystemExit) as error:
        missing = getattr(error, "name", None) if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and f"{name}.".startswith(f"{missing}."):
            raise BadApp(
                f"there is no module {name}: {error}",
                "start the worker where the app can be imported, or install it there",
            ) from error
        trace = traceback.extract_tb(error.__traceback__)
        frames = [one for one in trace if "importlib" not in one[0]]
        place = f"{frames[-1].filename}:{frames[-1].lineno}: " if frames else ""
        problem = "".join(traceback.format_exception_only(error)).strip()
        more = f"`python -c 'import {name}'` shows more"
        raise BadApp(f"{place}{name} cannot be imported: {problem}", more) from error
