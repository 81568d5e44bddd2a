"""Acts on launches and dead letters: stop, launch again, forget."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from cron.api import table as t
from cron.api.dead import DeadChange, DeadQuery
from cron.api.launches import KillRequest
from cron.web.console.page_request import PageRequest
from cron.web.console.plans import BY, Act, Plan, kept, plan_of

_DEAD_FIELDS: Final = (
    "launch", "jobs", "queue", "key", "tenant", "pool", "reason", "everything",
)  # fmt: skip
NOT_POSSIBLE_SHOWN: Final = 20


async def _killing(asked: PageRequest) -> Plan:
    text = "The launch is cancelled. If it runs, it gets TERM, and KILL after a grace period."
    return plan_of(asked, "launch", "Stop a launch", text, "Stop it", is_danger=True)


async def _kill(asked: PageRequest) -> tuple[int, str]:
    launch = asked.form.get("launch", "")
    await asked.ask(t.KILL, KillRequest(launch=launch, by=BY))
    return 1, ""


def dead_query(fields: dict[str, str]) -> DeadQuery:
    """Return which dead letters the fields of a form or query mean."""
    said: dict[str, Any] = {name: fields.get(name, "").strip() for name in _DEAD_FIELDS[:-1]}
    return DeadQuery(**said)


def _dead_changes(asked: PageRequest, *, is_dry_run: bool) -> list[DeadChange]:
    """Return the changes of a form: one for each letter that is ticked, or one for its filter."""
    ticked = asked.chosen("launch")
    queries = [DeadQuery(launch=one) for one in ticked] or [dead_query(asked.form)]
    is_everything = not ticked and asked.form.get("everything") == "1"
    return [
        DeadChange(query=one, is_dry_run=is_dry_run, by=BY, is_everything=is_everything)
        for one in queries
    ]


def _dead(
    name: str, text: str, button: str, *, is_drop: bool
) -> tuple[
    Callable[[PageRequest], Awaitable[Plan]], Callable[[PageRequest], Awaitable[tuple[int, str]]]
]:
    rpc = t.DROP_DEAD if is_drop else t.REDRIVE

    async def plan(asked: PageRequest) -> Plan:
        launches: list[str] = []
        left_alone: list[str] = []
        told: list[str] = []
        left = 0
        for change in _dead_changes(asked, is_dry_run=True):
            outcome = await asked.ask(rpc, change)
            launches += outcome.launches
            left_alone += outcome.kept
            left += outcome.left
            told += outcome.notes
        notes = told[:NOT_POSSIBLE_SHOWN] + [
            f"Not possible: {one}" for one in left_alone[:NOT_POSSIBLE_SHOWN]
        ]
        if left:
            notes.append(f"{left:,} more fit; repeat it for them.")
        return Plan(
            title=name,
            text=text,
            button=button,
            items=launches,
            count=len(launches),
            notes=notes,
            fields=kept(asked, *_DEAD_FIELDS),
            is_danger=is_drop,
        )

    async def act(asked: PageRequest) -> tuple[int, str]:
        changes = _dead_changes(asked, is_dry_run=False)
        return sum([len((await asked.ask(rpc, one)).launches) for one in changes]), ""

    return plan, act


ACTS: Final = {
    "kill": Act(_killing, _kill, t.KILL, ("launch is being stopped", "launches are being stopped")),
    "redrive": Act(
        *_dead("Launch again", "These launches become due again.", "Launch again", is_drop=False),
        t.REDRIVE,
        ("launch is due again", "launches are due again"),
    ),
    "drop": Act(
        *_dead("Forget", "These dead letters are forgotten for good.", "Forget", is_drop=True),
        t.DROP_DEAD,
        ("dead letter was forgotten", "dead letters were forgotten"),
    ),
}
