"""EngineLog: PySyncObj behind ReplicatedLog.

Two threads and nothing shared between them: `consensus-tick` owns Raft, journal and sockets; the
event loop owns the Applier and the futures of appends. Entries go one way through `Raft.offer`,
everything comes back, in order, through a Handover. Neither waits for the other.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Literal

from pysyncobj.node import Node

from consensus.engine.barriers import Barriers, within
from consensus.engine.config import EngineConfig
from consensus.engine.envelope import BARRIER, ENTRY, Origin, seal, unseal
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
from consensus.engine.loading import load
from consensus.engine.network.transport import PeerTransport
from consensus.engine.pending import Pending
from consensus.engine.raft import Raft
from consensus.engine.settings import Files
from consensus.engine.storage.disk import lock_directory
from consensus.engine.storage.dump import Dump, write_taken
from consensus.engine.storage.journal import FileJournal
from consensus.engine.ticking import tick
from consensus.errors import (
    EntryTooBig,
    NotLeader,
    OutcomeUnknown,
    Stopped,
    invariant,
)
from consensus.leadership import Leadership, Position
from consensus.limits import ENTRY_BYTES_MAX
from consensus.log import Applied, Applier

_TRANSFER_S = 1.0
_JOIN_S = 5.0


class EngineLog:
    """One replica of a cell of real processes; see ReplicatedLog for what it promises.

    `on_failure` is called once, on the loop's thread, when the replica cannot go on: the Applier
    raised, the disk failed, or an invariant broke. It has stopped then; the process should end.
    """

    def __init__(
        self,
        config: EngineConfig,
        applier: Applier,
        *,
        on_failure: Callable[[BaseException], None],
    ) -> None:
        config.validate()
        self._config = config
        self._applier = applier
        self._on_failure = on_failure
        self._incarnation = int.from_bytes(os.urandom(8), "big")
        self._applied = Position()
        self._leadership = Leadership()
        self._listeners: list[Callable[[Leadership], None]] = []
        self._pending = Pending()
        self._dumps: list[asyncio.Future[Position]] = []
        self._barriers = Barriers(partial(self._submit, BARRIER, b""))
        self._state: Literal["new", "running", "stopping", "stopped"] = "new"
        self._raft: Raft | None = None
        self._thread: threading.Thread | None = None
        self._lock = -1
        self._writing: asyncio.Task[None] | None = None

    # --- the protocol

    @property
    def replica(self) -> str:
        """This replica's id."""
        return self._config.replica

    @property
    def applied(self) -> Position:
        """The position of the last entry that was applied here; the engine's own count too."""
        return self._applied

    @property
    def leadership(self) -> Leadership:
        """What this replica believes now."""
        return self._leadership

    def subscribe(self, listener: Callable[[Leadership], None]) -> None:
        """Call `listener` after each change of `leadership`, on the event loop's thread."""
        self._listeners.append(listener)

    async def start(self) -> None:
        """Read and check dump and journal, restore the state, listen, and take part.

        Raises:
            LogDamaged, DataInUse: see there; nothing was changed.
            ConsensusError: the address cannot be listened on.
        """
        invariant(self._state == "new", "a log starts once")
        directory = Path(self._config.data)
        self._lock = lock_directory(directory)
        try:
            files = Files(directory / "journal", directory / "dump")
            journal, dump = await asyncio.to_thread(load, files, self.replica)
            if dump is not None:
                self._applier.restore(dump.position, [dump.state])
                self._applied = dump.position
            self._begin(files, journal)
        except BaseException:
            os.close(self._lock)
            self._state = "stopped"
            raise

    def _begin(self, files: Files, journal: FileJournal) -> None:
        nodes = {name: Node(name) for name in self._config.peers}
        handover = Handover(asyncio.get_running_loop(), self._take)
        transport = PeerTransport(self._config, nodes, journal)
        parts = (journal, transport, handover)
        self._raft = Raft(self._config, nodes, parts, files, self._applied)
        self._state = "running"
        self._thread = threading.Thread(
            target=tick, args=(self._raft,), name="consensus-tick", daemon=True
        )
        self._thread.start()

    async def stop(self) -> None:
        """Give leadership away (at most one second), end the thread, close the files."""
        if self._state == "running":
            self._state = "stopping"
            await self._transfer(None)
            if self._writing is not None:
                await asyncio.wait([self._writing])
            self._close()
        elif self._state == "new":
            self._state = "stopped"
        await self._release()

    async def append(self, entry: bytes, *, timeout_ms: int) -> Applied:
        """Commit `entry` and return once it is applied here. Errors as ReplicatedLog says."""
        if len(entry) > ENTRY_BYTES_MAX:
            raise EntryTooBig(f"entry of {len(entry)} bytes is over {ENTRY_BYTES_MAX}")
        return await within(self._submit(ENTRY, entry), timeout_ms)

    async def barrier(self, *, timeout_ms: int) -> Position:
        """Return once a majority has confirmed this leader after the call, by an entry of no
        content; calls that come while one is under way share the next."""
        self._check_leads()
        return (await within(self._barriers.join(), timeout_ms)).position

    async def snapshot(self) -> Position:
        """Take a dump now. Returns its position once it is durable; raises what writing raised."""
        raft = self._running()
        done: asyncio.Future[Position] = asyncio.get_running_loop().create_future()
        self._dumps.append(done)
        raft.ask(raft.want_dump)
        return await done

    async def transfer(self, replica: str | None = None) -> None:
        """Give leadership to `replica`, or to whoever is furthest; best effort, one second.
        New appends wait meanwhile."""
        self._running()
        await self._transfer(replica)

    def silence(self, peers: frozenset[str]) -> None:
        """Neither hear nor reach `peers` from now on: a partition, for tests."""
        raft = self._running()
        raft.ask(partial(setattr, raft.transport, "silenced", peers))

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

    # --- what comes from the tick thread

    def _take(self, event: Event) -> None:
        if self._state in ("new", "stopped"):
            return
        try:
            self._dispatch(event)
        except Exception as error:  # noqa: BLE001 - whoever raised, the replica ends
            self._fail(error)

    def _dispatch(self, event: Event) -> None:
        match event:
            case Committed(entries):
                for command, index, term in entries:
                    self._apply(Position(term, index), command)
            case Changed(leadership, logged):
                self._believe(leadership, logged)
            case Refused(counters):
                for counter in counters:
                    self._pending.refuse(counter, NotLeader(self._leadership.leader))
            case TakeDump(position):
                invariant(position == self._applied, "the state is not at the dump's position")
                dump = Dump(position, b"".join(self._applier.take()))
                self._writing = asyncio.create_task(self._write_dump(dump))
            case Dumped(position, error):
                self._answer_dumps(position, error)
            case Restored(dump):
                self._applier.restore(dump.position, [dump.state])
                self._applied = dump.position
            case Failed(error):
                self._fail(error)

    def _apply(self, position: Position, command: bytes) -> None:
        envelope = unseal(command)
        outcome = None
        if envelope is not None and envelope.kind == ENTRY:
            outcome = self._applier.apply(position, envelope.entry)
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

    async def _write_dump(self, dump: Dump) -> None:
        raft = self._raft
        if raft is None:
            return
        error: Exception | None = None
        try:
            await asyncio.to_thread(write_taken, raft.files.taken, dump)
        except OSError as failure:
            error = failure
        raft.ask(partial(raft.finish_dump, dump.position, error))

    def _answer_dumps(self, position: Position, error: Exception | None) -> None:
        waiting, self._dumps = self._dumps, []
        for done in waiting:
            if done.done():
                continue
            if error is None:
                done.set_result(position)
            else:
                done.set_exception(error)

    # --- the end

    async def _transfer(self, replica: str | None) -> None:
        raft = self._raft
        if raft is None or not self._leadership.leads or len(self._config.peers) == 1:
            return
        gone = asyncio.Event()
        listener: Callable[[Leadership], None] = lambda _: gone.set()  # noqa: E731
        self._listeners.append(listener)
        raft.ask(partial(raft.begin_transfer, replica))
        try:
            async with asyncio.timeout(_TRANSFER_S):
                while self._leadership.leads:
                    gone.clear()
                    await gone.wait()
        except TimeoutError:
            pass
        finally:
            self._listeners.remove(listener)

    async def _release(self) -> None:
        # Also after a failure: the directory is free only when nothing writes to it any more.
        thread, self._thread = self._thread, None
        if thread is not None:
            await asyncio.to_thread(thread.join, _JOIN_S)
            invariant(not thread.is_alive(), "the tick thread does not end")
            os.close(self._lock)

    def _close(self) -> None:
        self._state = "stopped"
        raft = self._raft
        if raft is not None:
            raft.ask(partial(setattr, raft, "stopping", True))
            raft.handover.close()
        self._pending.close(OutcomeUnknown("the replica stopped while the entry was in flight"))
        for done in self._dumps:
            if not done.done():
                done.set_exception(Stopped("the log is closed"))
        self._dumps = []
        if self._leadership.leads:
            self._believe(Leadership(self._leadership.term), 0)

    def _fail(self, error: BaseException) -> None:
        if self._state == "stopped":
            return
        self._close()
        self._on_failure(error)
