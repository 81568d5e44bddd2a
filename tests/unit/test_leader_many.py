"""A leader with very many executors: what one turn costs does not follow their number.

Costs are counted, not timed: how many executors are looked at.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import pytest

from cron.leader.dispatch import Dispatcher
from cron.leader.executors import FEW, LOOK_ALL_MS, Executors
from cron.leader.inbox import JOINED_PER_ENTRY_MAX, WATERMARKS_PER_TURN, Inbox
from cron.leader.leader import LeaderSettings
from cron.scheduler.queues import Queues
from cron.state import commands as c
from cron.state.codec import encode_entry
from cron.state.pool import Drain
from launcher.pool.errors import Refused
from launcher.pool.events import Joined
from launcher.pool.lease import LeaseTimes
from launcher.pool.pool import Pool
from launcher.pool.session import Session
from launcher.protocol.reports import Greeting
from launcher.protocol.work import Epoch
from tests.unit.pool_rig import WALL_MS, beat, rigged
from tests.unit.state_rig import StateRig, with_job
from tests.unit.test_leader_term import reigning

MANY = 4 * FEW
LEDGER = "0f0e0d0c-0b0a-4909-8807-060504030201"


def name_of(number: int) -> str:
    return f"h{number:05}"


def joined_of(session: Session) -> Joined:
    return Joined(*session.key, session.greeting, session.address, session.offset_ms)


def greeting(number: int) -> Greeting:
    return Greeting(
        executor=name_of(number),
        ledger=LEDGER,
        incarnation="i",
        slots=4,
        host="host",
        pid=1,
        version="0",
        wall_ms=WALL_MS,
        highest_epoch=Epoch(),
        labels={},
        known=(),
    )


class Looks:
    """How often a session was looked at, and asked for heartbeats to answer."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.counts: Counter[str] = Counter()
        gets_work: Any = Session.__dict__["gets_work"]
        patch.setattr(Session, "gets_work", property(self._counted("gets_work", gets_work.fget)))
        answer = self._counted("answer_heartbeats", Session.answer_heartbeats)
        patch.setattr(Session, "answer_heartbeats", answer)

    def _counted(self, method: str, real: Any) -> Any:
        def counted(*args: Any) -> Any:
            self.counts[method] += 1
            return real(*args)

        return counted

    def taken(self, method: str) -> int:
        return self.counts.pop(method, 0)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    return Looks(monkeypatch)


class World:
    """A pool with many executors that the State knows, on clocks that a test turns."""

    def __init__(self, number: int = MANY) -> None:
        self.rig: StateRig = with_job()
        self.mono = 1_000_000
        self.pool = Pool(
            cell="test",
            lease=LeaseTimes(),
            mono_ms=lambda: self.mono,
            wall_ms=lambda: WALL_MS,
            on_event=lambda _: None,
        )
        self.pool.open(Epoch(1, 1, "r1"))
        applier: Any = self.rig
        clock: Any = self
        self.executors = Executors(self.pool, applier, clock)
        self.queues = Queues(self.rig.state)
        self.sessions = [self.join(i) for i in range(number)]

    def mono_ms(self) -> int:
        return self.mono

    def join(self, number: int) -> Session:
        """An executor that is welcome, and has no lease yet."""
        session = self.pool.join(greeting(number), "")
        self.rig.join(name_of(number), LEDGER)
        self.pool.welcome(name_of(number))
        return session

    def beat(self, *sessions: Session, wall_ms: int = WALL_MS) -> None:
        """Let these be heard and answered."""
        for session in sessions:
            self.pool.receive(session, beat(session.last_number + 1, 0, wall_ms))
        self.pool.answer_heartbeats(self.mono)

    def placed(self) -> int:
        """How many may get work, after one more turn."""
        self.executors.place(self.queues)
        return len(self.queues.places.views)


def test_turns_look_at_nobody_of_whom_nothing_has_changed(looks: Looks) -> None:
    world = World()
    world.beat(*world.sessions)
    assert world.placed() == MANY
    looks.taken("gets_work")
    for _ in range(50):
        world.mono += 5
        world.beat(world.sessions[7])
        assert world.placed() == MANY
    assert looks.taken("gets_work") == 0
    world.mono += LOOK_ALL_MS
    assert world.placed() == MANY
    assert looks.taken("gets_work") == MANY


def test_who_comes_and_who_goes_is_noticed_in_the_next_turn(looks: Looks) -> None:
    world = World()
    world.beat(*world.sessions[1:])
    assert world.placed() == MANY - 1, "one has no lease yet"
    looks.taken("gets_work")
    world.beat(world.sessions[0])
    assert world.placed() == MANY
    newcomer = world.join(MANY)
    assert world.placed() == MANY
    world.beat(newcomer)
    assert world.placed() == MANY + 1
    world.pool.refuse(name_of(3), "go")
    assert world.placed() == MANY
    assert looks.taken("gets_work") < 10


def test_a_clock_that_goes_wrong_and_right_is_noticed_at_once(looks: Looks) -> None:
    world = World()
    world.beat(*world.sessions)
    assert world.placed() == MANY
    world.beat(world.sessions[5], wall_ms=WALL_MS + 3_600_000)
    assert world.placed() == MANY - 1
    world.beat(world.sessions[5])
    assert world.placed() == MANY


def test_answers_go_through_those_who_asked(looks: Looks) -> None:
    world = World()
    world.beat(*world.sessions)
    looks.taken("answer_heartbeats")
    world.beat(*world.sessions[:3])
    assert looks.taken("answer_heartbeats") == 3


# ---- what they all say at once, on its way into the log


def inbox_of(world: World) -> Inbox:
    return Inbox(
        world.pool,
        Dispatcher(world.pool),
        wake=lambda: None,
        beat=lambda: None,
        refused=lambda executor, ledger: None,
        mono_ms=world.mono_ms,
    )


def joins(inbox: Inbox, world: World) -> list[str]:
    commands = inbox.gather(world.rig.state, 0)
    return [one.executor for one in commands if isinstance(one, c.ExecutorJoined)]


def test_all_that_join_at_once_share_some_entries_each_of_a_bounded_size() -> None:
    world = World(0)
    inbox, count = inbox_of(world), 2 * JOINED_PER_ENTRY_MAX + 1
    for number in range(count):
        inbox.on_event(joined_of(world.pool.join(greeting(number), "")))
    entries = [joins(inbox, world) for _ in range(4)]
    assert [len(entry) for entry in entries] == [JOINED_PER_ENTRY_MAX, JOINED_PER_ENTRY_MAX, 1, 0]
    assert [name for entry in entries for name in entry] == [
        name_of(number) for number in range(count)
    ]


def test_who_was_too_impatient_to_wait_for_its_entry_is_left_out() -> None:
    world = World(0)
    inbox, count = inbox_of(world), JOINED_PER_ENTRY_MAX + 100
    sessions = [world.pool.join(greeting(number), "") for number in range(count)]
    for session in sessions:
        inbox.on_event(joined_of(session))
    for session in sessions[:100]:
        world.pool.refuse(session.key[0], "it left")
    assert joins(inbox, world) == [name_of(number) for number in range(100, count)]
    assert not inbox.joining() - {session.key for session in sessions[100:]}


def test_entries_of_executors_with_the_most_labels_fit_the_log() -> None:
    world = World(0)
    inbox = inbox_of(world)
    labels = {f"{i:064}": "\U0010ffff" * 200 for i in range(64)}
    for number in range(JOINED_PER_ENTRY_MAX):
        event = joined_of(world.pool.join(greeting(number), ""))
        about = msgspec.structs.replace(event.greeting, labels=labels)
        inbox.on_event(msgspec.structs.replace(event, greeting=about))
    sizes, left = [], JOINED_PER_ENTRY_MAX
    while left:
        commands = inbox.gather(world.rig.state, 0)
        left -= len(commands)
        sizes.append(len(encode_entry(0, Epoch(1, 1, "r1"), tuple(commands))))
    assert max(sizes) < 2 << 20
    assert len(sizes) > 10


async def test_watermarks_are_raised_for_all_some_in_each_turn() -> None:
    world = World(WATERMARKS_PER_TURN + 10)
    inbox = inbox_of(world)
    told: set[str] = set()
    for _ in range(2):
        inbox.raise_watermarks(world.rig.state)
        inbox.stale(world.rig.state, 0)
        fresh = {s.key[0] for s in world.sessions if s.outbox} - told
        told |= fresh
    assert told == {name_of(number) for number in range(WATERMARKS_PER_TURN + 10)}


# ---- the whole leader


async def test_a_thousand_that_join_at_once_are_all_welcome() -> None:
    async with reigning() as replica:
        sessions = [replica.pool.join(greeting(number), "") for number in range(1_200)]
        await replica.until(lambda: all(session.is_welcome for session in sessions))
        assert len(replica.state.executors) == 1_200


async def test_many_that_leave_at_once_are_let_go_together(looks: Looks) -> None:
    async with reigning() as replica:
        sessions = [replica.pool.join(greeting(number), "") for number in range(MANY)]
        await replica.until(lambda: all(session.is_welcome for session in sessions))
        drains = [Drain(name_of(number), "anna") for number in range(MANY)]
        looks.taken("gets_work")
        await replica.leader.submit(lambda _state, _now_ms: list(drains))
        await replica.until(lambda: all(session.ended for session in sessions))
        assert looks.taken("gets_work") < 20 * MANY


async def test_the_bound_of_executors_may_be_lower_than_ours() -> None:
    async with rigged() as rig:
        rig.pool.executors_max = 1
        rig.pool.join(greeting(0), "")
        with pytest.raises(Refused, match="1 executors are connected"):
            rig.pool.join(greeting(1), "")


async def test_a_heartbeat_that_only_renews_a_lease_makes_no_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each of a thousand executors' heartbeats was a turn of the leader."""
    turns, placing = 0, Executors.place

    def place(executors: Executors, queues: Queues) -> None:
        nonlocal turns
        turns += 1
        placing(executors, queues)

    monkeypatch.setattr(Executors, "place", place)
    async with reigning() as replica:
        session = replica.pool.join(greeting(0), "")
        await replica.until(lambda: session.is_welcome)
        replica.pool.receive(session, beat(1, 0, replica.clock.ms))
        await replica.until(lambda: len(replica.leader.indexes.queues.places.views) == 1)
        hour_ms = 3_600_000
        replica.leader._settings = LeaderSettings(turn_ms=1, housekeeping_ms=hour_ms)
        await replica.leader.append(c.Resume((), "anna"))  # the turns after it are of an hour
        before = turns
        for number in range(2, 102):
            replica.clock.ms += 1
            replica.pool.receive(session, beat(number, 0, replica.clock.ms))
            await replica.until(lambda: not session.awaits_answer)
            while session.next_message() is not None:  # its stream takes the answers
                pass
        assert not session.ended
        assert turns - before <= 2  # what the change before it left
