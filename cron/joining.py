"""Tells how far a replica has come that does not vote yet: to its log, and to who watches."""

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
"""So many looks between two log lines of one stage; a person is told at each look."""
SAID_MAX: Final = 1_000


class JoiningLog(Protocol):
    """What is asked of the replicated log."""

    @property
    def members(self) -> Mapping[str, MemberView]:
        """The ids of the cell."""

    @property
    def joining(self) -> Joining | None:
        """How far it is; None once it votes."""


async def watch_joining(
    log: JoiningLog, replica: str, say: Callable[[str], None], *, look_s: float = LOOK_S
) -> None:
    """Tell how `replica` joins until it votes; return at once, silently, if it does already."""
    said: set[str] = set()  # peers that refuse take turns: each is quoted once
    stage, looks, begun = "", 0, False
    while (joining := log.joining) is not None:
        is_new = joining.stage != stage
        if is_new or len(said) >= SAID_MAX:
            said.clear()
        stage, begun = joining.stage, True
        line = f"{replica} {describe_progress(joining)}"
        is_news = line not in said
        if is_news:
            said.add(line)
            say(line)
        looks = 0 if is_new else looks + 1
        if is_new or (is_news and (joining.stage == "waiting" or looks % LOG_LOOKS == 0)):
            _log.info(
                "replica.joining",
                stage=joining.stage,
                done=joining.done,
                goal=joining.goal,
                waits_for=joining.text,
            )
        await asyncio.sleep(look_s)
    if begun:
        member = log.members.get(replica)
        number = member.incarnation if member is not None else 0
        say(f"{replica} votes from now on (incarnation {number})")
        _log.info("replica.votes", incarnation=number)
