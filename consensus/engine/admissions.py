"""How a new disk becomes a member: the leader's rules for Replace, Add, Admit and Join.

The leader sends the log to a new disk as to every follower, but keeps its match index apart from
those of the voters, so that it does not count for commits. Once the disk has everything that was
committed when the leader first heard from it, it may join, provided that it still answers: the cell
may need it from then on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from consensus.engine.membership import Add, Admit, Change, Join, Replace
from consensus.engine.membership_log import MembershipLog
from consensus.engine.network.wire import Hello, Welcome
from consensus.errors import ChangeRefused

Peer = Callable[[str], Hello | Welcome | None]
MEMBERS_MAX: Final = 5
"""With more replicas, each entry costs more and no more is survived than the loss of two."""


class Admissions:
    """What a leader knows about disks that do not vote yet. Used in the tick thread."""

    def __init__(self, membership_log: MembershipLog) -> None:
        self._membership_log = membership_log
        self._learned: dict[str, int] = {}
        self._heard_s: dict[str, float] = {}
        self._goals: dict[str, int] = {}

    def reset(self) -> None:
        """Forget everything at the start of a leadership."""
        self._learned.clear()
        self._heard_s.clear()
        self._goals.clear()

    def learned(self, name: str) -> int:
        """Return the match index of `name`."""
        return self._learned.get(name, 0)

    def note(self, name: str, index: int) -> None:
        """Record that the log of `name` equals this log up to `index`."""
        self._learned[name] = max(self.learned(name), index)

    def heard_s(self, name: str) -> float:
        """Return when the newest message was sent that the disk of `name` answered."""
        return self._heard_s.get(name, float("-inf"))

    def note_answer(self, name: str, sent_s: float) -> None:
        """Record that the disk of `name` answered a message that was sent at `sent_s`."""
        self._heard_s[name] = max(self.heard_s(name), sent_s)

    def forget(self, name: str) -> None:
        """Forget `name`: another disk represents it, or its disk votes now."""
        self._learned.pop(name, None)
        self._heard_s.pop(name, None)
        self._goals.pop(name, None)

    def next_change(self, commit: int, peer: Peer, *, since_s: float) -> Change | None:
        """Return the change of members to append now; everything up to `commit` is committed, and
        who answered a message sent after `since_s` is reached.
        """
        members = self._membership_log.members
        for name, member in sorted(
            members.items(), key=lambda item: (bool(item[1].token), item[0])
        ):
            if not member.token:
                caller = peer(name)
                # It may have a number from an Admit that was truncated when its leader died.
                if caller is not None and caller.joins and caller.token not in member.past:
                    return Admit(name, member.number, caller.token)
            elif (
                not member.votes
                and self.learned(name) >= self._goals.setdefault(name, commit)
                and self.heard_s(name) > since_s
            ):
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
        old = members[name]
        if not old.token and raft in ("", old.raft) and about in ("", old.about):
            raise ChangeRefused(f"{name} waits for a new disk already (incarnation {old.number})")
        if name == leader:
            raise ChangeRefused(f"{name} leads this cell; stop it first, then replace it")
        left = {n for n in reached | {leader} if n != name and self._membership_log.counts(n)}
        if len(left) * 2 <= len(self._membership_log.electors):
            raise ChangeRefused(
                f"without {name} only {', '.join(sorted(left))} would be left to agree, which is"
                f" no majority of {len(self._membership_log.electors)}; bring another replica back"
                " first"
            )
        return Replace(name, old.number + 1, raft, about)

    def addition(self, name: str, *, leader: str, reached: set[str], peer: Peer) -> Add:
        """Return the change that adds the id `name`; `reached` are the voters that answered
        recently. All replicas must know the id: one that does not would stop when it reads of it.

        Raises:
            ChangeRefused: the change is not possible now.
        """
        members = self._membership_log.members
        if name in members:
            raise ChangeRefused(f"{name} is a replica of this cell already")
        if waiting := sorted(one for one, member in members.items() if not member.votes):
            raise ChangeRefused(f"{waiting[0]} does not vote yet; replicas are added one by one")
        if len(members) >= MEMBERS_MAX:
            raise ChangeRefused(f"a cell has at most {MEMBERS_MAX} replicas")
        known = {leader: self._membership_log.ids}
        for other in sorted(members.keys() - {leader}):
            caller = peer(other)
            if other not in reached or caller is None:
                raise ChangeRefused(f"{other} does not answer; all replicas must know {name} first")
            known[other] = caller.peers
        if missing := [one for one, ids in sorted(known.items()) if name not in ids]:
            raise ChangeRefused(
                f"`peers` of {', '.join(missing)} lacks {name}; write it there and restart that"
                " replica"
            )
        return Add(name)
