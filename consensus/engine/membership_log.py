"""The members according to this replica's log, and what follows from them.

The newest change in the log counts, committed or not (Raft thesis 4.1); a truncated change is
undone. So this class watches the journal and keeps the members after each change in it.
`MemberState` has the members as far as they are committed, on the event loop's side.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Literal

import msgspec

from consensus.cell import MemberView
from consensus.engine.envelope import changes_members, unseal
from consensus.engine.membership import (
    Change,
    Member,
    Members,
    change_members,
    decode_change,
    decode_members,
)
from consensus.engine.storage.records import Entry
from consensus.engine.storage.segments import Identity
from consensus.errors import ChangeRefused, ConsensusError, Replaced, UnknownFormat


class MembershipLog:
    """Members by log index; watches the journal. Used in the tick thread.

    Every change sets `is_stale`; the code that handles the change clears it. `life` is that of the
    newest dump.
    """

    def __init__(self, identity: Identity, ids: Iterable[str]) -> None:
        self.identity = identity
        self.ids = tuple(sorted(ids))
        self.is_stale = True
        self.life = 0
        self.number = (
            0  # this disk's incarnation, also after it was replaced; 0 before it was admitted
        )
        self._changes: list[tuple[int, Members]] = [(0, {})]

    def start(
        self, index: int, members: Members, entries: Iterable[Entry], *, life: int = 0
    ) -> None:
        """Begin with the members of the dump at `index`, of this `life`, and with the changes in
        the journal.
        """
        self.life = life
        self._changes = [(index, members)]
        self._note()
        for command, at, term in entries:
            if at > index:
                self.added(at, term, command)

    # --- the journal's watcher

    def added(self, index: int, term: int, command: bytes) -> None:
        """Record an appended entry.

        Raises:
            UnknownFormat: it is a change of members that this version does not know.
        """
        if changes_members(command):
            change = change_in(command, index)
            self._changes.append((index, change_members(self.members, change)))
            self._note()

    def cut(self, index: int) -> None:
        """Record that the entries from `index` on were truncated."""
        before = len(self._changes)
        while len(self._changes) > 1 and self._changes[-1][0] >= index:
            self._changes.pop()
        if len(self._changes) < before:
            self.is_stale, self.number = True, 0
            for _, members in self._changes:
                self._learn_number(members)

    def based(self, index: int) -> None:
        """Record that a dump covers the entries up to `index`."""
        while len(self._changes) > 1 and self._changes[1][0] <= index:
            del self._changes[0]

    def _note(self) -> None:
        self.is_stale = True
        self._learn_number(self.members)

    def _learn_number(self, members: Members) -> None:
        mine = members.get(self.identity.replica)
        if mine is not None and mine.token == self.identity.token:
            self.number = mine.number

    # --- what follows from the members

    @property
    def members(self) -> Members:
        """The members as of the last entry."""
        return self._changes[-1][1]

    @property
    def changed_at(self) -> int:
        """The index of the last change."""
        return self._changes[-1][0]

    def at(self, index: int) -> Members:
        """Return the members after the entry at `index`, or the oldest ones known."""
        found = self._changes[0][1]
        for changed, members in self._changes:
            if changed > index:
                break
            found = members
        return found

    @property
    def is_complete(self) -> bool:
        """Return whether every id has a disk that votes."""
        return all(member.votes for member in self.members.values())

    @property
    def electors(self) -> Collection[str]:
        """The ids of whose votes a majority is needed: those that ever had a disk that voted."""
        if not self.is_founded:
            return self.ids
        return [name for name, member in self.members.items() if not member.is_new]

    @property
    def is_founded(self) -> bool:
        """Return whether the log names the disks of the cell."""
        return bool(self.members)

    @property
    def may_vote(self) -> bool:
        """Return whether this disk votes and may lead: in a new cell, or as a full member."""
        mine = self.members.get(self.identity.replica)
        if mine is None:
            return not self.identity.joins
        return mine.votes and mine.token == self.identity.token

    @property
    def gives_vote(self) -> bool:
        """Return whether this disk grants votes. An admitted disk does, even if its own log has no
        Join: the others' logs may have it, and may need its vote for a majority. A candidate counts
        the vote only if its own log has the Join.
        """
        mine = self.members.get(self.identity.replica)
        return self.may_vote or (mine is not None and mine.token == self.identity.token)

    def counts(self, name: str) -> bool:
        """Return whether `name` votes and counts for commits."""
        member = self.members.get(name)
        return member.votes if member is not None else not self.is_founded

    def address(self, name: str) -> str:
        """Return the Raft address of `name`; "" for the configured one."""
        member = self.members.get(name)
        return member.raft if member is not None else ""

    def stands_for(self, name: str, token: int) -> bool:
        """Return whether the disk `token` represents `name`, or the cell is not founded yet."""
        member = self.members.get(name)
        return member.token == token if member is not None else not self.is_founded

    def has_quorum(self, granted: set[str]) -> bool:
        """Return whether the votes of `granted` elect a leader. A new cell needs all votes."""
        if not self.is_founded:
            return granted.issuperset(self.ids)
        return sum(self.counts(name) for name in granted) * 2 > len(self.electors)


def change_in(command: bytes, index: int) -> Change:
    """Return the change of members that `command` contains.

    Raises:
        UnknownFormat: this version does not know it.
    """
    envelope = unseal(command)
    try:
        return decode_change(envelope.entry if envelope is not None else b"")
    except msgspec.DecodeError as error:
        raise UnknownFormat(f"entry {index} changes members in an unknown way: {error}") from error


# --- as far as it is committed


class MemberState:
    """The members after the last applied entry, and whether this disk is one of them."""

    def __init__(self, replica: str) -> None:
        self._replica = replica
        self._token = 0
        self._joins = False
        self._members: Members = {}

    def start(self, membership_log: MembershipLog) -> None:
        """Set this disk's token."""
        self._token = membership_log.identity.token
        self._joins = membership_log.identity.joins

    @property
    def may_vote(self) -> bool:
        """Return whether this disk is, or may become, a member after the last applied entry."""
        mine = self._members.get(self._replica)
        if mine is None or mine.token != self._token:
            return not self._joins
        return mine.votes

    def restore(self, members: bytes) -> None:
        """Replace the members by those of a dump."""
        self._members = decode_members(members) if members else {}

    def apply(self, change: Change) -> MemberView | ConsensusError:
        """Apply a committed change. Return the changed member, or why nothing changed.

        Raises:
            Replaced: another disk has replaced this one.
        """
        before, self._members = self._members, change_members(self._members, change)
        mine, was = self._members.get(self._replica), before.get(self._replica)
        if was is not None and mine is not None and was.token == self._token != mine.token:
            raise Replaced(
                f"{self._replica} was replaced: it is at incarnation {mine.number} now, and this"
                f" data directory is incarnation {was.number}",
            )
        name = getattr(change, "replica", self._replica)
        if self._members == before or name not in self._members:
            return ChangeRefused("the members changed meanwhile; look at them and try again")
        return view(self._members[name])

    def views(self) -> dict[str, MemberView]:
        """Return the members by id, as reported to the log's user."""
        return {name: view(member) for name, member in sorted(self._members.items())}


def view(member: Member) -> MemberView:
    """Return the reported view of `member`."""
    member_state: Literal["open", "joining", "votes"] = "joining" if member.token else "open"
    return MemberView(
        member.number,
        "votes" if member.votes else member_state,
        member.raft,
        member.about,
        member.is_new,
    )
