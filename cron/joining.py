"""Reports the progress of a replica that does not vote yet, in the log and on a terminal."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final, Protocol

import structlog

from consensus.cell import Joining, MemberView
from cron.progress import describe_progress

_log = structlog.get_logger()

LOOK_S: Final = 0.5
LOG_LOOKS: Final = 20
"""How many checks pass between two log lines of one stage; a terminal gets a line at each check."""
SAID_MAX: Final = 1_000


class JoiningLog(Protocol):
    """The part of the replicated log that this module uses."""

    @property
    def members(self) -> Mapping[str, MemberView]:
        """The ids of the cell."""

    @property
    def joining(self) -> Joining | None:
        """Return the progress of this replica; None once it votes."""


async def watch_joining(
    log: JoiningLog,
    replica: str,
    say: Callable[[str], None],
    *,
    is_new: bool,
    look_s: float = LOOK_S,
) -> None:
    """Report the progress of `replica` until it votes; return silently if it votes already.

    A new disk (`is_new`) is reported even if it votes at the first check."""
    reporter, begun = _Reporter(replica, say), is_new
    while True:
        joining, member = log.joining, log.members.get(replica)
        # The engine reads its log; State knows the incarnation once that entry is applied.
        if joining is None and (
            not begun or (member is not None and member.member_state == "votes")
        ):
            break
        if joining is not None:
            begun = True
            reporter.report(joining)
        await asyncio.sleep(look_s)
    if begun and member is not None:
        say(f"{replica} votes from now on (incarnation {member.incarnation})")
        _log.info("replica.votes", incarnation=member.incarnation)


class _Reporter:
    """Reports each message once; several refusing peers alternate."""

    def __init__(self, replica: str, say: Callable[[str], None]) -> None:
        self._replica = replica
        self._say = say
        self._said: set[str] = set()
        self._stage = ""
        self._looks = 0

    def report(self, joining: Joining) -> None:
        is_next = joining.stage != self._stage
        self._stage = joining.stage
        self._looks = 0 if is_next else self._looks + 1
        if is_next or len(self._said) >= SAID_MAX:
            self._said.clear()
        line = f"{self._replica} {describe_progress(joining)}"
        if line in self._said:
            return
        self._said.add(line)
        self._say(line)
        if is_next or joining.stage == "waiting" or self._looks % LOG_LOOKS == 0:
            _log.info(
                "replica.joining",
                stage=joining.stage,
                done=joining.done,
                goal=joining.goal,
                waits_for=joining.text,
            )
