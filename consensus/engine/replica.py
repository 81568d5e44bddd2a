"""EngineLog: the ReplicatedLog of this engine.

The thread `consensus-tick` owns Raft, journal and sockets; the event loop owns the Applier and the
futures of appends. They share nothing. Appends go to the tick thread through `Raft.offer`; results
come back, in order, through a Handover. Neither side waits for the other.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Literal, TypeVar

from pysyncobj.monotonic import monotonic

from consensus.cell import Joining, MemberView, PeerView
from consensus.config import EngineConfig
from consensus.engine.envelope import BARRIER, ENTRY, MEMBERS, Origin, seal, unseal
from consensus.engine.handover import (
    Changed,
    Committed,
    Dumped,
    Event,
    Failed,
    Handover,
    Refused,
    Restored,
    TakeDump,
)
from consensus.engine.loading import Loaded, draw_token, load
from consensus.engine.membership_log import MemberState, change_in
from consensus.engine.network.sockets import SocketNetwork
from consensus.engine.network.tls import check_files
from consensus.engine.pending import Barriers, Pending, within
from consensus.engine.raft import Raft, assemble, tick
from consensus.engine.storage.disk import DirectoryDisk
from consensus.engine.storage.dump import TAKEN, Dump, read_pieces, write_dump
from consensus.errors import (
    ConsensusError,
    EntryTooBig,
    NotLeader,
    OutcomeUnknown,
    Stopped,
    invariant,
)
from consensus.histogram import Histogram
from consensus.leadership import Freshness, Leadership, Position
from consensus.limits import ENTRY_BYTES_MAX
from consensus.log import Applied, Applier

T = TypeVar("T")
_TRANSFER_S = 1.0
_JOIN_S = 5.0


class EngineLog:
    """One replica of a cell of real processes; see ReplicatedLog for its promises.

    `on_failure` is called once, on the event loop's thread, when the replica cannot continue: the
    Applier raised, the disk failed, or an invariant broke. The replica has stopped by then; the
    process should exit.

    `may_acknowledge` is called, in the engine's own thread, for each uncommitted entry that the
    leader sends. If it returns False, this follower accepts neither that entry nor later ones until
    a majority has them. A leader whose entries a majority refuses resigns.

    `is_revoked` is called, in any thread, with the SHA-256 (hex) of a peer's certificate; if it
    returns True, there is no connection with that peer.
    """

    def __init__(
        self,
        config: EngineConfig,
        applier: Applier,
        *,
        on_failure: Callable[[BaseException], None],
        may_acknowledge: Callable[[bytes], bool] = lambda entry: True,
        is_revoked: Callable[[str], bool] = lambda digest: False,
    ) -> None:
        config.validate()
        if config.tls is not None:
            check_files(config.tls, config.cell, config.replica)
        self._config = config
        self._applier = applier
        self._on_failure = on_failure
        self._may_acknowledge = may_acknowledge
        self._is_revoked = is_revoked
        self._incarnation = int.from_bytes(os.urandom(8), "big")
        self._applied = Position()
        self._leadership = Leadership()
        self._listeners: list[Callable[[Leadership], None]] = []
        self._pending = Pending()
        self._dumps: list[tuple[int, asyncio.Future[Position]]] = []
        self._confirming: set[asyncio.Future[None]] = set()
        self._barriers = Barriers(partial(self._submit, BARRIER, b""))
        self._state: Literal["new", "running", "stopping", "stopped"] = "new"
        self._raft: Raft | None = None
        self._thread: threading.Thread | None = None
        self._disk: DirectoryDisk | None = None
        self._member_state = MemberState(config.replica)
        self._aside = ThreadPoolExecutor(1, thread_name_prefix="consensus-aside")

    # --- the protocol

    @property
    def replica(self) -> str:
        """This replica's id."""
        return self._config.replica

    @property
    def applied(self) -> Position:
        """The position of the last entry applied here; entries of the engine count too."""
        return self._applied

    @property
    def leadership(self) -> Leadership:
        """What this replica believes about leadership now."""
        return self._leadership

    @property
    def freshness(self) -> Freshness:
        """Return how old a state is that is read here without a barrier."""
        raft, applied = self._raft, self._applied.index
        if raft is None:
            return Freshness(applied, applied)
        # Owned by the tick thread: each value is read once, and may be a moment old.
        following, confirmed_s = raft.followed, raft.leading.confirmed_s
        seen, fresh_s = following.commit_seen, following.fresh_s
        known = max(applied, following.leader_commit, raft.commit)
        if seen is not None and applied >= seen[0]:
            fresh_s = seen[1]
        times = [one for one in (fresh_s, confirmed_s) if one is not None]
        age_ms = max(0, int((raft.mono() - max(times)) * 1000)) if times else None
        return Freshness(applied, known, age_ms)

    @property
    def members(self) -> dict[str, MemberView]:
        """The members as applied here; empty before the cell is founded."""
        return self._member_state.views()

    @property
    def has_promised(self) -> bool:
        """Return whether this disk ever voted or stored an entry; False before the start."""
        raft = self._raft
        return raft is not None and (raft.term > 0 or raft.last_index > 1)

    @property
    def joining(self) -> Joining | None:
        """The progress of this replica until it votes; None afterwards and before the start. Reads
        variables of the tick thread; two of them may be of different moments."""
        raft = self._raft
        if raft is None or (raft.membership_log.may_vote and self._member_state.may_vote):
            return None
        incoming = raft.compaction.incoming
        if (target := incoming.target) is not None:
            return Joining("dump", incoming.offset, target.size)
        if raft.leader is not None:
            return Joining("log", raft.applied, max(raft.applied, raft.followed.leader_commit))
        return Joining("waiting", text=raft.parts.gate.refusal or "no peer has answered yet")

    @property
    def syncs(self) -> Histogram | None:
        """How long it took to write and sync frames of the log; None before the start."""
        return None if self._raft is None else self._raft.journal.syncs

    def peers(self) -> dict[str, PeerView]:
        """Return the progress of each peer; on a leader."""
        return self._running().leading.peers()

    def subscribe(self, listener: Callable[[Leadership], None]) -> None:
        """Call `listener` after each change of `leadership`, on the event loop's thread."""
        self._listeners.append(listener)

    async def start(self) -> None:
        """Load and verify dump and journal, restore the state, listen, and join the cell.

        Raises:
            NoData, DataInUse, DiskFull, LogDamaged, UnknownFormat: nothing was changed.
            ConsensusError: it cannot listen on the address.
        """
        invariant(self._state == "new", "a log starts once")
        disk = DirectoryDisk(Path(self._config.data))
        loading = asyncio.create_task(asyncio.to_thread(load, disk, self._config, draw_token))
        try:
            loaded = await asyncio.shield(loading)
            if loaded.dump is not None:
                self._restore(loaded.dump, read_pieces(disk, loaded.dump))
            self._begin(disk, loaded)
        except BaseException:
            await asyncio.wait([loading])  # also if the start is cancelled: its thread may write
            disk.close()
            self._aside.shutdown(wait=False)
            self._state = "stopped"
            raise

    def _begin(self, disk: DirectoryDisk, loaded: Loaded) -> None:
        network = SocketNetwork(self._config.tls, self._config.cell, self._is_revoked)
        try:
            raft = assemble(
                self._config,
                loaded,
                disk=disk,
                network=network,
                handover=Handover(asyncio.get_running_loop(), self._take),
                aside=self._work_aside,
                mono=monotonic,
            )
        except BaseException:
            network.close()
            loaded.journal._destroy()
            raise
        raft.followed.may_acknowledge = self._may_acknowledge
        self._member_state.start(raft.membership_log)
        self._disk, self._raft, self._state = disk, raft, "running"
        self._thread = threading.Thread(
            target=tick, args=(raft,), name="consensus-tick", daemon=True
        )
        self._thread.start()

    def _work_aside(self, work: Callable[[], T], then: Callable[[T | Exception], None]) -> None:
        """Run `work` in another thread, then `then` in the tick thread; return at once."""

        def run() -> None:
            try:
                result: T | Exception = work()
            except Exception as error:  # noqa: BLE001 - whoever asked decides
                result = error
            raft = self._raft
            if raft is not None:
                raft.ask(partial(then, result))

        self._aside.submit(run)

    async def stop(self) -> None:
        """Transfer leadership (at most one second), end the thread, close the files."""
        if self._state == "running":
            self._state = "stopping"
            await self._transfer(None)
            self._close()
        elif self._state == "new":
            self._state = "stopped"
        # Also after a failure: release the directory only when nothing writes to it any more.
        thread, self._thread = self._thread, None
        if thread is not None:
            await asyncio.to_thread(thread.join, _JOIN_S)
            invariant(not thread.is_alive(), "the tick thread does not end")
            self._aside.shutdown()
            if self._disk is not None:
                self._disk.close()

    async def append(self, entry: bytes, *, timeout_ms: int) -> Applied:
        """Commit `entry` and return once it is applied here. Raises as ReplicatedLog."""
        if len(entry) > ENTRY_BYTES_MAX:
            raise EntryTooBig(f"entry of {len(entry)} bytes is over {ENTRY_BYTES_MAX}")
        return await within(self._submit(ENTRY, entry), timeout_ms)

    async def barrier(self, *, timeout_ms: int) -> Position:
        """Return once a majority has confirmed this leader after the call, by committing an empty
        entry. Calls during a round share the next round.
        """
        self._check_leads()
        return (await within(self._barriers.join(), timeout_ms)).position

    async def confirm(self, *, timeout_ms: int) -> None:
        """Return once a majority has answered a heartbeat that was sent after the call."""
        raft, loop = self._check_leads(), asyncio.get_running_loop()
        confirmed: asyncio.Future[None] = loop.create_future()

        def answer(is_leader: bool) -> None:
            if is_leader and not confirmed.done():
                confirmed.set_result(None)
            elif not confirmed.done():
                confirmed.set_exception(NotLeader(self._leadership.leader))

        def answer_soon(is_leader: bool) -> None:  # in the tick thread
            loop.call_soon_threadsafe(answer, is_leader)

        self._confirming.add(confirmed)
        try:
            raft.ask(partial(raft.confirm, self._leadership.term, answer_soon))
            await within(confirmed, timeout_ms)
        finally:
            self._confirming.discard(confirmed)

    async def snapshot(self) -> Position:
        """Take a dump of the state applied now, after a dump in progress. Return its position once
        it is durable; errors of writing pass.
        """
        raft = self._running()
        done: asyncio.Future[Position] = asyncio.get_running_loop().create_future()
        self._dumps.append((self._applied.index, done))
        raft.ask(raft.want_dump)
        return await done

    async def replace(
        self, replica: str, *, raft: str = "", about: str = "", timeout_ms: int
    ) -> MemberView:
        """Exclude the present disk of `replica` for good, and open the next incarnation for a new
        disk, with the Raft address `raft` ("" for the old address). Return the member once
        committed.

        Raises:
            NotLeader, ChangeRefused, QueueFull, Stopped: nothing happened and nothing will.
            OutcomeUnknown: check `members` before you retry.
        """
        engine = self._check_leads()
        return await self._change(
            partial(engine.leading.replace, replica, raft, about), timeout_ms=timeout_ms
        )

    async def add(self, replica: str, *, timeout_ms: int) -> MemberView:
        """Add the id `replica` to the cell. Its first disk may join from then on. Return the member
        once committed.

        Raises:
            NotLeader, ChangeRefused, QueueFull, Stopped: nothing happened and nothing will.
            OutcomeUnknown: check `members` before you retry.
        """
        engine = self._check_leads()
        return await self._change(partial(engine.leading.add, replica), timeout_ms=timeout_ms)

    async def _change(self, change: Callable[[Origin], None], *, timeout_ms: int) -> MemberView:
        """Ask the tick thread for a change of members; return the member once committed."""
        counter, answer = self._pending.admit(0)
        origin = Origin(self.replica, self._incarnation, counter)
        self._running().ask(partial(change, origin))
        outcome = (await within(answer, timeout_ms)).outcome
        if isinstance(outcome, ConsensusError):
            raise outcome
        invariant(isinstance(outcome, MemberView), "a change of members has no outcome")
        return outcome  # type: ignore[no-any-return]

    async def transfer(self, replica: str | None = None) -> None:
        """Transfer leadership to `replica`, or to the most advanced one; best effort, one second.
        New appends wait meanwhile.
        """
        self._running()
        await self._transfer(replica)

    def disconnect(self, replica: str, reason: str) -> None:
        """End the connections with a peer soon. Each side dials again and authenticates anew."""
        raft = self._raft
        if self._state == "running" and raft is not None:
            raft.ask(partial(raft.parts.transport.disconnect, replica, reason))

    # --- appends

    def _running(self) -> Raft:
        if self._state != "running" or self._raft is None:
            raise Stopped("the log is closed")
        return self._raft

    def _check_leads(self) -> Raft:
        raft = self._running()
        if not self._leadership.leads:
            raise NotLeader(self._leadership.leader)
        return raft

    def _submit(self, kind: int, entry: bytes) -> asyncio.Future[Applied]:
        raft = self._check_leads()
        counter, answer = self._pending.admit(len(entry))
        origin = Origin(self.replica, self._incarnation, counter)
        raft.offer(counter, seal(kind, origin, entry))
        return answer

    # --- events from the tick thread

    def _take(self, event: Event) -> None:
        if self._state in ("new", "stopped"):
            return
        try:
            match event:
                case Committed(entries):
                    for command, index, term in entries:
                        self._apply(Position(term, index), command)
                case Changed(leadership, logged):
                    self._believe(leadership, logged)
                case Refused(counters, refusal):
                    for counter in counters:
                        self._pending.refuse(counter, refusal or NotLeader(self._leadership.leader))
                case TakeDump():
                    self._take_dump(event)
                case Dumped(position, failure):
                    self._answer_dumps(position, failure)
                case Restored(dump, pieces):
                    self._restore(dump, pieces)
                case Failed(failure):
                    self._fail(failure)
        except Exception as error:  # noqa: BLE001 - whoever raised, the replica ends
            self._fail(error)

    def _apply(self, position: Position, command: bytes) -> None:
        envelope = unseal(command)
        outcome = None
        if envelope is not None and envelope.kind == ENTRY:
            outcome = self._applier.apply(position, envelope.entry)
        elif envelope is not None and envelope.kind == MEMBERS:
            outcome = self._member_state.apply(change_in(command, position.index))
        self._applied = position
        if envelope is not None and envelope.origin.incarnation == self._incarnation:
            self._pending.resolve(envelope.origin.counter, Applied(position, outcome))

    def _believe(self, leadership: Leadership, logged: int) -> None:
        before, self._leadership = self._leadership, leadership
        if not leadership.leads or leadership.term != before.term:
            lost = OutcomeUnknown("leadership changed while the entry was in flight")
            self._pending.lose(logged, lost)
        for listener in list(self._listeners):
            listener(leadership)

    def _restore(self, dump: Dump, pieces: Iterable[bytes]) -> None:
        self._applier.restore(dump.position, pieces)
        self._member_state.restore(dump.members)
        self._applied = dump.position

    def _take_dump(self, event: TakeDump) -> None:
        at = event.position
        invariant(at == self._applied, "the state is not at the dump's position")
        raft, disk = self._raft, self._disk
        if raft is None or disk is None:
            return
        pieces = self._applier.take()
        work = partial(write_dump, disk, TAKEN, at, event.members, pieces, life=event.life)
        self._work_aside(work, raft.finish_dump)

    def _answer_dumps(self, position: Position, error: Exception | None) -> None:
        waiting, self._dumps = self._dumps, []
        for least, done in waiting:
            if done.done():
                continue
            if error is not None:
                done.set_exception(error)
            elif least <= position.index:
                done.set_result(position)
            else:  # it was requested while this dump, of an earlier state, was being written
                self._dumps.append((least, done))

    # --- the end

    async def _transfer(self, replica: str | None) -> None:
        raft = self._raft
        is_alone = len(raft.membership_log.electors) < 2 if raft is not None else True
        if raft is None or not self._leadership.leads or is_alone:
            return
        gone = asyncio.Event()
        listener: Callable[[Leadership], None] = lambda _: gone.set()  # noqa: E731
        self._listeners.append(listener)
        raft.ask(partial(raft.leading.begin_transfer, replica))
        try:
            async with asyncio.timeout(_TRANSFER_S):
                while self._leadership.leads:
                    gone.clear()
                    await gone.wait()
        except TimeoutError:
            pass
        finally:
            self._listeners.remove(listener)

    def _close(self) -> None:
        self._state = "stopped"
        raft = self._raft
        if raft is not None:
            raft.ask(partial(setattr, raft, "stopping", True))
            raft.handover.close()
        self._pending.close(OutcomeUnknown("the replica stopped while the entry was in flight"))
        self._answer_dumps(self._applied, Stopped("the log is closed"))
        for answer in [one for one in self._confirming if not one.done()]:
            answer.set_exception(Stopped("the log is closed"))
        if self._leadership.leads:
            self._believe(Leadership(self._leadership.term), 0)

    def _fail(self, error: BaseException) -> None:
        if self._state == "stopped":
            return
        self._close()
        self._on_failure(error)
