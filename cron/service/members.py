"""Who takes part: this replica, the others as they answer, and the executors; and whose clock is
off (rule R10)."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, Protocol

import msgspec
import structlog

from consensus.cell import Joining, MemberView, PeerView
from consensus.log import ReplicatedLog
from cron.api.executors import ExecutorView
from cron.api.members import (
    LEARNER,
    OUTDATED,
    UNREACHABLE,
    WAITING,
    JoinProgress,
    StatusRow,
    TaskCounts,
)
from cron.api.snapshots import KeepingView
from cron.clock import Clock
from cron.leader.applier import StateApplier
from cron.leader.leader import Leader
from cron.service.executors import views_of
from cron.state.alerts import is_own
from cron.state.commands import FORMAT
from cron.state.letters import keeps_all
from cron.state.state import State
from launcher.protocol.names import format_time

_log = structlog.get_logger()

POLL_MS = 2_000
FOLLOWER_POLL_MS = 10_000
"""A leader acts on clocks, a follower only shows them. A change of leadership brings a poll too."""
FIRST_POLLS_MS = 200
FIRST_POLLS = 50
"""At its start a replica compares clocks more often: it should know of its own before it leads."""
MISSED_MAX = 5
"""What a replica said of its clock holds for so many polls that it does not answer."""
_NO_EXECUTOR = "no executor is connected: launches wait, and are skipped at their deadline"
FULL_SHOWN = 5
"""Tenants whose pile of dead letters is full, and that a status names."""
ASK_TIMEOUT_MS = 400
STATUS_TIMEOUT_MS = 1_000
"""A client gives a replica 2 s for `status`: time for its own poll, and for the leader's."""


class Ask(Protocol):
    """The door to the other replicas; both raise what gRPC raises."""

    async def peer_status(self, address: str, timeout_ms: int) -> StatusRow:
        """Return the row of the replica at a client address."""

    async def status(self, address: str, timeout_ms: int) -> list[StatusRow]:
        """Return what the replica there says of all."""


class OtherReplica(msgspec.Struct):
    """Another replica: where it is configured to be, what it said last, and how far its clock is
    off.

    `frame_ms` is our wall clock minus our monotonic one when `offset_ms` was measured.
    """

    id: str
    address: str
    row: StatusRow | None = None
    offset_ms: int | None = None
    frame_ms: int = 0
    missed: int = 0  # polls in a row that it did not answer


class ReplicaIdentity(msgspec.Struct, frozen=True):
    """What does not change while this replica lives. `peers`: client addresses of all replicas;
    `http`: where it serves HTTP, "" for nowhere."""

    replica: str
    address: str
    pid: int
    version: str
    tzdata: str
    peers: dict[str, str]
    http: str = ""


def with_leader(rows: list[StatusRow], electors: Collection[str] = ()) -> list[StatusRow]:
    """Return the rows of all replicas, with a note where one believes in a leader that is none. A
    majority of `electors` is needed, of all if there are none.

    A replica hears of a leader's end only from the next one; until then its word is of no use.
    """
    needed = [row for row in rows if not electors or row.id in electors]
    leading = {row.id for row in rows if row.role == "leader"}
    answering = sum(row.role not in (UNREACHABLE, LEARNER, WAITING) for row in needed)
    majority = len(needed) // 2 + 1
    outdated = [row.id for row in rows if row.role == OUTDATED]
    if leading:
        note = "does not know the leader yet"
    elif outdated:
        note = f"no leader: the disk of {outdated[0]}, whose log it follows, is old"
    elif answering < majority:
        verb = "answers" if answering == 1 else "answer"
        note = f"no leader: {answering} of {len(needed)} replicas {verb}, {majority} are needed"
    else:
        note = "no leader yet: the replicas elect one"
    return [
        row
        if row.role in (UNREACHABLE, WAITING, OUTDATED) or row.leader in leading
        # One that joins says itself what it waits for.
        else msgspec.structs.replace(
            row,
            leader="",
            note="" if row.role == LEARNER else "; ".join(filter(None, (note, row.note))),
        )
        for row in rows
    ]


class ClusterStatus:
    """All replicas and executors, as this replica sees them."""

    def __init__(
        self,
        *,
        identity: ReplicaIdentity,
        log: CellLog,
        applier: StateApplier,
        leader: Leader,
        clock: Clock,
        ask: Ask,
        offset_ms_max: int,
    ) -> None:
        self._identity = identity
        self._peers = {
            name: OtherReplica(name, address)
            for name, address in identity.peers.items()
            if name != identity.replica
        }
        self._replicated = log
        self._applier = applier
        self._leader = leader
        self._clock = clock
        self._ask = ask
        self._offset_ms_max = offset_ms_max
        self._role = ("", 0)
        self.keeping: Callable[[], KeepingView | None] = lambda: None
        self.certificate_ends_s: Callable[[], tuple[int, int]] = lambda: (0, 0)  # authority's, too
        self.withheld: Callable[[], str] = lambda: ""  # why entries of a leader were not taken
        self.disk_percent: Callable[[], int] = lambda: 0  # how full the disk is; it may take long
        self._disk_used_percent = 0

    def own(self) -> StatusRow:
        """Return this replica's row; its `wall_ms` is what the others compare clocks with."""
        leadership = self._replicated.leadership
        state = self._applier.state
        joining = self._replicated.joining
        role = "follower" if joining is None else LEARNER
        role = "leader" if self._leader.epoch is not None else role
        outdated = self._leader.older_log.in_term(leadership.term) if leadership.leads else ""
        role = OUTDATED if outdated else role
        if self._role[0] != role:
            self._role = (role, self._clock.wall_ms())
        notes = (outdated, self.why_not_tick(), self.withheld())
        ends_s, authority_ends_s = self.certificate_ends_s()
        return StatusRow(
            kind="replica",
            id=self._identity.replica,
            http=self._identity.http,
            certificate_ends_ms=ends_s * 1000,
            authority_ends_ms=authority_ends_s * 1000,
            disk_used_percent=self._disk_used_percent,
            address=self._identity.address,
            pid=self._identity.pid,
            role=role,
            term=leadership.term,
            applied=state.index,
            digest=state.digest.hex(),
            version=self._identity.version,
            leader=leadership.leader or "",
            clock_offset_ms=0,
            tzdata=self._identity.tzdata,
            since_ms=state.leader_terms[-1].at_ms if role == "leader" else self._role[1],
            note=self._leaders_note() if role == "leader" else "; ".join(filter(None, notes)),
            wall_ms=self._clock.wall_ms(),
            joining=progress_of(joining),
            keeping=self.keeping(),
            format=FORMAT,
            overload=self._leader.overload.view,
            tasks=(
                task_counts(state, self._leader.indexes.tasks.count_unbegun())
                if role == "leader" and not all(map(is_own, state.queues))
                else None
            ),
        )

    def others(self) -> dict[str, tuple[str, str]]:
        """Return where the other replicas that answered last serve HTTP, by their ids: the address,
        as they are configured, and the client address."""
        return {
            peer.id: (peer.row.http, self._address_of(peer))
            for peer in self._peers.values()
            if peer.row is not None and peer.row.http
        }

    def shared_format(self) -> int:
        """Return the newest format of the log that all replicas can apply, as they said last; 0
        while one does not answer, since it may be of any version."""
        rows = [peer.row for peer in self._peers.values()]
        return min([FORMAT, *(0 if row is None else max(row.format, 1) for row in rows)])

    def older_replicas(self) -> str:
        """Return which replicas cannot apply FORMAT, or may not; "" if all can."""
        rows = {name: peer.row for name, peer in sorted(self._peers.items())}
        away = [name for name, row in rows.items() if row is None]
        old = [name for name, row in rows.items() if row is not None and row.format < FORMAT]
        said = [f"{name} has an older release" for name in old]
        return ", ".join([*said, *(f"{name} does not answer" for name in away)])

    def _full_piles(self) -> str:
        """Return the tenants whose pile of dead letters is full, "" for none: they hand over no
        more tasks."""
        state = self._applier.state
        if not keeps_all(state):
            return ""
        tenants = sorted(filter(state.piles.is_full, state.piles))
        more = f" and {len(tenants) - FULL_SHOWN} more" if len(tenants) > FULL_SHOWN else ""
        return ", ".join(tenants[:FULL_SHOWN]) + more

    def _leaders_note(self) -> str:
        notes = [
            self._leader.note or self._succession(),
            self._leader.overload.note,
            self._leader.held_note,
            self.withheld(),
        ]
        if self._applier.state.format < FORMAT:
            why = self.older_replicas() or "all replicas are upgraded"
            notes.append(f"format {self._applier.state.format}: {why} (docs/upgrade.md)")
        if full := self._full_piles():
            notes.append(f"full of dead letters: {full} (raftcron dead list --tenant)")
        if firing := self._applier.state.alerts.open_count:
            notes.append(f"alerts that fire: {firing} (raftcron alerts list)")
        note = "; ".join(note for note in notes if note)
        if self._leader.pool.count:
            return note
        return f"{_NO_EXECUTOR}; {note}" if note else _NO_EXECUTOR

    def _succession(self) -> str:
        """From whom this leader took over, where it is not the cell's first."""
        leader_terms = self._applier.state.leader_terms
        if len(leader_terms) < 2:
            return ""
        old, new = leader_terms[-2].epoch, leader_terms[-1]
        since = format_time(new.at_ms // 1000)
        if old.replica == new.epoch.replica:
            return f"leads again since {since}, after its term {old.term}"
        return f"took over from {old.replica} at {since}, after term {old.term}"

    async def status(self) -> list[StatusRow]:
        """Return all replicas, by id, then all executors. Answers for all within about a second."""
        await self.poll()
        rows = [self.own(), *(self._row_of(peer) for peer in self._peers.values())]
        members = self._replicated.members
        electors = [name for name, member in members.items() if not member.is_new]
        rows = with_leader(sorted(rows, key=lambda row: row.id), electors)
        leader = next((row.id for row in rows if row.role == "leader"), "")
        answer = await self._ask_leader(leader)
        if answer is not None:
            executors = [row for row in answer if row.kind == "executor"]
            return as_leader_says(rows, answer) + executors
        leads = self._leader.epoch is not None
        rows = with_member_state(
            rows,
            self._replicated.members,
            self._replicated.peers() if leads else {},
            self._applier.state.index if leads else None,
        )
        state = self._applier.state
        views = views_of(state, state.executors.values(), self._leader.pool.sessions())
        return rows + [_executor_row(view, leads=leads) for view in views]

    async def poll(self) -> None:
        """Ask every other replica, at once."""
        async with asyncio.TaskGroup() as tasks:
            for peer in self._peers.values():
                tasks.create_task(self._poll_peer(peer))

    async def _poll_peer(self, peer: OtherReplica) -> None:
        asked_ms = self._clock.wall_ms()
        try:
            row = await self._ask.peer_status(self._address_of(peer), ASK_TIMEOUT_MS)
        except Exception as error:  # noqa: BLE001 - whatever it is, the peer is unreachable
            peer.row = None
            peer.missed += 1
            if peer.missed > MISSED_MAX:
                peer.offset_ms = None
            _log.debug("peer.unreachable", replica=peer.id, error=str(error))
            return
        peer.row = row
        peer.missed = 0
        # Halfway between asking and hearing is about when it read its clock.
        peer.offset_ms = row.wall_ms - (asked_ms + self._clock.wall_ms()) // 2
        peer.frame_ms = self._frame_ms()

    def _address_of(self, peer: OtherReplica) -> str:
        return client_address(self._replicated.members, peer.id, peer.address)

    def seen(self) -> tuple[StatusRow, dict[str, tuple[StatusRow | None, int | None]]]:
        """Return a row of this replica, with what is measured of it alone, and of each other one
        what it said last, None while it does not answer, and how far its clock is ahead of this
        one's in milliseconds."""
        ends_s, authority_ends_s = self.certificate_ends_s()
        own = StatusRow(
            kind="replica",
            id=self._identity.replica,
            certificate_ends_ms=ends_s * 1000,
            authority_ends_ms=authority_ends_s * 1000,
            disk_used_percent=self._disk_used_percent,
        )
        return own, {peer.id: (peer.row, peer.offset_ms) for peer in self._needed()}

    def reachable(self) -> dict[str, bool]:
        """Return of each other replica whether it answered when it was asked last."""
        return {peer.id: peer.row is not None for peer in self._needed()}

    def _needed(self) -> list[OtherReplica]:
        """The others, without those that a growing cell does not need yet."""
        members = self._replicated.members
        return [
            peer
            for peer in self._peers.values()
            if not members or (peer.id in members and not members[peer.id].is_new)
        ]

    def _row_of(self, peer: OtherReplica) -> StatusRow:
        if peer.row is None:
            return StatusRow(
                kind="replica", id=peer.id, address=self._address_of(peer), role=UNREACHABLE,
                note="it does not answer",
            )  # fmt: skip
        return msgspec.structs.replace(peer.row, clock_offset_ms=peer.offset_ms)

    async def _ask_leader(self, leader_id: str) -> list[StatusRow] | None:
        """Return what the leader says of all, where that is another replica that answers: it alone
        knows which executors are connected, and how far each replica is."""
        leader = self._peers.get(leader_id)
        if self._leader.epoch is not None or leader is None:
            return None
        try:
            return await self._ask.status(self._address_of(leader), STATUS_TIMEOUT_MS)
        except Exception as error:  # noqa: BLE001 - whatever it is, the leader is silent
            _log.debug("peer.unreachable", replica=leader.id, error=str(error))
            return None

    # ---- clocks (rule R10)

    def off_by(self) -> int:
        """Return how far this replica's clock is from the median of all.

        Of two clocks nobody knows which is wrong: then the one that is ahead gives way, since time
        that is in the log cannot be taken back, and 0 is returned to the other.
        """
        # A jump of our own clock since the others were asked counts at once: the leader must not
        # act on it until it asks them again.
        frame_ms = self._frame_ms()
        offsets = [
            peer.offset_ms - (frame_ms - peer.frame_ms)
            for peer in self._needed()
            if peer.offset_ms is not None
        ]
        if len(offsets) < 2:
            return max([0, *(-offset_ms for offset_ms in offsets)])
        median = sorted([0, *offsets])[(len(offsets) + 1) // 2]
        return -median

    def _frame_ms(self) -> int:
        return self._clock.wall_ms() - self._clock.mono_ms()

    def clock_error_ms(self) -> int:
        """Return by how much this clock is ahead of the median, 0 while that is tolerable."""
        off_ms = self.off_by()
        return off_ms if abs(off_ms) > self._offset_ms_max else 0

    def why_not_tick(self) -> str:
        """Return why a leader here must not tick, "" if it may."""
        off_ms = self.clock_error_ms()
        if not off_ms:
            return ""
        return f"its clock is {off_ms / 1000:+.1f} s from the replicas' median"

    async def watch(self) -> None:
        """Compare clocks for ever; a leader whose clock is off says so and hands over."""
        changed = asyncio.Event()
        self._replicated.subscribe(lambda _: changed.set())
        for number in itertools.count():
            changed.clear()
            await self.poll()
            with contextlib.suppress(OSError):  # a disk that is gone says so elsewhere
                self._disk_used_percent = await asyncio.to_thread(self.disk_percent)
            reason = self.why_not_tick()
            if reason and self._leader.epoch is not None:
                _log.warning("leader.resigned", replica=self._identity.replica, error=reason)
                self._leader.note = reason
                with contextlib.suppress(Exception):
                    await self._replicated.transfer(self._on_time())
            knows_all = all(peer.offset_ms is not None for peer in self._peers.values())
            is_first = number < FIRST_POLLS and not knows_all
            later_ms = POLL_MS if self._replicated.leadership.leads else FOLLOWER_POLL_MS
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout((FIRST_POLLS_MS if is_first else later_ms) / 1000):
                    await changed.wait()

    def _on_time(self) -> str | None:
        """Return a replica that may lead and whose clock agrees with the median."""
        off_ms = self.off_by()
        for peer in self._peers.values():
            may_lead = peer.row is None or peer.row.role not in (LEARNER, WAITING)
            is_off = peer.offset_ms is None or abs(peer.offset_ms + off_ms) > self._offset_ms_max
            if may_lead and not is_off:
                return peer.id
        return None


OPEN: Final = "open"
JOINING: Final = "joining"
VOTES: Final = "votes"

_OPEN = "waits for a new disk: start one with --join"
_NO_MEMBER = "it is no replica of the cell yet: `raftcron cell grow {}` adds it"
_ONLY_RAFT = "the leader reaches it, but its client address does not answer"


class CellLog(ReplicatedLog, Protocol):
    """A replicated log that tells of its members, and lets one be replaced or added."""

    @property
    def members(self) -> dict[str, MemberView]:
        """The ids of the cell as this replica's log has them; none before it is founded."""

    @property
    def joining(self) -> Joining | None:
        """How far this replica is until it votes; None if it does."""

    def peers(self) -> dict[str, PeerView]:
        """Return the others as this replica reaches them; to be asked of the leader."""

    async def replace(
        self, replica: str, *, raft: str = "", about: str = "", timeout_ms: int
    ) -> MemberView:
        """Open the next incarnation of `replica`; `about` is its client address.

        Raises:
            NotLeader, ChangeRefused: nothing happened. OutcomeUnknown: nobody knows.
        """

    async def add(self, replica: str, *, timeout_ms: int) -> MemberView:
        """Add `replica` to the cell; raises as `replace`."""


def client_address(members: Mapping[str, MemberView], replica: str, configured: str) -> str:
    """Return where clients find a replica: what its replacement gave, or what is configured."""
    member = members.get(replica)
    return member.about if member is not None and member.about else configured


def progress_of(joining: Joining | None) -> JoinProgress | None:
    """Return how far a replica has come, as the API shows it."""
    if joining is None:
        return None
    return JoinProgress(joining.stage, joining.done, joining.goal, joining.text)


def task_counts(state: State, due: int) -> TaskCounts:
    """Return how many tasks of users' queues wait, are `due`, as the leader's index says, and
    run."""
    queues = [queue for name, queue in state.queues.items() if not is_own(name)]
    running = sum(queue.running for queue in queues) - due
    return TaskCounts(waiting=sum(queue.waiting for queue in queues), due=due, running=running)


def _executor_row(view: ExecutorView, *, leads: bool) -> StatusRow:
    """Return an executor as `status` shows it; only a leader knows which are connected."""
    return StatusRow(
        kind="executor",
        id=view.id,
        address=view.address or view.host,
        pid=view.pid,
        role=view.role if leads else "unknown",
        version=view.version,
        clock_offset_ms=view.clock_offset_ms,
        since_ms=view.connected_since_ms or view.joined_ms,
        slots=view.slots_in_all,
        running=view.open,
        ledger=view.ledger,
        note=view.note if leads else "there is no leader to ask",
        refuses_commands=view.refuses_commands,
    )


def with_member_state(
    rows: Sequence[StatusRow],
    members: Mapping[str, MemberView],
    peers: Mapping[str, PeerView],
    leader_applied: int | None,
) -> list[StatusRow]:
    """Return the rows of replicas with what a log says of each.

    `peers` and `leader_applied`, the index that the leader has applied, are the leader's own; from
    any other replica none and None.
    """
    if not members:
        return list(rows)
    return [
        _as_member(row, members[row.id], peers.get(row.id), leader_applied)
        if row.id in members
        else _as_stranger(row)
        for row in rows
    ]


def _as_stranger(row: StatusRow) -> StatusRow:
    is_away = row.role == UNREACHABLE
    return msgspec.structs.replace(row, note=_NO_MEMBER.format(row.id)) if is_away else row


def _as_member(
    row: StatusRow, member: MemberView, peer: PeerView | None, leader_applied: int | None
) -> StatusRow:
    matched, note, joining = row.matched, row.note, row.joining
    is_away = row.role == UNREACHABLE
    if row.role == "leader":
        matched = leader_applied
    elif member.member_state == OPEN:  # how far the old disk was is of no use
        note = _OPEN if is_away else note
    elif peer is not None and leader_applied is not None:
        matched = peer.matched
        note = _ONLY_RAFT if is_away and peer.connected else note
        if joining is None and member.member_state == JOINING:
            joining = JoinProgress("log", peer.matched, leader_applied)
            if peer.dump_size:
                joining = JoinProgress("dump", peer.dump_sent, peer.dump_size)
    return msgspec.structs.replace(
        row,
        incarnation=member.incarnation,
        member_state=member.member_state,
        matched=matched,
        note=note,
        joining=joining,
    )


def as_leader_says(rows: Sequence[StatusRow], answer: Sequence[StatusRow]) -> list[StatusRow]:
    """Return the rows of replicas with what the leader's own answer has of each: who stands for an
    id, and how far it is."""
    of = {row.id: row for row in answer if row.kind == "replica"}
    return [
        msgspec.structs.replace(
            row,
            incarnation=of[row.id].incarnation,
            member_state=of[row.id].member_state,
            matched=of[row.id].matched,
            joining=row.joining or of[row.id].joining,
            note=of[row.id].note if row.role == UNREACHABLE else row.note,
        )
        if row.id in of
        else row
        for row in rows
    ]
