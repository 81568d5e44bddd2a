"""Log matching: makes a follower's journal equal to its leader's. Pure rules on the journal."""

from __future__ import annotations

from typing import Protocol

from consensus.engine.network.wire import Append
from consensus.engine.storage.journal import FileJournal
from consensus.errors import invariant
from consensus.leadership import Position


class Log(Protocol):
    """A list of entries without gaps, as a journal keeps it."""

    def __getitem__(self, slot: int) -> tuple[object, int, int]:
        """Return (anything, index, term) of the entry at a list position."""

    def add(self, command: bytes, index: int, term: int) -> None:
        """Append one entry."""

    def cut_from(self, index: int) -> None:
        """Forget the entries from `index` on."""


def match_log(journal: Log, message: Append, base: int, commit: int) -> tuple[int, bool]:
    """Apply a leader's message to `journal`. Return (match index, True); or, after a mismatch, (the
    index before the leader's next attempt, False).

    Existing equal entries are kept (Raft §5.3: truncate only at a conflict). Committed entries are
    never changed; a message that would change them proves a bug.
    """
    last, previous = journal[-1][1], message.prev_index
    for place, entry in enumerate(message.entries):
        if entry[1] != previous + 1 + place:
            return last, False  # not from a correct leader: ignored
    if previous > last:
        return last, False
    if previous >= base and journal[previous - base][2] != message.prev_term:
        invariant(previous > commit, "a leader contradicts a committed entry")
        term, index = journal[previous - base][2], previous
        while index - 1 > max(commit, base) and journal[index - 1 - base][2] == term:
            index -= 1
        return index - 1, False
    for command, index, term in message.entries:
        if index <= base:
            continue
        if index <= last:
            if journal[index - base][2] == term:
                continue
            invariant(index > commit, "a leader contradicts a committed entry")
            journal.cut_from(index)
            last = index - 1
        journal.add(command, index, term)
        last = index
    return previous + len(message.entries), True


def align(journal: FileJournal, dumped: Position) -> None:
    """Make `journal` continue the dump at `dumped`: keep the tail if the journal has that entry,
    otherwise restart behind it.
    """
    log, index = journal.log, dumped.index
    if not (log.begin <= index <= log.last and log.term_at(index) == dumped.term):
        journal.set_base(index, dumped.term)
