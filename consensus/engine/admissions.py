"""How a new disk becomes a member: a leader's rules for Replace, Admit and Join.

A newcomer is sent the log like everybody, and what it holds is noted apart from what voters hold:
it moves no commit. Once it has all that was committed when it was first heard of, it may join.
"""

from __future__ import annotations

from collections.abc import Callable

from consensus.engine.membership import Admit, Change, Join, Member, Replace
from consensus.engine.network.wire import Hello, Welcome
from consensus.engine.roster import Roster, newcomers, open_places
from consensus.errors import ChangeRefused

Peer = Callable[[str], Hello | Welcome | None]


class Admissions:
    """What a leader knows of the disks that do not vote yet. In the tick thread."""

    def __init__(self, roster: Roster) -> None:
        self._roster = roster
        self._learned: dict[str, int] = {}
        self._goals: dict[str, int] = {}

    def reset(self) -> None:
        """Start a leadership: nothing is known."""
        self._learned.clear()
        self._goals.clear()

    def learned(self, name: str) -> int:
        """Return up to which index the log of `name` is known to equal ours."""
        return self._learned.get(name, 0)

    def note(self, name: str, index: int) -> None:
        """Note that the log of `name` equals ours up to `index`."""
        self._learned[name] = max(self.learned(name), index)

    def forget(self, name: str) -> None:
        """Drop what is known: another disk stands for `name`, or it votes."""
        self._learned.pop(name, None)
        self._goals.pop(name, None)

    def next_change(self, commit: int, peer: Peer) -> Change | None:
        """Return what should be appended now, with everything up to `commit` committed."""
        members = self._roster.members
        for name, member in open_places(members):
            caller = peer(name)
            # It may have a number: from an Admit that was cut off again, as its leader died.
            if caller is not None and caller.joins and caller.token not in member.past:
                return Admit(name, member.number, caller.token)
        for name, member in newcomers(members):
            goal = self._goals.setdefault(name, commit)
            if self.learned(name) >= goal:
                return Join(name, member.number)
        return None

    def replacement(
        self, name: str, raft: str, about: str, *, leader: str, reached: set[str]
    ) -> Replace:
        """Return the change that shuts the present disk of `name` out; `reached` are the voters
        that answered lately.

        Raises:
            ChangeRefused: it does not fit, or the cell could not agree on it.
        """
        members = self._roster.members
        if name not in members:
            known = ", ".join(sorted(members)) or "none yet"
            raise ChangeRefused(f"no replica {name!r} in this cell; there are {known}")
        if name == leader:
            raise ChangeRefused(f"{name} leads this cell; stop it first, then replace it")
        left = {n for n in reached | {leader} if n != name and self._roster.counts(n)}
        if len(left) * 2 <= len(self._roster.ids):
            raise ChangeRefused(
                f"without {name} only {', '.join(sorted(left))} would be left to agree, which is"
                f" no majority of {len(self._roster.ids)}; bring another replica back first"
            )
        return Replace(name, members[name].number + 1, raft, about)


def is_settled(changed_at: int, noop_at: int | None, commit: int) -> bool:
    """Whether the next change of members may be appended: the last one is committed, and so is an
    entry of the leader's own term (Raft thesis 4.1, and its erratum of 2015)."""
    return noop_at is not None and noop_at <= commit and changed_at <= commit


def describe(member: Member) -> tuple[str, str]:
    """Return the standing of `member`, and in words what it waits for."""
    if member.votes:
        return "votes", ""
    if member.token:
        return "joining", "has not got all that is committed yet"
    return "open", "no disk has asked for this place yet"
