"""History of one replica in SQLite, for queries: derived from the log, rebuilt when in doubt.

Theory of operation. One thread, named `history`, owns the connection. The event loop offers it the
rows of each applied batch and never waits; the thread takes all that is waiting into one
transaction together with the mark, the log index up to which it has seen everything. So after a
kill or a power loss, rows and mark go back together, and what State still holds after the mark is
offered again at the next start. Rows at or below the mark are ignored, which makes offering
idempotent. Rows that nobody here has any more are recorded as a gap. A file that is damaged, of
another version or of another log is thrown away and begun anew: never fatal, never trusted.

Gaps are filled from segments, a few thousand rows at a time, so that a question never waits long; a
row has the same place whoever brings it (places.py), so that it is never there twice. A gap shrinks
in the transaction that brings the last row. Until then an answer may lack rows, and `gaps` says so.
"""

from __future__ import annotations

import queue
import sqlite3
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
import structlog

from cron.errors import Shutdown, Unavailable
from cron.history import outlived, queries
from cron.history.asking import Ask
from cron.history.chores import Chore, Fill, Progress, Retain
from cron.history.gaps import Gap
from cron.history.inserts import Inserter, Offer
from cron.history.order import Query
from cron.history.queries import Counts, Lacking
from cron.history.schema import Unusable, is_damage, open_file, remove_file
from cron.limits import HISTORY_ROWS_MAX
from cron.state.archive import SegmentRecord
from cron.state.commands import SegmentKey
from cron.state.rows import Row
from launcher.names import LaunchName

BACKLOG_ROWS_MAX: Final = 500_000
"""Rows that wait for a slow or full disk, about 200 MB; what comes beyond becomes a gap."""
BATCH_ROWS: Final = 20_000
"""One transaction takes offers until it has so many rows, so that a question waits 0.2 s at most
for it."""
JOBS_AT_ONCE: Final = 1000
"""Jobs whose last row is looked up without a break, in 0.1 s."""
RETRY_S: Final = 1.0
"""How long to wait before a transaction that the disk refused is tried again."""

_T = TypeVar("_T")
_Message = Offer | Ask[Any] | None
_log = structlog.get_logger()


class Projection:
    """Rows of finished launches at `path`, derived from the log that `identity` names."""

    def __init__(
        self, path: Path, identity: str = "", *, backlog_rows_max: int = BACKLOG_ROWS_MAX
    ) -> None:
        self._path = path
        self._identity = identity
        self._backlog_rows_max = backlog_rows_max
        self._inbox: queue.SimpleQueue[_Message] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()  # guards _backlog_rows and _is_open
        self._backlog_rows = 0
        self._is_open = False
        self._flushes = True
        self._mark = 0
        # Of the thread alone, once it runs:
        self._db: sqlite3.Connection | None = None
        self._inserter: Inserter | None = None
        self._pending: list[Offer] = []
        self._waiting: list[Ask[Any]] = []
        self._chores: list[Chore] = []

    # ---- life

    def start(self) -> None:
        """Open the file, or begin a new one, and start the thread; `mark` is known then.

        Raises:
            Unavailable: the directory cannot be written to, or the disk is full.
        """
        if self._thread is not None:
            return
        self._mark = 0
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._open()
        except (sqlite3.Error, OSError) as error:
            raise Unavailable(f"history {self._path}: {error}", "look at the disk") from error
        self._is_open, self._flushes = True, True
        self._thread = threading.Thread(target=self._run, name="history", daemon=True)
        self._thread.start()

    def stop(self, *, flush: bool = True) -> None:
        """End the thread and close the file; idempotent, waits. What was offered is written first,
        unless `flush` is false or the disk refuses. Questions that still wait end with Shutdown."""
        if self._thread is None:
            return
        self._flushes = flush
        self._inbox.put(None)
        self._thread.join()
        self._thread = None

    @property
    def mark(self) -> int:
        """Log index up to which all rows are here, but for `gaps()`."""
        return self._mark

    # ---- in

    def offer(self, rows: list[Row], up_to: int, *, gap_from: int = 0, gap_to: int = 0) -> None:
        """Hand over all rows between the last offer and log index `up_to`, in log order.

        Returns at once; thread-safe; does nothing once stopped. Rows at or below the mark are
        ignored. Rows with `gap_from` < ended_index <= `gap_to` that are not known yet are lost to
        this replica and are recorded as a gap, as are rows that find the backlog full.
        """
        self._offer(Offer(rows, up_to, gap_from, gap_to))

    def mend(self, rows: list[Row], from_index: int, to_index: int) -> None:
        """Hand over all rows with `from_index` < ended_index <= `to_index`, in log order, which
        State still holds: where they were lost here, the gap closes. Otherwise like `offer`."""
        self._offer(Offer(rows, to_index, whole_from=from_index))

    def _offer(self, offer: Offer) -> None:
        rows, up_to = offer.rows, offer.up_to
        with self._lock:
            if not self._is_open:
                return
            is_full = bool(rows) and self._backlog_rows + len(rows) > self._backlog_rows_max
            if is_full:
                offer = Offer([], up_to, 0, up_to)  # from wherever the mark stands then
            self._backlog_rows += len(offer.rows)
            self._inbox.put(offer)
        if is_full:
            _log.error("history.dropped", rows=len(rows), index=up_to)

    async def fill(
        self,
        record: SegmentRecord,
        content: bytes,
        seal: frozenset[SegmentKey],
        progress: Progress | None = None,
    ) -> None:
        """Bring the rows of a segment that are not here yet; idempotent.

        `seal` are the keys of all segments of its Seal: once all of them are filled, their stretch
        of the log is a gap no more. It is empty where one of them is gone. `progress` is called on
        the loop with the number of rows that are done.

        Raises:
            RowsDamaged: the content is not what the record says.
            Unavailable, Shutdown: some rows may be in; to be tried again.
        """
        await self._put(Fill(record, content, seal, progress))

    async def retain(self, records: list[SegmentRecord], up_to: int) -> None:
        """Delete all rows up to log index `up_to`, where the tails begin, that are in none of these
        segments; idempotent.

        Raises:
            Unavailable, Shutdown: some rows may be deleted; to be tried again.
        """
        await self._put(Retain(records, up_to))

    # ---- out

    async def caught_up(self, index: int) -> None:
        """Return once `mark` >= `index`.

        Raises:
            Shutdown: the projection was stopped before.
        """
        if self._mark < index:
            await self.ask(lambda _db: None, index)

    async def newest(self, query: Query) -> list[Row]:
        """Return the rows of `query`, newest ScheduledTime first; ties by attempt, then log order.
        A range of skipped instants stands at the last of them.

        Raises:
            LimitExceeded: more rows are asked for than one answer may have.
            Unavailable, Shutdown: the file cannot be read now; all questions raise these.
        """
        return await self.ask(lambda db: queries.newest(db, query))

    async def of_attempts(self, attempts: list[tuple[str, int, int]]) -> list[Row]:
        """Return all rows of attempts, given by job, scheduled_s and number, but for ranges."""
        return await self.ask(lambda db: queries.of_attempts(db, attempts))

    async def of_launch(self, launch: LaunchName) -> list[Row]:
        """Return all that is known of `launch` in log order: attempts, amendments, and the ranges
        of skipped instants that contain it."""
        return await self.ask(lambda db: queries.of_launch(db, launch))

    async def of_job(
        self, job: str, from_s: int, to_s: int, limit: int = HISTORY_ROWS_MAX
    ) -> list[Row]:
        """Return all rows of `job` with an instant in [from_s, to_s], oldest ScheduledTime first;
        a range of skipped instants stands at the first of them. Ties are in log order.

        Raises:
            LimitExceeded: there are more than `limit`; nothing is cut off silently.
        """
        return await self.ask(lambda db: queries.of_job(db, job, from_s, to_s, limit))

    async def last_of_each(self, jobs: list[str]) -> dict[str, Row]:
        """Return, by job, the row with the newest ScheduledTime; jobs without rows are left out.

        Asked in pieces, so that rows can be written in between.
        """
        last: dict[str, Row] = {}
        for at in range(0, len(jobs), JOBS_AT_ONCE):
            piece = jobs[at : at + JOBS_AT_ONCE]
            last |= await self.ask(partial(queries.last_of_each, jobs=piece))
        return last

    async def counts(self) -> Counts:
        """Return how much there is, from counters that every insert keeps."""
        return await self.ask(queries.counts)

    async def gaps(self) -> list[Gap]:
        """Return the stretches of the log whose rows may be missing here, oldest first."""
        return await self.ask(queries.gaps)

    async def lacking(self) -> Lacking:
        """Return what may be missing here, and which segments are none the less."""
        return await self.ask(queries.lacking)

    async def outlived(self, record: SegmentRecord, newer: int) -> bool:
        """Whether each row of a segment has at least `newer` rows of later instants of its job;
        False where its rows are not all here. Asked in pieces."""
        jobs = await self.ask(partial(outlived.newest_of, record=record))
        for at in range(0, len(jobs or ()), JOBS_AT_ONCE):
            piece = (jobs or [])[at : at + JOBS_AT_ONCE]
            if not await self.ask(partial(outlived.have_later, jobs=piece, least=newer)):
                return False
        return jobs is not None

    async def ask(self, answer: Callable[[sqlite3.Connection], _T], index: int = 0) -> _T:
        """Return what `answer` finds, in the thread, once `mark` has reached `index`."""
        return await self._put(Ask(answer, index))

    async def _put(self, ask: Ask[_T]) -> _T:
        with self._lock:
            if not self._is_open:
                raise Shutdown("history is stopped")
            self._inbox.put(ask)
        return await ask.future

    # ---- the thread

    def _run(self) -> None:
        try:
            while self._turn():
                pass
        except Exception:  # noqa: BLE001, top of the thread: a bug must not end the replica
            _log.exception("history.failed")
        finally:
            self._close()

    def _turn(self) -> bool:
        """Do all that is waiting; return whether there will be more."""
        for message in self._receive():
            if message is None:
                self._write()
                return False
            if isinstance(message, Offer):
                self._pending.append(message)
            elif message.index > self._mark:
                self._waiting.append(message)
            else:
                self._write()
                self._answer(message)
        self._write()
        if self._chores and not self._pending:
            self._work(self._chores[0])
        return True

    def _receive(self) -> list[_Message]:
        messages: list[_Message] = []
        rows = 0
        try:
            wait_s = RETRY_S if self._pending else 0 if self._chores else None
            messages.append(self._inbox.get(block=wait_s != 0, timeout=wait_s))
            while rows < BATCH_ROWS and messages[-1] is not None:
                if isinstance(messages[-1], Offer):
                    rows += len(messages[-1].rows)
                messages.append(self._inbox.get_nowait())
        except queue.Empty:
            pass
        return messages

    def _write(self) -> None:
        """Write what is pending; what the disk refuses stays pending."""
        if not self._pending or not self._flushes:
            return
        try:
            self._write_pending()
        except (sqlite3.Error, OSError) as error:
            _log.error("history.refused", error=str(error), rows=self._backlog_rows)
            return
        for ask in [ask for ask in self._waiting if ask.index <= self._mark]:
            self._waiting.remove(ask)
            self._answer(ask)

    def _write_pending(self) -> None:
        try:
            mark = self._opened()[1].write(self._pending)
        except sqlite3.Error as error:
            if not is_damage(error):
                raise
            self._rebuild(str(error))
            mark = self._opened()[1].write(self._pending)
        with self._lock:
            self._backlog_rows -= sum(len(offer.rows) for offer in self._pending)
        self._pending.clear()
        self._mark = mark

    def _answer(self, ask: Ask[Any]) -> None:
        if isinstance(ask, Chore):
            self._chores.append(ask)
            return
        try:
            ask.run(self._opened()[0])
        except (sqlite3.Error, msgspec.DecodeError, OSError) as error:
            is_bad_file = isinstance(error, sqlite3.Error) and is_damage(error)
            if is_bad_file or isinstance(error, msgspec.DecodeError):
                self._rebuild(str(error))
            ask.fail(Unavailable(f"history cannot be read: {error}", "ask another replica"))
        except Exception as error:  # noqa: BLE001, it is the asker's, and other askers wait
            ask.fail(error)

    def _work(self, chore: Chore) -> None:
        """Do a piece of a chore; questions and offers come before the next."""
        if chore.future.done():  # nobody waits for it any more
            self._chores.remove(chore)
            return
        try:
            if chore.step(self._opened()[1]):
                return
            chore.give(None)
        except (sqlite3.Error, OSError) as error:
            if isinstance(error, sqlite3.Error) and is_damage(error):
                self._rebuild(str(error))
            chore.fail(Unavailable(f"history cannot be written: {error}", "look at the disk"))
        except Exception as error:  # noqa: BLE001, it is the asker's
            chore.fail(error)
        if chore in self._chores:
            self._chores.remove(chore)

    # ---- the file

    def _open(self) -> None:
        try:
            self._db = open_file(self._path, self._identity)
        except Unusable as error:
            self._rebuild(str(error))
        self._mark = self._opened()[1].mark

    def _opened(self) -> tuple[sqlite3.Connection, Inserter]:
        if self._db is None:
            self._db = open_file(self._path, self._identity)
        if self._inserter is None:
            self._inserter = Inserter(self._db)
        return self._db, self._inserter

    def _rebuild(self, why: str) -> None:
        """Begin a new file. All that the old one had becomes a gap, since State may not have it."""
        _log.warning("history.rebuilt", path=str(self._path), error=why, index=self._mark)
        if self._db is not None:
            self._db.close()
        self._db = self._inserter = None
        remove_file(self._path)
        for chore in self._chores:  # what they have done is gone
            chore.fail(Unavailable("history is begun anew", "try again"))
        self._chores.clear()
        if self._mark:
            self._pending.insert(0, Offer([], self._mark, 0, self._mark))

    def _close(self) -> None:
        with self._lock:
            self._is_open = False
        if self._db is not None:
            self._db.close()
        self._db = self._inserter = None
        while not self._inbox.empty():
            message = self._inbox.get_nowait()
            if isinstance(message, Ask):
                message.shut_down()
        for ask in [*self._waiting, *self._chores]:
            ask.shut_down()
        self._waiting.clear()
        self._chores.clear()
        self._pending.clear()
        self._backlog_rows = 0
