"""Tasks that leave State for the disk and come back: what State does, without any disk."""

from __future__ import annotations

from itertools import count
from typing import Any

import msgspec
import pytest

from cron.limits import TASK_PAYLOADS_BYTES_MAX
from cron.state import commands as c
from cron.state import spilled, spilling
from cron.state import tasks as t
from cron.state.archive import Sealed, Stream
from cron.state.image import decode_state
from cron.state.imaging import Imaging, encode_state
from cron.state.outcome import Verdict
from cron.state.spilled import SpilledRows, decode_tasks
from launcher.protocol.names import TASK_MARK
from tests.unit.tasks_rig import QUEUE, TasksRig, name, task

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


class SpillRig(TasksRig):
    """A rig that keeps the segments of tasks that its entries make."""

    def __init__(self) -> None:
        self.files: dict[int, list[t.TaskRecord]] = {}
        super().__init__()

    def append(self, *commands: c.Command, **fields: Any) -> Any:
        outcome = super().append(*commands, **fields)
        for sealed in outcome.sealed:
            if sealed.record.stream == Stream.TASKS:
                self.files[sealed.record.number] = self.read(sealed)
        return outcome

    def read(self, sealed: Sealed) -> list[t.TaskRecord]:
        """The tasks of a segment, as its content has them."""
        assert isinstance(sealed.tail, SpilledRows)
        content = sealed.tail.whole()
        assert SpilledRows.of(content).whole() == content
        return decode_tasks(content)

    def spill(self, *keys: str) -> list[Verdict]:
        return self.items(t.SpillTasks(tuple(map(self.number, keys))))

    def item(self, key: str, queue: str = QUEUE) -> t.LoadItem:
        """What a leader reads of a task on disk."""
        place = self.state.spilled.find(name(key, queue))
        assert place is not None
        return t.LoadItem(place.slot, place.row, self.files[place.slot][place.row])

    def load(self, *items: t.LoadItem, read: tuple[t.ReadTo, ...] = ()) -> list[Verdict]:
        return self.items(t.LoadTasks(items, read))


@pytest.fixture
def rig() -> SpillRig:
    rig = SpillRig()
    rig.submit(task("a", 3 * DAY_MS), task("b", DAY_MS), task("c", 2 * DAY_MS), task("soon", 5_000))
    return rig


def test_spilled_tasks_leave_state_and_stay_counted(rig: SpillRig) -> None:
    before = rig.state.tasks.payload_bytes
    assert rig.spill("a", "b", "c") == [Verdict.ACCEPTED] * 3
    assert list(rig.state.tasks) == [name("soon")]
    assert rig.state.tasks.payload_bytes == before // 4
    queue = rig.state.queues[QUEUE]
    assert (queue.waiting, queue.spilled) == (4, 3)
    assert [one.key for one in rig.files[1]] == ["b", "c", "a"]  # by their times
    (segment,) = rig.state.history.spilled.values()
    assert (segment.rows, segment.left, segment.next_ms) == (3, 3, rig.files[1][0].at_ms)


def test_a_task_comes_back_once_with_all_that_it_had(rig: SpillRig) -> None:
    was = rig.task("a")
    rig.spill("a", "b")
    item = rig.item("a")
    assert rig.load(item) == [Verdict.ACCEPTED]
    assert rig.load(item) == [Verdict.ALREADY]
    found = rig.task("a")
    assert msgspec.structs.replace(found, number=was.number) == was
    assert found.number == rig.state.task_numbers
    assert rig.state.queues[QUEUE].spilled == 1


def test_a_task_that_came_back_and_ended_does_not_come_back_again(rig: SpillRig) -> None:
    rig.spill("a")
    item = rig.item("a")
    rig.load(item)
    rig.cancel_tasks("a")
    assert rig.load(item) == [Verdict.ALREADY]
    rig.at_ms += 2 * DAY_MS
    rig.forget(rig.number("a"))
    assert rig.load(item) == [Verdict.UNKNOWN_TASK]


def test_a_row_of_another_segment_brings_nothing_back(rig: SpillRig) -> None:
    # A second leader may have read a segment from which the task has moved to another.
    rig.spill("a", "b")
    old = rig.item("a")
    rig.load(old)
    rig.spill("a", "c")
    assert rig.load(old) == [Verdict.UNKNOWN_TASK]
    assert rig.load(rig.item("a")) == [Verdict.ACCEPTED]


@pytest.mark.parametrize(
    "command",
    [
        t.CancelTasks((name("a"),)),
        t.RunTasks((name("a"),)),
        t.RescheduleTasks((t.RescheduleItem(name("a"), at_ms=1),)),
        t.SubmitTasks((task("a", 3 * DAY_MS),)),
        t.SubmitTasks((task("a", 3 * DAY_MS, payload=b"other"),)),
    ],
)
def test_state_says_of_a_task_on_disk_that_it_is_there(rig: SpillRig, command: c.Command) -> None:
    rig.spill("a")
    assert rig.items(command) == [Verdict.ON_DISK]
    assert rig.state.queues[QUEUE].spilled == 1


def test_only_tasks_that_wait_are_spilled(rig: SpillRig) -> None:
    rig.submit(task("over", DAY_MS), task("ready"))
    rig.cancel_tasks("over")
    rig.ready("ready")
    number = rig.number("a")
    verdicts = rig.items(
        t.SpillTasks((number, number, rig.number("over"), rig.number("ready"), 999))
    )
    unknown, wrong = Verdict.UNKNOWN_TASK, Verdict.WRONG_STATE
    assert verdicts == [Verdict.ACCEPTED, unknown, wrong, wrong, unknown]
    assert len(rig.files[1]) == 1


def test_a_task_whose_hash_is_taken_stays_in_memory(
    rig: SpillRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (spilled, spilling):
        monkeypatch.setattr(module, "name_hash", lambda _name: 7)
    assert rig.spill("a", "b") == [Verdict.ACCEPTED, Verdict.ALREADY]
    assert name("b") in rig.state.tasks
    assert rig.items(t.SubmitTasks((task("new"),))) == [Verdict.ON_DISK]  # so it must come back
    assert rig.load(rig.item("new")) == [Verdict.ACCEPTED]
    assert name("a") in rig.state.tasks
    assert rig.submit(task("new")) == [Verdict.ACCEPTED]


def test_what_was_read_is_noted_and_an_emptied_segment_says_since_when(rig: SpillRig) -> None:
    rig.spill("a", "b", "c")
    read = t.ReadTo(1, 1, 2, rig.item("a").task.at_ms)
    rig.load(rig.item("b"), rig.item("c"), read=(read,))
    (segment,) = rig.state.history.spilled.values()
    assert (segment.left, segment.next_row, segment.emptied_index) == (1, 2, 0)
    rig.load(rig.item("a"), read=(t.ReadTo(1, 1, 3, 0),))
    assert (segment.left, segment.emptied_index) == (0, rig.state.index)


def test_rows_that_were_passed_over_are_looked_for_again(rig: SpillRig) -> None:
    rig.spill("a", "b")
    rig.load(read=(t.ReadTo(1, 1, 2, 0),))
    (segment,) = rig.state.history.spilled.values()
    assert (segment.left, segment.next_row, segment.next_ms) == (2, 0, 0)


def test_what_did_not_fit_is_not_noted_as_read(
    rig: SpillRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.spill("a")
    item = rig.item("a")
    rig.state.tasks.payload_bytes += 2 * TASK_PAYLOADS_BYTES_MAX
    monkeypatch.setattr(rig, "check", lambda: None)
    assert rig.load(item, read=(t.ReadTo(1, 1, 1, 0),)) == [Verdict.TOO_MANY]
    (segment,) = rig.state.history.spilled.values()
    assert (segment.left, segment.next_row) == (1, 0)


def test_a_queue_stays_while_tasks_of_it_are_on_disk(rig: SpillRig) -> None:
    rig.spill("a", "b", "c")
    rig.cancel_tasks("soon")
    rig.at_ms += 2 * DAY_MS
    rig.forget(rig.number("soon"))
    assert QUEUE in rig.state.queues
    assert rig.load(rig.item("a")) == [Verdict.ACCEPTED]


def test_an_image_has_the_tasks_on_disk_as_they_were_when_it_began(rig: SpillRig) -> None:
    rig.submit(*(task(f"k{n}", DAY_MS + n) for n in range(300)))
    rig.spill(*(f"k{n}" for n in range(200)))
    before = encode_state(rig.state)
    imaging = Imaging.begin(rig.state)
    pieces = imaging.pieces()
    image = [next(pieces)]
    rig.load(*(rig.item(f"k{n}") for n in range(150)))
    rig.spill(*(f"k{n}" for n in (*range(100), *range(200, 300))))
    image += pieces
    assert b"".join(image) == before
    again = decode_state([before])
    assert again.spilled.count == 200
    assert again.spilled.find(name("k7")) is not None


def test_a_segment_that_is_lost_takes_its_tasks_with_it(rig: SpillRig) -> None:
    rig.spill("a", "b")
    rig.spill("c")
    assert rig.state.spilled.drop_segment(1).queues == {QUEUE: 2}
    assert rig.state.spilled.count == 1
    assert rig.state.spilled.find(name("a")) is None
    assert rig.state.spilled.find(name("c")) is not None
    assert spilling.unknown(rig.state, name("a")) is Verdict.UNKNOWN_TASK


def test_tasks_of_a_group_stay_counted_and_tied_tasks_stay_in_memory(rig: SpillRig) -> None:
    rig.submit(
        task("one", DAY_MS, group="default/g"),
        task("two", DAY_MS, group="default/g"),
        task("first", DAY_MS),
        task("then", DAY_MS, after=(name("first"),)),
    )
    wrong = Verdict.WRONG_STATE
    assert rig.spill("one", "two", "first", "then") == [*[Verdict.ACCEPTED] * 2, wrong, wrong]
    assert rig.state.groups["default/g"].waiting == 2
    follower = task("last", DAY_MS, after=(name("one"),))
    assert rig.submit(follower) == [Verdict.ON_DISK]  # so whoever asks brings it back first
    rig.load(rig.item("one"))
    assert rig.submit(follower) == [Verdict.ACCEPTED]
    assert rig.spill("one") == [wrong]
    rig.cancel_tasks("one")
    assert rig.state.groups["default/g"].waiting == 1


def test_ten_thousand_names_are_found_again(rig: SpillRig) -> None:
    numbers, index = count(), spilled.SpilledTasks({})
    for number in range(1, 3):
        names = [f"{QUEUE}{TASK_MARK}{next(numbers)}" for _ in range(spilled.ROWS_MAX)]
        hashes = map(spilled.name_hash, names)
        index.add(spilled.SpilledSegment(1, number, len(names), len(names), 0, {}, {}), hashes)
        for row in (0, 17, len(names) - 1):
            assert index.find(names[row]) == (number, row)
    for shard in index.shards.values():
        assert list(shard.hashes) == sorted(shard.hashes)
    assert index.find(f"{QUEUE}{TASK_MARK}none") is None
