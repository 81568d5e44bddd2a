"""When a dump is taken, how it comes into force, and how one from the leader does.

A dump is first durable under its name; only then is the journal shortened, as a new file. A crash
at any moment leaves a journal that continues the dump (see `loading`). In the tick thread.
"""

from __future__ import annotations

import logging
from typing import Final

from consensus.engine.config import EngineConfig
from consensus.engine.handover import Dumped, TakeDump
from consensus.engine.matching import align
from consensus.engine.network.wire import DumpChunk
from consensus.engine.settings import Files
from consensus.engine.storage.disk import replace
from consensus.engine.storage.dump import Dump, Incoming
from consensus.engine.storage.journal import FileJournal
from consensus.leadership import Position
from consensus.limits import TRAILING_BYTES

_RETRY_S: Final = 10.0
_log = logging.getLogger(__name__)


class Compaction:
    """One replica's dumps: `dumped` is the position of the one in force."""

    def __init__(
        self, config: EngineConfig, journal: FileJournal, files: Files, dumped: Position
    ) -> None:
        self.dumped = dumped
        self.incoming = Incoming(files.incoming)
        self._config = config
        self._journal = journal
        self._files = files
        self._wanted = False
        self._under_way = False
        self._retry_at = 0.0
        self._journal_bytes = 0

    def want(self) -> None:
        """Let the next `begin` take a dump whatever the thresholds say."""
        self._wanted, self._retry_at = True, 0.0

    def begin(self, applied: int, now_s: float) -> TakeDump | Dumped | None:
        """Return what to hand to the event loop, if a dump is due at the index `applied`."""
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
        term = self._journal[applied - self._journal[0][1]][2]
        return TakeDump(Position(term, applied))

    def finish(self, position: Position, error: Exception | None, now_s: float) -> Dumped:
        """Put the dump that was written at `files.taken` in force; without it the journal stays."""
        self._under_way = False
        if error is not None:
            _log.warning("dump at %d was not written: %s", position.index, error)
            self._retry_at = now_s + _RETRY_S
        elif position.index > self.dumped.index:  # one from the leader may have overtaken it
            replace(self._files.taken, self._files.dump)
            self.dumped = position
            self._journal.forget_before(self._trailing_start(position.index))
            self._journal_bytes = self._journal.size_bytes
        return Dumped(self.dumped, error)

    def _trailing_start(self, index: int) -> int:
        base, size = self._journal[0][1], 0
        start = index
        while start > max(base, index - self._config.trailing_entries) and size < TRAILING_BYTES:
            start -= 1
            size += len(self._journal[start - base][0])
        return start

    def receive(self, message: DumpChunk) -> Dump | None:
        """Take a piece of the leader's dump; return it once it is whole, good and in force."""
        target = (message.index_term, message.index, message.size)
        dump = self.incoming.take(target, message.offset, message.piece)
        if dump is not None:
            self.incoming.install(self._files.dump)
            self.dumped = dump.position
            align(self._journal, dump.position)
            self._journal_bytes = self._journal.size_bytes
        return dump
