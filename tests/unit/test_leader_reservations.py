"""A launch that needs much, on executors where small ones follow each other without a gap."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec
import pytest

from cron.job import Job
from cron.scheduler.fair_queue import PATIENCE_MS
from cron.scheduler.places import Capacity, Place
from cron.scheduler.plan import View, plan
from cron.scheduler.queues import Queues
from tests.places import used
from tests.unit.queues_rig import SECONDS, QueuesRig
from tests.unit.state_rig import job

PATIENCE_S = PATIENCE_MS // 1000
SMALL_S = 5
"""How long the small ones run."""


def needing(cpu_milli: int = 0, **fields: object) -> Job:
    work = msgspec.structs.replace(job().work, cpu_milli=cpu_milli)
    usual = {"schedule": SECONDS, "deadline_s": 10_000, "work": work}
    return job(**usual | fields)  # type: ignore[arg-type]


def small(cpu_milli: int = 0) -> Job:
    return msgspec.structs.replace(needing(cpu_milli), name="default/small")


class Busy(QueuesRig):
    """Two executors with three slots and three CPUs each. Job 1 needs much, and its first launch is
    due at second 1; job 2 needs little, has two launches a second, and each runs for 5 s."""

    def __init__(self, much: Job, little: Job | None = None) -> None:
        super().__init__(much, little or small())
        self.rig.join("e2", "l2")
        self._ends: list[tuple[int, int]] = []
        self.place()

    def place(self) -> None:
        for number in (1, 2):
            labels = {"role": "web"}
            place = Place.of(number, f"e{number}", "h", labels, (Capacity(3),), 3_000)
            self.queues.places.put(place)

    def lead(self) -> None:
        super().lead()
        self.place()

    def seconds(self, begin: int, end: int) -> Iterator[int]:
        """Go through time in halves of a second; yield the second after each turn in which nothing
        but small ones began, return when another did."""
        for half in range(2 * begin, 2 * end):
            self.to(half / 2)
            self._end_some(half)
            self.account(half + 1, number=2)
            words = self.turn()
            self._ends += [
                (half + 2 * SMALL_S, int(word.split("@")[1].partition("#")[0]))
                for word in words
                if word.startswith("begin 2@")
            ]
            assert self.agrees_but_for_what_is_held()
            if any(word.startswith("begin 1@") for word in words):
                return
            yield half // 2

    def _end_some(self, half: int) -> None:
        over = [one for one in self._ends if one[0] <= half]
        self._ends = [one for one in self._ends if one[0] > half]
        for _, second in over:
            self.end(second, number=2)

    def agrees_but_for_what_is_held(self) -> bool:
        mark = self.queues.placement.reservation
        held = len(mark.held) if mark else 0
        taken = sum(sum(used(self.queues.places, one).values()) for one in (1, 2))
        parts = sum(len(list(row.starts())) for row in self.state.active.values())
        return taken == parts + held


MUCH = {
    "parts": needing(parts=2),
    "each": needing(each="role=web"),
    "cpu": needing(3_000),
    "both": needing(2_000, parts=2),
}


def fill(rig: Busy) -> None:
    """Let the small ones run for a while, then one that needs much be due as well."""
    assert list(rig.seconds(0, 20))[-1] == 19
    rig.account(20)


@pytest.mark.parametrize("which", MUCH)
def test_it_begins_soon_after_its_patience_is_over(which: str) -> None:
    rig = Busy(MUCH[which], small(1_000 if which in ("cpu", "both") else 0))
    fill(rig)
    seconds = list(rig.seconds(20, 200))
    assert PATIENCE_S <= seconds[-1] - 20 <= PATIENCE_S + 2 * SMALL_S


@pytest.mark.parametrize("which", MUCH)
def test_without_that_it_never_does(which: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the test above would show nothing."""
    rig = Busy(MUCH[which], small(1_000 if which in ("cpu", "both") else 0))
    monkeypatch.setattr("cron.scheduler.placement.Placement._reserve", lambda *_: None)
    fill(rig)
    end_s = 20 + PATIENCE_S + 6 * SMALL_S
    assert list(rig.seconds(20, end_s))[-1] == end_s - 1


def test_the_others_lose_no_more_than_it_takes() -> None:
    """Slots are held one by one, as they come free; all others run on."""
    rig = Busy(MUCH["parts"])
    fill(rig)
    running = [len(rig.state.active) for _ in rig.seconds(20, 200)]
    assert min(running) >= 6 - 2


def test_it_is_told_where_room_is_kept_for_it_and_the_others_why_they_wait() -> None:
    rig = Busy(MUCH["cpu"], small(1_000))
    fill(rig)
    told: set[str] = set()
    others: set[str] = set()
    for _ in rig.seconds(20, 200):
        told |= {rig.queues.missing(key) for key in rig.state.due if key[0] == 1}
        others |= {rig.queues.missing(key) for key in rig.state.due if key[0] == 2}
    kept = r"all .* are full: .*; what comes free on e\d is kept for it \(0 of 1 so far\)"
    assert any(re.fullmatch(kept, text) for text in told), told
    assert any("1 kept free for a launch that needs much" in text for text in others), others


def test_slots_reserved_for_others_are_not_taken_for_it() -> None:
    rig = Busy(MUCH["parts"])
    rig.limit(("", "command", 2), reserved=6)
    rig.account(1)
    assert list(rig.seconds(1, 100))[-1] == 99
    assert not rig.state.active


def test_a_reservation_beside_what_is_held_does_not_stop_it() -> None:
    """What is held for it counts as free when it is asked whether enough is left."""
    rig = Busy(MUCH["parts"])
    rig.limit(("", "command", 2), reserved=1)
    fill(rig)
    seconds = list(rig.seconds(20, 200))
    assert seconds[-1] - 20 <= PATIENCE_S + 2 * SMALL_S


@pytest.mark.parametrize("which", ["parts", "cpu"])
def test_what_is_reserved_stays_free_while_room_is_kept(which: str) -> None:
    """A queue with reserved slots waited for minutes behind a launch for which they were held."""
    rig = Busy(MUCH[which], small(1_000 if which == "cpu" else 0))
    rig.limit(("", "command", 2), reserved=2)
    fill(rig)
    least = min(
        sum(
            view.by_pool["command"].slots - view.by_pool["command"].used
            for view in rig.queues.places.views.values()
            if not view.is_cordoned
        )
        for _ in rig.seconds(20, 120)
    )
    assert least == 2


def test_a_new_leader_begins_to_wait_anew_and_holds_nothing() -> None:
    rig = Busy(MUCH["parts"])
    fill(rig)
    for second in rig.seconds(20, 200):
        if second == 20 + PATIENCE_S - 1:
            break
    rig.lead()
    assert rig.agrees_but_for_what_is_held()
    seconds = list(rig.seconds(50, 200))
    assert PATIENCE_S <= seconds[-1] - 50 <= PATIENCE_S + 2 * SMALL_S


def test_its_limit_is_not_passed_and_nothing_is_kept_for_it_meanwhile() -> None:
    rig = Busy(needing(3_000, concurrency=1), small(1_000))
    fill(rig)
    *_, begun = rig.seconds(20, 200)
    rig.account(21)
    marks = [rig.queues.placement.reservation for _ in rig.seconds(begun + 2, 200)]
    assert marks == [None] * len(marks)
    assert len(marks) > 200


def test_plain_launches_make_no_mark_however_long_they_wait() -> None:
    rig = Busy(needing())
    rig.account(1)
    state = rig.state
    queues = Queues(state)  # with nobody who could run anything
    for second in range(2, 40):
        rig.to(second)
        assert plan(View(state, [], queues=queues), rig.now_ms) == []
        assert queues.placement.reservation is None
    assert queues.fair.starving(rig.now_ms)
