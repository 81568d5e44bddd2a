"""Which functions may be handlers, under which names, and what is said of the others."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from launcher.worker.context import Context
from launcher.worker.errors import BadHandler
from launcher.worker.registry import HANDLERS_MAX, REGISTRY, Registry, describe, handler
from launcher.worker.wire import Served

if TYPE_CHECKING:
    from decimal import Decimal as Unknown


class Invoice(msgspec.Struct):
    cents: int


@pytest.fixture
def registry() -> Registry:
    return Registry()


@pytest.fixture
def everywhere() -> Iterator[Registry]:
    """The program's registry, as it was afterwards."""
    before = dict(REGISTRY._handlers)
    REGISTRY._handlers.clear()
    yield REGISTRY
    REGISTRY._handlers.clear()
    REGISTRY._handlers.update(before)


def plain(payload: Invoice) -> None: ...


def test_a_function_is_a_handler_under_its_module_and_name(everywhere: Registry) -> None:
    assert handler(plain) is plain
    (added,) = everywhere
    assert added.name == f"{__name__}.plain"
    assert added.served == Served(f"{__name__}.plain")
    assert everywhere.find(plain) is added
    assert not added.is_async


def test_what_its_author_says_of_it_is_kept(everywhere: Registry) -> None:
    handler("shop.invoice", timeout="5m", heartbeat=30)(plain)
    assert next(iter(everywhere)).served == Served("shop.invoice", 300_000, 30_000)
    handler(name="shop.other")(plain)
    assert everywhere.get("shop.other") is not None


def test_async_functions_are_handlers(registry: Registry) -> None:
    @registry.handler("a")
    async def of_async(payload: Invoice) -> None: ...

    added = registry.get("a")
    assert added is not None
    assert added.is_async


def test_two_functions_of_one_name_are_told_with_both_places(registry: Registry) -> None:
    registry.handler("a")(plain)
    with pytest.raises(BadHandler, match=r"test_worker_registry.py:\d+: .* already at ") as told:

        @registry.handler("a")
        def other() -> None: ...

    assert str(told.value).count("test_worker_registry.py:") == 2
    assert "another name" in told.value.hint


def test_a_module_that_is_read_again_replaces_its_handlers(registry: Registry) -> None:
    for _ in range(2):

        @registry.handler("a")
        def again() -> None: ...

    assert len(registry) == 1


@pytest.mark.parametrize("name", ["", "a b", "a/b", "-a", ".a", "ä", "a" * 101, "a\n", "command"])
def test_a_name_that_jobs_could_not_say_is_refused(registry: Registry, name: str) -> None:
    with pytest.raises(BadHandler, match=r"test_worker_registry.py:\d+: ") as told:
        registry.handler(name)(plain)
    assert "@handler(" in told.value.hint


@pytest.mark.parametrize("name", ["a", "a.b-c_d", "9", "a" * 100])
def test_a_name_may_have_dots_and_dashes(registry: Registry, name: str) -> None:
    registry.handler(name)(plain)
    assert registry.get(name) is not None


def test_a_function_in_a_function_needs_a_name(registry: Registry) -> None:
    def inner() -> None: ...

    with pytest.raises(BadHandler, match="<locals>"):
        registry.handler()(inner)


def no_parameter() -> None: ...
def untyped(payload): ...  # type: ignore[no-untyped-def]
def with_context(payload: Invoice, context: Context) -> None: ...
def only_context(ctx: Context) -> None: ...
def own_default(payload: Invoice, tries: int = 3) -> None: ...
def optional_context(payload: Invoice, context: Context | None = None) -> None: ...
def by_keyword(payload: Invoice, *, tries: int = 3) -> None: ...
def anything(*args: Any, **more: Any) -> None: ...


@pytest.mark.parametrize(
    ("function", "takes_payload", "takes_context"),
    [
        (no_parameter, False, False),
        (plain, True, False),
        (untyped, True, False),
        (with_context, True, True),
        (only_context, False, True),
        (own_default, True, False),
        (optional_context, True, True),
        (by_keyword, True, False),
        (anything, False, False),
    ],
)
def test_what_a_function_asks_for_it_gets(
    function: Callable[..., Any], takes_payload: bool, takes_context: bool
) -> None:
    call = describe(function, "a").resolve()
    assert (call.read is not None, call.takes_context) == (takes_payload, takes_context)


def test_a_wrapped_function_is_read_through_its_wrapper() -> None:
    @functools.wraps(with_context)
    def wrapper(*args: Any) -> Any:
        return with_context(*args)

    one = describe(wrapper, "a")
    assert one.resolve().takes_context
    assert one.place == describe(with_context, "b").place


def three(payload: Invoice, context: Context, more: int) -> None: ...
def needs_keyword(payload: Invoice, *, tries: int) -> None: ...
def yields(payload: Invoice) -> Iterator[int]:
    yield 1


class Callee:
    def __call__(self, payload: Invoice) -> None: ...
    def later(self, payload: Invoice) -> None: ...


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (three, "nobody would give three its parameter more"),
        (needs_keyword, "parameter tries"),
        (yields, "is a generator"),
        (Callee.later, "Callee.later is a method, and nobody would give it its self"),
        (Callee(), "is no function"),
        (Invoice, "is no function"),
        (functools.partial(plain), "is no function"),
        (len, "is no function"),
    ],
)
def test_what_cannot_be_called_as_a_handler_is_refused(
    function: Callable[..., Any], message: str
) -> None:
    with pytest.raises(BadHandler, match=message) as told:
        describe(function, "a")
    assert told.value.hint


@pytest.mark.parametrize("more", [{"timeout": "soon"}, {"timeout": -1}, {"heartbeat": 0}])
def test_a_bound_that_is_none_is_refused(registry: Registry, more: dict[str, Any]) -> None:
    with pytest.raises(BadHandler, match=r"test_worker_registry.py:\d+: (timeout|heartbeat)"):
        registry.handler("a", **more)(plain)


def test_a_collection_is_said_by_jobs_and_not_by_their_handler() -> None:
    with pytest.raises(TypeError, match="collection"):
        handler("a", collection="nightly")  # type: ignore[call-overload]


def unresolved(payload: Unknown) -> None: ...
def unreadable(payload: Callee) -> None: ...


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (unresolved, "annotations of a cannot be read: name 'Unknown' is not defined"),
        (unreadable, "parameter payload of a: Callee is no type"),
    ],
)
def test_annotations_are_checked_before_any_work_comes(
    registry: Registry, function: Callable[..., Any], message: str
) -> None:
    registry.handler("a")(function)
    with pytest.raises(BadHandler, match=message) as told:
        registry.check()
    assert told.value.hint


def test_a_registry_is_bounded(registry: Registry) -> None:
    for n in range(HANDLERS_MAX):
        registry.handler(f"a{n}")(plain)
    with pytest.raises(BadHandler, match=f"more than {HANDLERS_MAX}"):
        registry.handler("one.more")(plain)
