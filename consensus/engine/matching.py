"""How a follower's journal is brought in line with its leader's: pure rules on the journal."""

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
    """Bring `journal` in line with a leader's message. Returns up to which index both are equal,
    and True; or from where the leader should try again, less one, and False.

    Entries that are there already stay (Raft §5.3: cut only at a conflict); what is committed is
    never touched, and a message that would touch it proves a bug.
    """
    last, previous = journal[-1][1], message.prev_index
    for place, entry in enumerate(message.entries):
        if entry[1] != previous + 1 + place:
            return last, False  # not from a correct leader: nothing of it is used
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
    """Make `journal` continue the dump at `dumped`: keep its tail if it holds that very entry,
    start anew behind it if not."""
    log, index = journal.log, dumped.index
    if not (log.begin <= index <= log.last and log.term_at(index) == dumped.term):
        journal.set_base(index, dumped.term)
