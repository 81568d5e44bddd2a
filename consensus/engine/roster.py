"""The members as this replica's log has them, entry by entry, and what they mean for it.

What counts is the newest change in the log, committed or not (Raft thesis 4.1); a change that is
cut off again has never been. So the roster watches the journal and keeps the members after each
change that is in it.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from consensus.engine.envelope import changes_members, unseal
from consensus.engine.membership import (
    Change,
    Member,
    Members,
    change_members,
    decode_change,
)
from consensus.engine.storage.records import Entry
from consensus.engine.storage.segments import Identity
from consensus.errors import UnknownFormat


class Roster:
    """Members by log index; the journal's watcher. In the tick thread.

    `is_stale` is set by every change, for whoever must act on it. `life` is the newest dump's.
    """

    def __init__(self, identity: Identity, ids: Iterable[str]) -> None:
        self.identity = identity
        self.ids = tuple(sorted(ids))
        self.is_stale = True
        self.life = 0
        self.number = 0  # the incarnation that this disk is, or was; 0 before it was admitted
        self._changes: list[tuple[int, Members]] = [(0, {})]

    def start(
        self, index: int, members: Members, entries: Iterable[Entry], *, life: int = 0
    ) -> None:
        """Begin with the members at `index`, where a dump of this `life` is, and the changes among
        the journal's entries."""
        self.life = life
        self._changes = [(index, members)]
        self._note()
        for command, at, term in entries:
            if at > index:
                self.added(at, term, command)

    # --- the journal's watcher

    def added(self, index: int, term: int, command: bytes) -> None:
        """Note an entry that was appended.

        Raises:
            UnknownFormat: it is a change of members that this version does not know.
        """
        if changes_members(command):
            change = change_in(command, index)
            self._changes.append((index, change_members(self.members, change)))
            self._note()

    def cut(self, index: int) -> None:
        """Note that the entries from `index` on are gone."""
        before = len(self._changes)
        while len(self._changes) > 1 and self._changes[-1][0] >= index:
            self._changes.pop()
        if len(self._changes) < before:
            self.is_stale, self.number = True, 0
            for _, members in self._changes:
                self._learn_number(members)

    def based(self, index: int) -> None:
        """Note that the entries up to `index` are in a dump."""
        while len(self._changes) > 1 and self._changes[1][0] <= index:
            del self._changes[0]

    def _note(self) -> None:
        self.is_stale = True
        self._learn_number(self.members)

    def _learn_number(self, members: Members) -> None:
        mine = members.get(self.identity.replica)
        if mine is not None and mine.token == self.identity.token:
            self.number = mine.number

    # --- what follows from it

    @property
    def members(self) -> Members:
        """The members as of the last entry."""
        return self._changes[-1][1]

    @property
    def changed_at(self) -> int:
        """The index of the last change."""
        return self._changes[-1][0]

    def at(self, index: int) -> Members:
        """Return the members after the entry at `index`, not before the first one known."""
        found = self._changes[0][1]
        for changed, members in self._changes:
            if changed > index:
                break
            found = members
        return found

    @property
    def is_complete(self) -> bool:
        """Whether every id has a disk that votes."""
        return all(member.votes for member in self.members.values())

    @property
    def is_founded(self) -> bool:
        """Whether the log says whose disks the cell consists of."""
        return bool(self.members)

    @property
    def may_vote(self) -> bool:
        """Whether this disk votes and may lead: it founds the cell, or it is a full member."""
        mine = self.members.get(self.identity.replica)
        if mine is None:
            return not self.identity.joins
        return mine.votes and mine.token == self.identity.token

    @property
    def gives_vote(self) -> bool:
        """Whether this disk answers who asks for its vote: also one that is admitted and, as far as
        it has read, has not joined. It may have, on the others' disks alone, and then they may need
        it to elect anybody; who asks counts it by its own log, where its Join must be."""
        mine = self.members.get(self.identity.replica)
        return self.may_vote or (mine is not None and mine.token == self.identity.token)

    def counts(self, name: str) -> bool:
        """Whether `name` has a vote, and counts for commits."""
        member = self.members.get(name)
        return member.votes if member is not None else not self.is_founded

    def address(self, name: str) -> str:
        """Return where `name` is reached, "" for where it is configured."""
        member = self.members.get(name)
        return member.raft if member is not None else ""

    def stands_for(self, name: str, token: int) -> bool:
        """Whether the disk of `token` is the one of `name`, or the cell is not founded yet."""
        member = self.members.get(name)
        return member.token == token if member is not None else not self.is_founded

    def has_quorum(self, granted: set[str]) -> bool:
        """Whether the votes of `granted` elect. A cell is founded by the votes of all."""
        if not self.is_founded:
            return granted.issuperset(self.ids)
        return sum(self.counts(name) for name in granted) * 2 > len(self.ids)


def change_in(command: bytes, index: int) -> Change:
    """Return the change of members that is sealed in `command`.

    Raises:
        UnknownFormat: this version does not know it.
    """
    envelope = unseal(command)
    try:
        return decode_change(envelope.entry if envelope is not None else b"")
    except msgspec.DecodeError as error:
        raise UnknownFormat(f"entry {index} changes members in an unknown way: {error}") from error


def open_places(members: Members) -> list[tuple[str, Member]]:
    """Return ids with an incarnation that has no disk yet."""
    return [(name, member) for name, member in sorted(members.items()) if not member.token]


def newcomers(members: Members) -> list[tuple[str, Member]]:
    """Return ids with a disk that does not vote yet."""
    return [
        (name, member)
        for name, member in sorted(members.items())
        if member.token and not member.votes
    ]
