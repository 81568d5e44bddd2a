"""The window of outputs: what is next, where the mark is, and what a gap in history does to it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cron.history.store import RowStore
from cron.leader.applier import StateApplier
from cron.storage import output_window
from cron.storage.output_window import GAP_MS, Window
from launcher.names import AttemptName, LaunchName
from tests.unit.backup_rig import Clocks
from tests.unit.history_rig import BACKUP, HandShelf
from tests.unit.test_history_outputs import told


class Rig:
    """A row_store that is fed by hand, and a State that has come as far."""

    def __init__(self, folder: Path) -> None:
        self.clock = Clocks()
        self.shelf = HandShelf(folder)
        self.row_store = RowStore(self.shelf)
        self.applier = StateApplier(self.row_store)
        self.window = Window(self.applier, self.row_store, self.clock)

    def offer(self, *ended: tuple[int, str]) -> None:
        """Let attempts end at these log indexes, on these executors."""
        state = self.applier.state
        for index, name in ended:
            state.history.append(told(index, index * 60, executor=name))
        state.index = max([index for index, _ in ended] + [state.index])

    def seal(self, to_index: int, *, writes: bool = True) -> None:
        """Close the tails; without `writes` nobody on this replica has them."""
        sealed = self.applier.state.history.seal(1, to_index, 0)
        self.shelf.waiting += sealed if writes else ()
        self.shelf.write()

    def take(self, of_one: int = 100) -> list[int]:
        """Take all that can be taken; return the log indexes of their ends."""
        found = []
        while (one := self.window.next(self.clock.mono_ms(), of_one)) is not None:
            found.append(one.wanted.index)
        return found


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    made = Rig(tmp_path)
    yield made
    made.row_store.stop()


async def test_the_oldest_come_first_and_not_too_many_of_one_executor(rig: Rig) -> None:
    rig.offer((1, "e1"), (2, "e1"), (3, "e1"), (4, "e2"), (5, "e2"), (6, "e3"))
    await rig.window.read()
    assert rig.take(2) == [1, 2, 4, 5, 6]
    assert rig.take(3) == [3]


async def test_the_mark_waits_for_the_oldest(rig: Rig) -> None:
    rig.offer((3, "e1"), (5, "e2"), (9, "e1"))
    await rig.window.read()
    window = rig.window
    assert (window.mark, window.waiting) == (2, 3)
    first, second, third = (window.next(1, 2), window.next(1, 2), window.next(1, 2))
    assert first is not None
    assert second is not None
    assert third is not None
    window.done(second)
    assert window.mark == 2
    window.done(first)
    assert window.mark == 8
    window.put_back(third)
    assert window.mark == 8
    again = window.next(1, 2)
    assert again is third
    window.done(third)
    assert (window.mark, window.waiting) == (9, 0)


async def test_what_one_entry_ended_keeps_the_mark_before_it(rig: Rig) -> None:
    rig.offer((4, "e1"), (4, "e2"))
    await rig.window.read()
    one = rig.window.next(1, 1)
    assert one is not None
    rig.window.done(one)
    assert rig.window.mark == 3


async def test_without_any_output_the_mark_is_where_state_is(rig: Rig) -> None:
    rig.applier.state.index = 50
    await rig.window.read()
    assert (rig.window.mark, rig.window.waiting) == (50, 0)


async def test_no_more_is_held_than_there_is_room_for_and_the_rest_is_counted(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output_window, "OUTPUTS_MAX", 10)
    monkeypatch.setattr(output_window, "PAGE_ROWS", 4)
    rig.offer(*((n, "e1") for n in range(1, 31)))
    for _ in range(5):
        await rig.window.read()
    rig.clock.ms += output_window.COUNT_MS
    await rig.window.read()
    assert rig.window.waiting == 30
    held = rig.take()
    assert held == list(range(1, 11))
    assert rig.window.mark == 0


async def test_after_a_page_the_next_goes_on_behind_it(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output_window, "PAGE_ROWS", 4)
    rig.offer(*((n, "e1") for n in range(1, 31)))
    for _ in range(9):
        await rig.window.read()
    assert rig.take() == list(range(1, 31))


async def test_a_gap_that_is_being_filled_is_waited_for(rig: Rig) -> None:
    rig.offer((2, "e1"))
    rig.seal(10)
    rig.offer((20, "e1"))
    sealed = rig.applier.state.history.seal(1, 30, 0)
    rig.offer((40, "e1"))
    await rig.window.read()
    assert rig.take() == [2]
    rig.window.done(rig.window._open[1])
    assert rig.window.mark == 10
    rig.clock.ms += GAP_MS - 1
    await rig.window.read()
    assert rig.take() == []
    rig.shelf.waiting += sealed
    rig.shelf.write()
    await rig.window.read()
    assert rig.take() == [20, 40]


async def test_a_gap_that_nobody_fills_holds_up_the_rest_for_an_hour(rig: Rig) -> None:
    rig.offer((20, "e1"))
    rig.seal(30, writes=False)
    rig.offer((40, "e1"))
    await rig.window.read()
    assert rig.take() == []
    rig.clock.ms += GAP_MS
    await rig.window.read()
    assert rig.take() == [40]


@pytest.mark.parametrize("is_there", [False, True])
async def test_a_gap_of_what_is_gone_from_the_disks_is_not_waited_for(
    rig: Rig, is_there: bool
) -> None:
    rig.offer((20, "e1"))
    rig.seal(30, writes=False)
    rig.offer((40, "e1"))
    segments = rig.applier.state.history.segments
    ((key, record),) = segments.items()
    if is_there:
        segments[key] = msgspec.structs.replace(record, is_local=False)
    else:
        del segments[key]
    await rig.window.read()
    assert rig.take() == [40]


async def test_a_history_that_cannot_be_asked_is_asked_again(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.offer((3, "e1"))
    rig.seal(3)
    with monkeypatch.context() as patch:
        patch.setattr(rig.shelf, "open_rows", refuse)
        await rig.window.read()
        assert rig.window.waiting == 0
    await rig.window.read()
    assert rig.take() == [3]


def refuse(_record: object) -> None:
    raise OSError(24, "too many open files")


async def test_output_of_which_nobody_knows_the_executor_is_not_waited_for(rig: Rig) -> None:
    rig.offer((3, ""), (4, "e1"))
    await rig.window.read()
    assert rig.take() == [4]
    assert rig.window.mark == 3


async def test_names_and_times_are_those_of_the_row(rig: Rig) -> None:
    rig.offer((3, "e1"))
    await rig.window.read()
    one = rig.window.next(1, 1)
    assert one is not None
    assert one.wanted.name == AttemptName(LaunchName(BACKUP, 180, 0), 1)
    assert one.wanted.ended_at_ms == 180_900
    assert one.wanted.executor == "e1"


async def test_clearing_forgets_everything(rig: Rig) -> None:
    rig.offer((3, "e1"), (9, "e1"))
    await rig.window.read()
    rig.window.next(1, 1)
    rig.window.clear(5)
    assert (rig.window.waiting, rig.window.mark) == (0, 5)
    await rig.window.read()
    assert rig.take() == [9]


@given(st.data())
@settings(deadline=None, max_examples=60)
async def test_the_mark_never_passes_what_is_not_done(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    rig = Rig(tmp_path_factory.mktemp("window"))
    window, taken = rig.window, []
    undone: dict[int, int] = {}
    try:
        for _ in range(data.draw(st.integers(1, 25))):
            step = data.draw(st.sampled_from(["end", "end", "next", "next", "done", "back"]))
            mono_ms = rig.clock.mono_ms()
            if step == "end":
                index = rig.applier.state.index + data.draw(st.integers(1, 3))
                names = data.draw(st.lists(st.sampled_from(["e1", "e2"]), max_size=3))
                rig.offer(*((index, name) for name in names))
                await window.read()
                undone[index] = undone.get(index, 0) + len(names)
            elif step == "next" and (one := window.next(mono_ms, 2)) is not None:
                taken.append(one)
            elif step == "done" and taken:
                one = taken.pop(data.draw(st.integers(0, len(taken) - 1)))
                window.done(one)
                undone[one.wanted.index] -= 1
            elif step == "back" and taken:
                one = taken.pop(data.draw(st.integers(0, len(taken) - 1)))
                failed = data.draw(st.booleans())
                window.put_back(one, mono_ms if failed else None, "silent" if failed else "")
                rig.clock.ms += data.draw(st.sampled_from([0, 5_000]))
            left = [index for index, count in undone.items() if count]
            assert window.mark < min(left, default=1 << 62)
            assert window.waiting == sum(undone.values())
            if not left:
                assert window.mark == rig.applier.state.index
    finally:
        rig.row_store.stop()
