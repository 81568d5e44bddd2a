"""Whom this replica lets in, and what it says of itself: the transport's Gate."""

from __future__ import annotations

from collections.abc import Callable

from consensus.engine.config import EngineConfig
from consensus.engine.membership import REPLACED, UNKNOWN, WAIT, judge
from consensus.engine.network.wire import PROTOCOL, PROTOCOL_LEAST, Goodbye, Hello, Welcome
from consensus.engine.roster import Roster
from consensus.errors import Replaced


class Gatekeeper:
    """Judges by the roster. `committed` returns the commit index: only a replacement that is
    committed ends the old disk for good; until then only a leader (`leads`) keeps it out.
    `refusal` is what a peer said last, for a person."""

    def __init__(self, config: EngineConfig, roster: Roster) -> None:
        self.committed: Callable[[], int] = lambda: 0
        self.leads: Callable[[], bool] = lambda: False
        self.on_caller_gone: Callable[[str], None] = lambda _: None
        self.refusal = ""
        self._config = config
        self._roster = roster

    def hello(self, to: str) -> Hello:
        """Return what this replica says when it dials `to`."""
        mine = self._roster.identity
        return Hello(
            PROTOCOL,
            PROTOCOL_LEAST,
            self._config.cell,
            self._config.replica,
            to,
            self._roster.number,
            mine.token,
            mine.joins,
        )

    def welcome(self, to: str, protocol: int) -> Welcome:
        """Return what this replica answers `to` who dialled it."""
        mine = self._roster.identity
        number = self._roster.number
        return Welcome(protocol, self._config.replica, number, mine.token, mine.joins)

    def judge(self, caller: Hello | Welcome) -> Goodbye | None:
        """Return why `caller` is refused, None if it is not."""
        goodbye = judge(self._roster.members, caller)
        if goodbye is None or goodbye.reason not in (REPLACED, UNKNOWN):
            return goodbye
        settled = judge(self._roster.at(self.committed()), caller)
        if settled is not None and settled.reason == goodbye.reason:
            return goodbye
        if (
            goodbye.reason == REPLACED
            and not self.leads()
            and not self._roster.counts(caller.sender)
        ):
            # It may lead in a newer term, where its replacement has never been, and have to cut
            # that off here (Raft thesis 4.2.2). What it votes and holds counts for nothing.
            return None
        return Goodbye(WAIT, goodbye.number, goodbye.text)

    def refused(self, by: str, goodbye: Goodbye) -> None:
        """Take note that `by` refuses this replica.

        Raises:
            Replaced: another disk stands for this id; the replica must stop.
        """
        self.refusal = f"{by}: {goodbye.text}"
        mine = self._roster.number
        outlived = goodbye.reason == REPLACED and goodbye.number > mine
        is_strange = goodbye.reason == UNKNOWN and not mine and not self._roster.identity.joins
        if outlived or is_strange:
            raise Replaced(self._config.replica, goodbye.text)

    def caller_gone(self, name: str) -> None:
        """Take note that the connection on which `name` spoke is over."""
        self.on_caller_gone(name)
