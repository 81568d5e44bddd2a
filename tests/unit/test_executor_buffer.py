"""The order in which what waits for a worker is served: nothing is lost, nothing served twice."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from launcher.executor.attempt import Attempt
from launcher.executor.buffer import PRIORITIES, Buffer
from launcher.work import WorkSpec
from tests.unit.rows_rig import batch_of

ALL = ("a", "b", "c")


BATCH = batch_of("default/a@2026-11-20T15:00:00Z#1")


def waiting(name: str, handler: str = "a", priority: int = 5, not_after_ms: int = 1_000) -> Attempt:
    spec = WorkSpec((), handler=handler, payload=b"x" * 10, priority=priority)
    return Attempt(BATCH, 0, 9, 0, name, spec, not_after_ms)


def filled(*some: Attempt) -> Buffer:
    buffer = Buffer()
    for one in some:
        buffer.put(one)
    return buffer


def taken(buffer: Buffer, count: int = 100, handlers: tuple[str, ...] = ALL) -> list[str]:
    return [one.name for one in buffer.take(count, handlers)]


def test_the_best_priority_goes_first_then_the_oldest() -> None:
    buffer = filled(waiting("late", priority=9), waiting("1"), waiting("2"))
    buffer.put(waiting("first", priority=0))
    assert taken(buffer) == ["first", "1", "2", "late"]
    assert len(buffer) == 0


def test_handlers_of_one_priority_take_turns() -> None:
    flood = [waiting(f"a{n}") for n in range(5)]
    buffer = filled(*flood, waiting("b0", "b"), waiting("b1", "b"), waiting("c0", "c"))
    assert taken(buffer) == ["a0", "b0", "c0", "a1", "b1", "a2", "a3", "a4"]


def test_the_turns_go_on_from_one_call_to_the_next() -> None:
    buffer = filled(waiting("a0"), waiting("a1"), waiting("b0", "b"), waiting("b1", "b"))
    assert [taken(buffer, 1) for _ in range(4)] == [["a0"], ["b0"], ["a1"], ["b1"]]


def test_what_a_worker_does_not_serve_stays_and_is_in_nobodys_way() -> None:
    buffer = filled(waiting("a0", priority=0), waiting("b0", "b"), waiting("b1", "b"))
    assert taken(buffer, 2, ("b",)) == ["b0", "b1"]
    assert taken(buffer, 2, ("b",)) == []
    assert taken(buffer) == ["a0"]


def test_what_comes_back_goes_before_all_that_waits_in_the_order_it_had() -> None:
    buffer = filled(*(waiting(str(n)) for n in range(5)))
    some = buffer.take(3, ALL)
    buffer.put(waiting("5"))
    buffer.put_back(some)
    assert taken(buffer) == ["0", "1", "2", "3", "4", "5"]


def test_what_comes_back_keeps_its_priority() -> None:
    buffer = filled(waiting("low", priority=9), waiting("high", priority=0))
    some = buffer.take(2, ALL)
    buffer.put(waiting("middle", priority=5))
    buffer.put_back(some)
    assert taken(buffer) == ["high", "middle", "low"]


def test_what_is_removed_is_served_to_nobody() -> None:
    some = [waiting("0"), waiting("1"), waiting("2", "b")]
    buffer = filled(*some)
    assert buffer.remove(some[1])
    assert not buffer.remove(some[1])
    assert not buffer.remove(waiting("0"))  # another one of that name
    assert buffer.remove(some[2])
    assert taken(buffer) == ["0"]


def test_what_should_have_begun_is_late_one_moment_after_its_last() -> None:
    buffer = filled(waiting("0", not_after_ms=100), waiting("1", not_after_ms=50), waiting("2"))
    assert buffer.late(50) == []
    assert [one.name for one in buffer.late(51)] == ["1"]
    assert [one.name for one in buffer.late(101)] == ["0"]
    assert buffer.late(1_000) == []
    assert taken(buffer) == ["2"]


def test_late_ones_are_found_among_those_that_came_back() -> None:
    buffer = filled(waiting("0", not_after_ms=100))
    some = buffer.take(1, ALL)
    assert buffer.late(500) == []
    buffer.put_back(some)
    assert [one.name for one in buffer.late(500)] == ["0"]


def test_what_the_leader_knows_as_started_is_never_late() -> None:
    buffer = Buffer()
    one = waiting("0", not_after_ms=100)
    one.was_announced = True
    buffer.put_back([one])
    assert buffer.late(10_000) == []
    assert taken(buffer) == ["0"]


def test_clearing_returns_everything() -> None:
    buffer = filled(waiting("0", priority=9), waiting("1", "b"), waiting("2"))
    assert sorted(one.name for one in buffer.clear()) == ["0", "1", "2"]
    assert (len(buffer), buffer.payload_bytes, taken(buffer)) == (0, 0, [])


def test_payloads_are_counted() -> None:
    buffer = filled(waiting("0"), waiting("1"), waiting("2"))
    assert buffer.payload_bytes == 30
    some = buffer.take(2, ALL)
    assert buffer.payload_bytes == 10
    buffer.put_back(some)
    buffer.remove(some[1])
    assert buffer.payload_bytes == 20


steps = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.sampled_from(ALL), st.integers(0, PRIORITIES - 1)),
        st.tuples(st.just("take"), st.integers(1, 4), st.sets(st.sampled_from(ALL))),
        st.tuples(st.just("back"), st.integers(0, 4), st.none()),
        st.tuples(st.just("remove"), st.integers(0, 30), st.none()),
        st.tuples(st.just("late"), st.integers(0, 30), st.none()),
    ),
    max_size=40,
)


@given(steps)
def test_nothing_is_lost_or_served_twice_and_no_worse_priority_goes_first(
    drawn: list[tuple[str, object, object]],
) -> None:
    buffer, inside, outside = Buffer(), dict[str, Attempt](), list[Attempt]()
    for number, (verb, one, two) in enumerate(drawn):
        if verb == "put":
            fresh = waiting(str(number), str(one), int(str(two)), not_after_ms=number)
            buffer.put(fresh)
            inside[fresh.name] = fresh
        elif verb == "take":
            handlers = set(two) if isinstance(two, set) else set()
            fit = [w.spec.priority for w in inside.values() if w.spec.handler in handlers]
            got = buffer.take(int(str(one)), handlers)
            assert [w.spec.priority for w in got] == sorted(fit)[: int(str(one))]
            outside += [inside.pop(w.name) for w in got]
        elif verb == "back":
            some, outside = outside[: int(str(one))], outside[int(str(one)) :]
            buffer.put_back(some)
            inside.update((w.name, w) for w in some)
        elif verb == "remove":
            if (gone := inside.pop(str(one), None)) is not None:
                assert buffer.remove(gone)
                assert not buffer.remove(gone)
        else:
            late = {w.name for w in buffer.late(int(str(one)))}
            assert late == {n for n, w in inside.items() if int(str(one)) > w.not_after_ms}
            inside = {n: w for n, w in inside.items() if n not in late}
        assert len(buffer) == len(inside)
        assert buffer.payload_bytes == 10 * len(inside)
    assert sorted(taken(buffer)) == sorted(inside)
