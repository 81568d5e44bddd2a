"""Comparing clocks with the other replicas (rule R10)."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from consensus.cell import MemberView, PeerView
from consensus.leadership import Leadership
from cron.api.members import JoinProgress, StatusRow, TaskCounts
from cron.service import members
from cron.service.members import MISSED_MAX, ClusterStatus, ReplicaIdentity, with_leader
from cron.state.alerts import QUEUE
from cron.state.commands import FORMAT
from cron.state.tasks import SubmitTasks
from launcher.protocol.limits import PROTOCOL
from launcher.protocol.reading import parse_hello
from launcher.protocol.v1 import pool_pb2
from tests.unit.cell_fakes import FOUNDED, FakeCell
from tests.unit.pool_rig import beat
from tests.unit.tasks_rig import task
from tests.unit.test_leader_term import reigning

LIMIT_MS = 10_000
HELLO = pool_pb2.Hello(
    cell="test", executor="e1", ledger="0f0e0d0c-0b0a-4909-8807-060504030201", incarnation="a",
    slots=4, host="h", pid=1, version="1", wall_ms=0, protocol=PROTOCOL,
)  # fmt: skip
HOUR_MS = 3_600_000
START_MS = 1_800_000_000_000


class HandClock:
    """Clocks that move only when they are told to."""

    def __init__(self) -> None:
        self.wall = START_MS
        self.mono = 5_000

    def wall_ms(self) -> int:
        return self.wall

    def mono_ms(self) -> int:
        return self.mono


class Others:
    """The other replicas: their clocks are off by these from the true time, None is silent."""

    def __init__(self, **off_ms: int | None) -> None:
        self.off_ms = off_ms
        self.now_ms = START_MS

    async def peer_status(self, address: str, timeout_ms: int) -> StatusRow:
        off_ms = self.off_ms[address]
        if off_ms is None:
            raise OSError("silent")
        return StatusRow(kind="replica", id=address, wall_ms=self.now_ms + off_ms)

    async def status(self, address: str, timeout_ms: int) -> list[StatusRow]:
        return []


def cluster_status(clock: HandClock, others: Others) -> ClusterStatus:
    nobody: Any = None  # comparing clocks needs neither state nor leader
    log: Any = FakeCell()
    peers = {name: name for name in ("r1", *others.off_ms)}
    return ClusterStatus(
        identity=ReplicaIdentity("r1", "r1", 1, "0", "2026a", peers),
        log=log,
        applier=nobody,
        leader=nobody,
        clock=clock,
        ask=others,
        offset_ms_max=LIMIT_MS,
    )


@pytest.mark.parametrize(
    ("others", "error_ms"),
    [
        ({"r2": 0, "r3": 0}, 0),
        ({"r2": -HOUR_MS, "r3": -HOUR_MS}, HOUR_MS),
        ({"r2": HOUR_MS, "r3": HOUR_MS}, -HOUR_MS),
        ({"r2": HOUR_MS, "r3": 0}, 0),
        ({"r2": LIMIT_MS, "r3": LIMIT_MS}, 0),
        ({"r2": LIMIT_MS + 1, "r3": LIMIT_MS + 1}, -LIMIT_MS - 1),
        # Of two clocks nobody knows which is wrong: the one that is ahead gives way.
        ({"r2": HOUR_MS, "r3": None}, 0),
        ({"r2": -HOUR_MS, "r3": None}, HOUR_MS),
    ],
)
def test_a_clock_is_judged_by_the_median(others: dict[str, int | None], error_ms: int) -> None:
    one = cluster_status(HandClock(), Others(**others))
    asyncio.run(one.poll())
    assert one.clock_error_ms() == error_ms
    assert bool(one.why_not_tick()) == bool(error_ms)


@pytest.mark.parametrize("jump_ms", [HOUR_MS, -HOUR_MS])
def test_a_jump_counts_before_the_others_are_asked_again(jump_ms: int) -> None:
    clock = HandClock()
    one = cluster_status(clock, Others(r2=0, r3=0))
    asyncio.run(one.poll())
    clock.wall += jump_ms + 400
    clock.mono += 400
    assert one.clock_error_ms() == jump_ms
    assert one.why_not_tick()


def test_what_a_replica_said_of_its_clock_outlasts_a_few_silences() -> None:
    """A leader that knew itself an hour ahead went on as soon as one poll was not answered."""
    others = Others(r2=-HOUR_MS, r3=-HOUR_MS)
    judged = cluster_status(HandClock(), others)
    asyncio.run(judged.poll())
    others.off_ms = {"r2": None, "r3": None}
    for _ in range(MISSED_MAX):
        asyncio.run(judged.poll())
        assert judged.clock_error_ms() == HOUR_MS
    asyncio.run(judged.poll())
    assert judged.clock_error_ms() == 0


def test_when_all_clocks_jump_the_next_question_finds_them_together() -> None:
    clock, others = HandClock(), Others(r2=0, r3=0)
    one = cluster_status(clock, others)
    asyncio.run(one.poll())
    clock.wall += HOUR_MS
    others.now_ms += HOUR_MS
    assert one.why_not_tick()
    asyncio.run(one.poll())
    assert one.clock_error_ms() == 0
    assert not one.why_not_tick()


def test_time_that_passes_is_no_jump() -> None:
    clock = HandClock()
    one = cluster_status(clock, Others(r2=0, r3=0))
    asyncio.run(one.poll())
    clock.wall += HOUR_MS
    clock.mono += HOUR_MS
    assert one.clock_error_ms() == 0


async def test_leadership_is_handed_to_one_that_is_on_time_and_may_lead() -> None:
    class Learns(Others):
        async def peer_status(self, address: str, timeout_ms: int) -> StatusRow:
            told = await super().peer_status(address, timeout_ms)
            return msgspec.structs.replace(told, role="learner" if address == "r2" else "follower")

    ahead = cluster_status(HandClock(), Learns(r2=-HOUR_MS, r3=-HOUR_MS))
    await ahead.poll()
    assert ahead._on_time() == "r3"
    alone = cluster_status(HandClock(), Learns(r2=-HOUR_MS, r3=None))
    await alone.poll()
    assert alone._on_time() is None


# ---- a cell that grows


def test_a_replica_that_does_not_vote_yet_is_not_missed_and_stops_no_clock() -> None:
    """Else one with a wrong clock would stop the cell of one that it is to join."""
    one = cluster_status(HandClock(), Others(r2=-HOUR_MS, r3=None))
    log: Any = one._replicated
    log.members = {"r1": MemberView(1, "votes"), "r2": MemberView(1, "joining", is_new=True)}
    asyncio.run(one.poll())
    assert one.clock_error_ms() == 0
    assert one.reachable() == {}
    assert one.seen()[1] == {}
    log.members["r2"] = MemberView(1, "votes")
    assert one.clock_error_ms() == HOUR_MS
    assert one.reachable() == {"r2": True}


def test_a_replica_that_the_cell_does_not_have_is_shown_with_the_way_into_it() -> None:
    rows = [row("r1", "leader", "r1"), row("r2", "unreachable"), row("r3", "learner")]
    alone = {"r1": MemberView(1, "votes")}
    shown = members.with_member_state(rows, alone, {}, 9)
    assert [one.note for one in shown] == [
        "",
        "it is no replica of the cell yet: `raftcron cell grow r2` adds it",
        "",
    ]
    assert members.with_member_state(rows, {}, {}, 9) == rows


# ---- who leads


def row(name: str, role: str, leader: str = "", note: str = "") -> StatusRow:
    return StatusRow(kind="replica", id=name, role=role, leader=leader, note=note)


def told(*rows: StatusRow) -> list[tuple[str, str]]:
    return [(one.leader, one.note) for one in with_leader(list(rows))]


def test_what_a_cell_with_a_leader_says_stays_as_it_is() -> None:
    rows = [row("r1", "leader", "r1", "took over"), row("r2", "follower", "r1")]
    assert with_leader(rows) == rows


def test_a_survivor_without_a_majority_does_not_name_the_dead_leader() -> None:
    dead = [row(name, "unreachable", note="it does not answer") for name in ("r2", "r3")]
    assert told(row("r1", "follower", "r3"), *dead) == [
        ("", "no leader: 1 of 3 replicas answers, 2 are needed"),
        ("", "it does not answer"),
        ("", "it does not answer"),
    ]


def test_a_majority_is_of_those_that_the_cell_needs() -> None:
    away = row("r2", "unreachable", note="it does not answer")
    found = with_leader([row("r1", "follower"), away], ["r1"])
    assert found[0].note == "no leader yet: the replicas elect one"


def test_two_of_five_are_too_few() -> None:
    dead = [row(name, "unreachable") for name in ("r3", "r4", "r5")]
    (_, note), *_ = told(row("r1", "follower", "r3"), row("r2", "follower"), *dead)
    assert note == "no leader: 2 of 5 replicas answer, 3 are needed"


def test_a_majority_without_a_leader_elects_one() -> None:
    elects = "no leader yet: the replicas elect one"
    followers = [row("r1", "follower", "r3"), row("r2", "follower", "r2")]
    assert told(*followers, row("r3", "unreachable")) == [("", elects), ("", elects), ("", "")]


def test_a_follower_that_missed_the_election_says_so() -> None:
    late = row("r3", "follower", "r2")
    assert told(row("r1", "leader", "r1"), late)[1] == ("", "does not know the leader yet")


async def test_a_leader_says_what_becomes_of_launches_without_executors_or_a_full_one() -> None:
    async with reigning() as replica:
        log: Any = FakeCell(replica.log)
        one = ClusterStatus(
            identity=ReplicaIdentity("r1", "r1", 1, "0", "2026a", {"r1": "r1"}),
            log=log,
            applier=replica.applier,
            leader=replica.leader,
            clock=replica.clock,
            ask=Others(),
            offset_ms_max=LIMIT_MS,
        )
        said = "no executor is connected: launches wait, and are skipped at their deadline"
        assert [told.note for told in await one.status()] == [said]
        session = replica.pool.join(parse_hello(HELLO, "test"), "127.0.0.1:1")
        await replica.until(lambda: session.is_welcome)
        leader, executor = await one.status()
        assert (leader.note, executor.role) == ("", "connected")
        replica.state.alerts.open_count = 2
        noted = (await one.status())[0].note
        assert noted == "alerts that fire: 2 (raftcron alerts list)"
        replica.state.alerts.open_count = 0
        replica.pool.receive(session, beat(1, 0, HELLO.wall_ms, is_full=True))
        replica.pool.answer_heartbeats(replica.clock.mono_ms())
        _, executor = await one.status()
        assert "its ledger is full" in executor.note
        assert "`raftcron snapshot list`" in executor.note


# ---- formats


@pytest.mark.parametrize(
    ("said", "shared", "older"),
    [
        ({"r2": FORMAT, "r3": FORMAT}, FORMAT, ""),
        # A release that knew only one format does not say it.
        ({"r2": FORMAT, "r3": 0}, 1, "r3 has an older release"),
        ({"r2": 1, "r3": FORMAT + 1}, 1, "r2 has an older release"),
        ({"r2": FORMAT + 1, "r3": FORMAT + 1}, FORMAT, ""),
        # A replica that is silent may be of any release.
        ({"r2": 1, "r3": None}, 0, "r2 has an older release, r3 does not answer"),
    ],
)
async def test_the_shared_format_is_what_every_replica_says_that_it_can_apply(
    said: dict[str, int | None], shared: int, older: str
) -> None:
    class Releases(Others):
        async def peer_status(self, address: str, timeout_ms: int) -> StatusRow:
            if (format_ := said[address]) is None:
                raise OSError("silent")
            return msgspec.structs.replace(row(address, "follower"), format=format_)

    one = cluster_status(HandClock(), Releases(r2=0, r3=0))
    assert one.shared_format() == 0, "nobody was asked yet"
    await one.poll()
    assert one.shared_format() == shared
    assert one.older_replicas() == older


# ---- members


async def test_a_replica_that_was_replaced_is_asked_at_its_new_address() -> None:
    asked: list[str] = []

    class Moved(Others):
        async def peer_status(self, address: str, timeout_ms: int) -> StatusRow:
            asked.append(address)
            raise OSError("silent")

    one = cluster_status(HandClock(), Moved(r2=0, r3=0))
    log: Any = one._replicated
    log.members = FOUNDED | {"r2": MemberView(2, "votes", about="new")}
    await one.poll()
    assert sorted(asked) == ["new", "r3"]
    assert one._row_of(one._peers["r2"]).address == "new"


def test_learners_are_no_majority() -> None:
    rows = [row("r1", "follower", "r3"), row("r2", "learner"), row("r3", "unreachable")]
    assert told(*rows) == [
        ("", "no leader: 1 of 3 replicas answers, 2 are needed"),
        ("", ""),
        ("", ""),
    ]


async def test_a_leader_shows_who_joins_and_how_far_it_is() -> None:
    class Joins(Others):
        async def peer_status(self, address: str, timeout_ms: int) -> StatusRow:
            progress = JoinProgress("dump", 40, 100)
            return StatusRow(kind="replica", id="r2", role="learner", leader="r1", joining=progress)

    async with reigning() as replica:
        log: Any = FakeCell(replica.log)
        log.members = FOUNDED | {"r2": MemberView(2, "joining")}
        log.reached = {"r2": PeerView(True, 7), "r3": PeerView(False, 3)}
        one = ClusterStatus(
            identity=ReplicaIdentity("r1", "r1", 1, "0", "2026a", {"r1": "r1", "r2": "r2"}),
            log=log,
            applier=replica.applier,
            leader=replica.leader,
            clock=replica.clock,
            ask=Joins(),
            offset_ms_max=LIMIT_MS,
        )
        leader, joins = await one.status()
    assert (leader.role, leader.member_state, leader.joining) == ("leader", "votes", None)
    assert leader.matched == leader.applied
    assert (joins.role, joins.member_state, joins.incarnation) == ("learner", "joining", 2)
    assert (joins.matched, joins.joining) == (7, JoinProgress("dump", 40, 100))


async def test_tasks_are_told_of_once_there_is_a_queue_that_is_not_the_cells_own() -> None:
    async with reigning() as replica:
        log: Any = FakeCell(replica.log)
        one = ClusterStatus(
            identity=ReplicaIdentity("r1", "r1", 1, "0", "2026a", {"r1": "r1"}),
            log=log,
            applier=replica.applier,
            leader=replica.leader,
            clock=replica.clock,
            ask=Others(),
            offset_ms_max=LIMIT_MS,
        )
        await replica.leader.append(SubmitTasks((task("1-firing-ops", HOUR_MS, QUEUE),), "cell"))
        assert one.own().tasks is None
        await replica.leader.append(SubmitTasks((task("a", HOUR_MS),), "shop"))
        assert one.own().tasks == TaskCounts(waiting=1)


async def test_a_follower_repeats_what_the_leader_says() -> None:
    class Leads(Others):
        async def peer_status(self, address: str, timeout_ms: int) -> StatusRow:
            return StatusRow(kind="replica", id="r2", role="leader", leader="r2")

        async def status(self, address: str, timeout_ms: int) -> list[StatusRow]:
            assert address == "new"
            votes = {"incarnation": 3, "member_state": "votes", "matched": 8}
            replicas = [StatusRow(kind="replica", id=name, **votes) for name in ("r1", "r2")]
            return [*replicas, StatusRow(kind="executor", id="e1")]

    one = cluster_status(HandClock(), Leads(r2=0))
    log: Any = one._replicated
    log.members = {"r2": MemberView(3, "votes", about="new")}
    log.leadership = Leadership(4, False, "r2")
    some: Any = one
    some._leader = SimpleNamespace(epoch=None, note="", overload=SimpleNamespace(view=None))
    some._applier = SimpleNamespace(state=SimpleNamespace(index=5, digest=b""))
    own, leader, executor = await one.status()
    assert (own.role, own.applied, own.matched, own.incarnation) == ("follower", 5, 8, 3)
    assert (leader.role, leader.matched, executor.id) == ("leader", 8, "e1")


async def test_a_follower_polls_rarely_and_when_leadership_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(members, "FOLLOWER_POLL_MS", 10**9)

    class Counts(Others):
        polled = asyncio.Semaphore(0)

        async def peer_status(self, address: str, timeout_ms: int) -> StatusRow:
            self.polled.release()
            return await super().peer_status(address, timeout_ms)

    others = Counts(r2=0)
    one = cluster_status(HandClock(), others)
    log: Any = one._replicated
    listeners: list[Any] = []
    log.subscribe = listeners.append
    log.leadership = Leadership(4, False, "r2")
    watching = asyncio.create_task(one.watch())
    async with asyncio.timeout(60):
        await others.polled.acquire()
        for listener in listeners:
            listener(log.leadership)
        await others.polled.acquire()
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
