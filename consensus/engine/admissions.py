"""How a new disk becomes a member: the leader's rules for Replace, Admit and Join.

The leader sends the log to a new disk as to every follower, but keeps its match index apart from
those of the voters, so that it does not count for commits. Once the disk has everything that was
committed when the leader first heard from it, it may join.
"""

from __future__ import annotations

from collections.abc import Callable

from consensus.engine.membership import Admit, Change, Join, Replace
from consensus.engine.membership_log import MembershipLog
from consensus.engine.network.wire import Hello, Welcome
from consensus.errors import ChangeRefused

Peer = Callable[[str], Hello | Welcome | None]


class Admissions:
    """What a leader knows about disks that do not vote yet. Used in the tick thread."""

    def __init__(self, membership_log: MembershipLog) -> None:
        self._membership_log = membership_log
        self._learned: dict[str, int] = {}
        self._goals: dict[str, int] = {}

    def reset(self) -> None:
        """Forget everything at the start of a leadership."""
        self._learned.clear()
        self._goals.clear()

    def learned(self, name: str) -> int:
        """Return the match index of `name`."""
        return self._learned.get(name, 0)

    def note(self, name: str, index: int) -> None:
        """Record that the log of `name` equals this log up to `index`."""
        self._learned[name] = max(self.learned(name), index)

    def forget(self, name: str) -> None:
        """Forget `name`: another disk represents it, or its disk votes now."""
        self._learned.pop(name, None)
        self._goals.pop(name, None)

    def next_change(self, commit: int, peer: Peer) -> Change | None:
        """Return the change of members to append now; everything up to `commit` is committed."""
        members = self._membership_log.members
        for name, member in sorted(
            members.items(), key=lambda item: (bool(item[1].token), item[0])
        ):
            if not member.token:
                caller = peer(name)
                # It may have a number from an Admit that was truncated when its leader died.
                if caller is not None and caller.joins and caller.token not in member.past:
                    return Admit(name, member.number, caller.token)
            elif not member.votes and self.learned(name) >= self._goals.setdefault(name, commit):
                return Join(name, member.number)
        return None

    def replacement(
        self, name: str, raft: str, about: str, *, leader: str, reached: set[str]
    ) -> Replace:
        """Return the change that excludes the present disk of `name`; `reached` are the voters that
        answered recently.

        Raises:
            ChangeRefused: the change is not possible now, or a majority could not commit it.
        """
        members = self._membership_log.members
        if name not in members:
            known = ", ".join(sorted(members)) or "none yet"
            raise ChangeRefused(f"no replica {name!r} in this cell; there are {known}")
        if name == leader:
            raise ChangeRefused(f"{name} leads this cell; stop it first, then replace it")
        left = {n for n in reached | {leader} if n != name and self._membership_log.counts(n)}
        if len(left) * 2 <= len(self._membership_log.ids):
            raise ChangeRefused(
                f"without {name} only {', '.join(sorted(left))} would be left to agree, which is"
                f" no majority of {len(self._membership_log.ids)}; bring another replica back first"
            )
        return Replace(name, members[name].number + 1, raft, about)
