"""Files that are applied as a whole: what they change is made of State, and made anew if others
have changed the same meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from cron.errors import CronError, InvalidInput, RevisionConflict
from cron.service.replica import Replica
from cron.state.commands import Command
from cron.state.outcome import Verdict

ATTEMPTS: Final = 5
"""How often a change is made anew because others changed the same meanwhile."""


async def apply(
    replica: Replica,
    build: Callable[[], Command | None],
    what: str,
    refusals: Mapping[Verdict, CronError],
) -> None:
    """Commit the command that `build` makes of State, None for no change. `what` names in errors
    what is changed; `refusals` has the errors of verdicts of which more can be said.

    Raises:
        RevisionConflict: others change the same again and again. CronError: it is refused.
    """
    for _ in range(ATTEMPTS):
        command = build()
        if command is None:
            return
        _, results = await replica.leader.append(command)
        verdict = results[0].verdict
        if verdict is Verdict.ACCEPTED:
            return
        if verdict in refusals:
            raise refusals[verdict]
        if verdict is not Verdict.STALE_REVISION:
            raise InvalidInput(f"the {what} are refused: {verdict.label}; nothing was changed")
    raise RevisionConflict(f"the {what} were changed by others again and again", "try again")
