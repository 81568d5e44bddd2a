"""The committed members of the cell, on the event loop's side."""

from __future__ import annotations

from typing import Literal

from consensus.cell import MemberView
from consensus.engine.membership import Change, Member, Members, change_members, decode_members
from consensus.engine.roster import Roster
from consensus.errors import ChangeRefused, ConsensusError, Replaced


class Standing:
    """The members after the last applied entry, and whether this disk is one of them."""

    def __init__(self, replica: str) -> None:
        self._replica = replica
        self._token = 0
        self._joins = False
        self._members: Members = {}

    def start(self, roster: Roster) -> None:
        """Set this disk's token."""
        self._token = roster.identity.token
        self._joins = roster.identity.joins

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
                self._replica,
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
    standing: Literal["open", "joining", "votes"] = "joining" if member.token else "open"
    return MemberView(
        member.number, "votes" if member.votes else standing, member.raft, member.about
    )
