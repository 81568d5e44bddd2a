"""When a dump is taken, and how a dump is installed, also one from the leader.

A dump is durable under its final name before the journal drops the entries that it covers. So after
a crash at any moment, the journal continues the dump (see `loading`). This runs in the tick thread,
which waits here for a rename to be durable, and for nothing longer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec

from consensus.config import EngineConfig
from consensus.engine.handover import Dumped, TakeDump
from consensus.engine.network.wire import DumpChunk
from consensus.engine.storage.disk import Disk
from consensus.engine.storage.dump import IN_FORCE, TAKEN, Dump
from consensus.engine.storage.incoming import Aside, Incoming, Target, ignore
from consensus.engine.storage.journal import FileJournal
from consensus.leadership import Position
from consensus.limits import TRAILING_BYTES

_RETRY_S: Final = 10.0
_SENT_SHARE: Final = 2
"""The entries behind a dump that is being sent are kept while the journal has no more than so many
times the bytes after which a dump is taken."""
_log = logging.getLogger(__name__)


class Compaction:
    """The dumps of one replica; `dump` is the installed one, if there is one."""

    def __init__(
        self,
        config: EngineConfig,
        journal: FileJournal,
        disk: Disk,
        dump: Dump | None,
        aside: Aside,
    ) -> None:
        self.dump = dump
        self.incoming = Incoming(disk, aside)
        self.sends_dump_of: Callable[[], int | None] = lambda: None  # set by the engine
        self._config = config
        self._journal = journal
        self._disk = disk
        self._wanted = False
        self._under_way = False
        self._aside = aside
        self._is_removing = False
        self._retry_at = 0.0
        self._journal_bytes = 0
        self._drop_overtaken()

    @property
    def dumped(self) -> Position:
        """The position of the installed dump; the first position if there is none."""
        return Position() if self.dump is None else self.dump.position

    def want(self) -> None:
        """Make the next `begin` take a dump, whatever the thresholds say."""
        self._wanted, self._retry_at = True, 0.0

    def begin(self, applied: int, now_s: float) -> TakeDump | Dumped | None:
        """Return a request for the event loop if a dump is due at `applied`, else None."""
        due = (
            self._wanted
            or applied - self.dumped.index >= self._config.snapshot_entries
            or self._journal.size_bytes - self._journal_bytes >= self._config.snapshot_bytes
        )
        if not due or self._under_way or now_s < self._retry_at:
            return None
        wanted, self._wanted = self._wanted, False
        if applied <= max(self.dumped.index, 1):
            return Dumped(self.dumped, None) if wanted else None
        self._under_way = True
        term = self._journal.log.term_at(applied)
        return TakeDump(Position(term, applied))

    def finish(self, result: Dump | Exception, now_s: float) -> Dumped:
        """Install the dump that was written as TAKEN; after an error nothing is changed.

        Raises:
            OSError: the disk failed; the replica must stop.
        """
        self._under_way = False
        if isinstance(result, Exception):
            _log.warning("no dump was written: %s", result)
            self._retry_at = now_s + _RETRY_S
            return Dumped(self.dumped, result)
        if result.position.index <= self.dumped.index:
            # A dump from the leader was installed meanwhile.
            self._disk.remove(TAKEN)
            return Dumped(self.dumped, None)
        self._put_in_force(result)
        self._journal.forget_before(self._trailing_start(result.position.index))
        self._journal_bytes = self._journal.size_bytes
        self._remove_obsolete()
        self._drop_overtaken()
        return Dumped(self.dumped, None)

    def _drop_overtaken(self) -> None:
        target = self.incoming.target
        if target is not None and target.index <= self.dumped.index:
            self.incoming.drop()

    def _trailing_start(self, index: int) -> int:
        log, size = self._journal.log, 0
        start, least = index, max(log.begin, index - self._config.trailing_entries)
        while start > least and size < TRAILING_BYTES:
            start -= 1
            size += log.length_at(start)
        # A follower that has installed a dump needs the entries behind that one: with a newer dump
        # in their place it would receive one dump after the other.
        sent = self.sends_dump_of()
        if (
            sent is not None
            and self._journal.size_bytes <= _SENT_SHARE * self._config.snapshot_bytes
        ):
            start = min(start, max(log.begin, sent))
        return start

    def receive(self, message: DumpChunk, done: Callable[[Dump], None]) -> int:
        """Write a piece of the leader's dump; return the next offset wanted, or its size if it is
        complete.

        A complete dump is verified in another thread, then installed, with the journal continuing
        it; then `done` is called. If a newer dump was installed meanwhile, it is discarded.
        """
        target = Target(message.index_term, message.index, message.size, message.digest)
        return self.incoming.take(
            target, message.offset, message.piece, partial(self._install, done)
        )

    def _install(self, done: Callable[[Dump], None], received: Dump) -> None:
        if received.position.index <= self.dumped.index:
            self.incoming.drop()
            return
        dump = self._put_in_force(received)
        self.incoming.drop()
        self._journal.continue_dump(received.position)
        self._journal_bytes = self._journal.size_bytes
        self._remove_obsolete()
        done(dump)

    def _put_in_force(self, dump: Dump) -> Dump:
        """Rename a complete dump durably, so that it replaces the old one; return it."""
        old = self._disk.open(IN_FORCE) if self.dump is not None else None
        self._disk.rename(dump.name, IN_FORCE)
        self._disk.sync_names()
        if old is not None:
            self._aside(old.close, ignore)  # deleting a large file can take long
        self.dump = msgspec.structs.replace(dump, name=IN_FORCE)
        return self.dump

    # --- segments that are not needed any more: deleting them can take long

    def _remove_obsolete(self) -> None:
        if not self._is_removing and self._journal.has_obsolete:
            self._is_removing = True
            self._aside(self._journal.remove_obsolete, self._removed)

    def _removed(self, result: Exception | None) -> None:
        self._is_removing = False
        if isinstance(result, Exception):
            _log.warning("old segments were not removed: %s", result)
        else:
            self._remove_obsolete()
