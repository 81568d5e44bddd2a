"""Peer admission: which peers this replica accepts, and how it introduces itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from consensus.config import EngineConfig
from consensus.engine.membership import REPLACED, UNKNOWN, WAIT, judge, judge_life
from consensus.engine.membership_log import MembershipLog
from consensus.engine.network.wire import PROTOCOL, PROTOCOL_LEAST, Goodbye, Hello, Welcome
from consensus.errors import Replaced

_STRANGE_HINT: Final = (
    "if its disk was lost or replaced: `raftcron replica replace {name}` while the others have a"
    " leader, then --join here instead of --bootstrap; if they have none, because most disks were"
    " lost: `raftcron restore`, with --from-data from one that is left; if its data is elsewhere"
    " (another folder, a disk that is not mounted): start it there, without --bootstrap; if this is"
    " another machine with a copied configuration: give it an id of its own; for a new cell: name"
    " its own peers"
)
"""Hints for a `--bootstrap` that the cell refuses: it knows the id with another disk."""
_NO_MEMBER_HINT: Final = (
    "if it is to join that cell: `raftcron cell grow {name}` on the living, then --join here"
    " instead of --bootstrap; for a new cell: name its own peers"
)
"""Hints for a `--bootstrap` that the cell refuses: it does not know the id."""


class Gatekeeper:
    """Decides by the members in the log. `committed` returns the commit index: only a committed
    replacement excludes the old disk for good; before that, only a leader (`leads`) refuses it.
    `refusal` is the last refusal of a peer, as text.
    """

    def __init__(self, config: EngineConfig, membership_log: MembershipLog) -> None:
        self.committed: Callable[[], int] = lambda: 0
        self.leads: Callable[[], bool] = lambda: False
        self.caller_gone: Callable[[str], None] = lambda _: None
        self.on_address: Callable[[str, str], None] = lambda *_: None
        self.refusal = ""
        self._config = config
        self._membership_log = membership_log

    def hello(self, to: str) -> Hello:
        """Return this replica's Hello for the peer `to`."""
        mine = self._membership_log.identity
        return Hello(
            PROTOCOL,
            PROTOCOL_LEAST,
            self._config.cell,
            self._config.replica,
            to,
            self._membership_log.number,
            mine.token,
            mine.joins,
            self._membership_log.address(self._config.replica),
            self._membership_log.life,
            self._membership_log.ids,
        )

    def welcome(self, to: str, protocol: int) -> Welcome:
        """Return this replica's Welcome for the peer `to`, which dialled."""
        mine = self._membership_log.identity
        number, life = self._membership_log.number, self._membership_log.life
        ids = self._membership_log.ids
        return Welcome(protocol, self._config.replica, number, mine.token, mine.joins, life, ids)

    def judge(self, caller: Hello | Welcome) -> Goodbye | None:
        """Return why `caller` is refused; None if it is accepted. An accepted caller with newer
        knowledge of its address is dialled there from now on.
        """
        refusal = self._refusal(caller)
        if refusal is None and isinstance(caller, Hello) and caller.address:
            known = self._membership_log.members.get(caller.sender)
            if known is None or known.number < caller.number:
                self.on_address(caller.sender, caller.address)
        return refusal

    def _refusal(self, caller: Hello | Welcome) -> Goodbye | None:
        foreign = judge_life(self._membership_log.life, self._membership_log.members, caller)
        goodbye = judge(self._membership_log.members, caller)
        if goodbye is None:
            return foreign
        by_commit = judge(self._membership_log.at(self.committed()), caller)
        may_lead = by_commit is None or by_commit.reason == WAIT
        if may_lead and foreign is None and caller.number and not self.leads():
            # The caller's own log admits it. Our log may lack that entry, or have entries that were
            # truncated elsewhere. The caller may lead in a newer term, and a refusal would hide it
            # from us (Raft thesis 4.2.2). Its votes and its match index do not count here.
            return None
        if goodbye.reason not in (REPLACED, UNKNOWN):
            return goodbye
        if by_commit is not None and by_commit.reason == goodbye.reason:
            return goodbye
        return Goodbye(WAIT, goodbye.number, goodbye.text)

    def refused(self, by: str, goodbye: Goodbye) -> None:
        """Record that the peer `by` refuses this replica.

        Raises:
            Replaced: another disk has replaced this one; the replica must stop.
        """
        self.refusal = f"{by}: {goodbye.text}"
        mine = self._membership_log.number
        outlived = goodbye.reason == REPLACED and goodbye.number > mine
        is_strange = (
            goodbye.reason == UNKNOWN and not mine and not self._membership_log.identity.joins
        )
        if outlived:
            raise Replaced(goodbye.text)
        if is_strange:
            hint = _STRANGE_HINT if goodbye.number else _NO_MEMBER_HINT
            raise Replaced(goodbye.text, hint.format(name=self._config.replica))
