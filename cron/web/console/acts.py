"""What a form changes: each act shows its plan first, and is done when the plan is confirmed.

A plan is made from the form's fields alone, and its own form has the same fields again. So nothing
is kept between the two, and any replica can take the second.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode, urlsplit

import msgspec

from cron.api import table as t
from cron.api.checks import named_pattern
from cron.api.dead import DeadChange, DeadQuery
from cron.api.executors import DrainRequest
from cron.api.gates import GateOpening
from cron.api.jobs import PauseRequest, ResumeRequest
from cron.api.launches import BackfillRequest, KillRequest, TriggerRequest
from cron.api.tasks import CancelRequest, TaskNames
from cron.errors import InvalidInput
from cron.web.console.page_request import PageRequest
from cron.web.console.texts import HOUR_S, instant, launch_link

BY: Final = "console"
"""Who makes a change where nobody is asked who they are; else the proven name replaces it."""
AT_ONCE_MAX: Final = 200
SHOWN_MAX: Final = 200
_ID_BYTES: Final = 8


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What an act would do: to which `items`, of `count`. `fields` are what its form has again."""

    title: str
    text: str
    button: str
    items: list[str] = []
    count: int = 0
    notes: list[str] = []
    fields: list[tuple[str, str]] = []
    is_danger: bool = False


class Act(msgspec.Struct, frozen=True):
    """An act: `plan` returns what it would do, `do` does it and returns how many things it changed,
    and to which page it leads; "" for the page that it came from."""

    plan: Callable[[PageRequest], Awaitable[Plan]]
    do: Callable[[PageRequest], Awaitable[tuple[int, str]]]
    done: str


def _names(asked: PageRequest, field: str) -> list[str]:
    names = list(dict.fromkeys(one for one in asked.chosen(field) if one))
    if not names:
        raise InvalidInput("nothing is chosen", "tick at least one row")
    if len(names) > AT_ONCE_MAX:
        raise InvalidInput(f"{len(names)} are chosen, at most {AT_ONCE_MAX} at once")
    return names


def _planned(asked: PageRequest, *names: str) -> list[tuple[str, str]]:
    """Return the fields of the form that an act reads."""
    return [(name, value) for name, value in asked.fields if name in names]


def _plan_of(asked: PageRequest, field: str, title: str, text: str, button: str) -> Plan:
    """Return the plan of an act that needs nothing but the names that were chosen."""
    names, fields = _names(asked, field), _planned(asked, field)
    return Plan(title=title, text=text, button=button, items=names, count=len(names), fields=fields)


def utc_s(text: str, what: str) -> int:
    """Return a time that a form has, such as 2026-11-20T15:00, in seconds; it is in UTC.

    Raises:
        InvalidInput: it is none.
    """
    try:
        return int(datetime.fromisoformat(text.strip()).replace(tzinfo=UTC).timestamp())
    except (ValueError, OverflowError) as error:
        text = f"{what} {text[:40]!r} is not a time"
        raise InvalidInput(text, "such as 2026-11-20T15:00, in UTC") from error


# ---- jobs


async def _pausing(asked: PageRequest) -> Plan:
    names, form = _names(asked, "job"), asked.form
    until_ms = _until_ms(asked)
    until = f"until {instant(until_ms)} UTC" if until_ms else "until somebody resumes them"
    reason = form.get("reason", "")
    return Plan(
        title="Pause jobs",
        text=f"These jobs are paused {until}. Their instants are skipped; what runs goes on.",
        button="Pause",
        items=names,
        count=len(names),
        notes=[f"Reason: {reason}"] if reason else ["No reason is given."],
        fields=_planned(asked, "job", "reason", "hours"),
    )


def _until_ms(asked: PageRequest) -> int:
    hours = asked.form.get("hours", "")
    if not hours:
        return 0
    if not hours.isdecimal() or not 0 < int(hours) <= 8_784:
        raise InvalidInput(f"hours {hours[:20]!r} is not a number from 1 to 8784")
    return asked.now_ms + int(hours) * HOUR_S * 1000


async def _pause(asked: PageRequest) -> tuple[int, str]:
    reason, until_ms, count = asked.form.get("reason", ""), _until_ms(asked), 0
    for name in _names(asked, "job"):
        request = PauseRequest(pattern=named_pattern(name), reason=reason, until_ms=until_ms, by=BY)
        count += len((await asked.ask(t.PAUSE, request)).changed)
    return count, ""


async def _resuming(asked: PageRequest) -> Plan:
    text = "These jobs are launched again from their next instant on."
    return _plan_of(asked, "job", "Resume jobs", text, "Resume")


async def _resume(asked: PageRequest) -> tuple[int, str]:
    count = 0
    for name in _names(asked, "job"):
        request = ResumeRequest(pattern=named_pattern(name), by=BY)
        count += len((await asked.ask(t.RESUME, request)).changed)
    return count, ""


async def _triggering(asked: PageRequest) -> Plan:
    names = _names(asked, "job")
    drawn = secrets.token_hex(_ID_BYTES)
    return Plan(
        title="Launch now",
        text="Each of these jobs is launched once, now, beside its schedule. Its limits hold.",
        button="Launch",
        items=names,
        count=len(names),
        notes=["To send this form twice is to launch once."],
        fields=[*_planned(asked, "job"), ("request", drawn)],
    )


async def _trigger(asked: PageRequest) -> tuple[int, str]:
    names, drawn, launch = _names(asked, "job"), asked.form.get("request", ""), ""
    for number, name in enumerate(names):
        request = TriggerRequest(job=name, request_id=f"{drawn}-{number}", by=BY)
        launch = (await asked.ask(t.TRIGGER, request)).launch
    return len(names), launch_link(launch) if len(names) == 1 else ""


def _backfilled(asked: PageRequest, *, is_dry_run: bool) -> BackfillRequest:
    form = asked.form
    return BackfillRequest(
        job=form.get("job", ""),
        from_s=utc_s(form.get("from", ""), "from"),
        to_s=utc_s(form.get("to", ""), "to"),
        is_dry_run=is_dry_run,
        by=BY,
    )


async def _backfilling(asked: PageRequest) -> Plan:
    report = await asked.ask(t.BACKFILL, _backfilled(asked, is_dry_run=True))
    form = asked.form
    return Plan(
        title="Backfill",
        text=f"These launches of {form['job']} between {form['from']} and {form['to']} UTC were "
        "skipped, lost or failed. They become due again.",
        button="Backfill",
        items=report.launches,
        count=len(report.launches),
        fields=_planned(asked, "job", "from", "to"),
    )


async def _backfill(asked: PageRequest) -> tuple[int, str]:
    report = await asked.ask(t.BACKFILL, _backfilled(asked, is_dry_run=False))
    return len(report.launches), ""


# ---- launches and dead letters


async def _killing(asked: PageRequest) -> Plan:
    launch = asked.form.get("launch", "")
    return Plan(
        title="Stop a launch",
        text="The launch is cancelled: if it runs, it gets TERM, and KILL after a grace.",
        button="Stop it",
        items=[launch],
        count=1,
        fields=_planned(asked, "launch"),
        is_danger=True,
    )


async def _kill(asked: PageRequest) -> tuple[int, str]:
    launch = asked.form.get("launch", "")
    await asked.ask(t.KILL, KillRequest(launch=launch, by=BY))
    return 1, launch_link(launch)


_DEAD_FIELDS: Final = ("launch", "jobs", "tenant", "pool", "reason", "everything")


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
        kept: list[str] = []
        left = 0
        for change in _dead_changes(asked, is_dry_run=True):
            outcome = await asked.ask(rpc, change)
            launches += outcome.launches
            kept += outcome.kept
            left += outcome.left
        notes = [f"Not possible: {one}" for one in kept[:20]]
        if left:
            notes.append(f"{left:,} more fit; repeat it for them.")
        return Plan(
            title=name,
            text=text,
            button=button,
            items=launches,
            count=len(launches),
            notes=notes,
            fields=_planned(asked, *_DEAD_FIELDS),
            is_danger=is_drop,
        )

    async def act(asked: PageRequest) -> tuple[int, str]:
        changes = _dead_changes(asked, is_dry_run=False)
        return sum([len((await asked.ask(rpc, one)).launches) for one in changes]), ""

    return plan, act


# ---- executors, gates, tasks


async def _draining(asked: PageRequest) -> Plan:
    is_over = asked.form.get("over") == "1"
    return Plan(
        title="Give an executor work again" if is_over else "Drain an executor",
        text="It gets work again."
        if is_over
        else "It gets no more work. What runs there goes on to its end.",
        button="End the drain" if is_over else "Drain",
        items=[asked.form.get("executor", "")],
        count=1,
        fields=_planned(asked, "executor", "over"),
    )


async def _drain(asked: PageRequest) -> tuple[int, str]:
    form = asked.form
    request = DrainRequest(
        executor=form.get("executor", ""), is_over=form.get("over") == "1", by=BY
    )
    await asked.ask(t.DRAIN, request)
    return 1, ""


async def _opening(asked: PageRequest) -> Plan:
    names = _names(asked, "gate")
    return Plan(
        title="Open gates",
        text="What these gates hold back may begin again.",
        button="Open",
        items=[f"gate {one}" for one in names],
        count=len(names),
        fields=_planned(asked, "gate"),
    )


async def _open(asked: PageRequest) -> tuple[int, str]:
    numbers = [int(one) for one in _names(asked, "gate") if one.isdecimal() and len(one) < 19]
    report = await asked.ask(t.OPEN_GATES, GateOpening(numbers=numbers, by=BY))
    return len(report.gates), ""


async def _cancelling(asked: PageRequest) -> Plan:
    names = _names(asked, "task")
    report = await asked.ask(t.CANCEL, CancelRequest(names=names, is_dry_run=True, by=BY))
    return Plan(
        title="Cancel tasks",
        text="These tasks are cancelled. A task that runs is asked to stop.",
        button="Cancel them",
        items=[one.task for one in report.tasks],
        count=report.count,
        notes=[f"Not possible: {one.task}: {one.error.message}" for one in report.errors],
        fields=_planned(asked, "task"),
        is_danger=True,
    )


async def _cancel(asked: PageRequest) -> tuple[int, str]:
    request = CancelRequest(names=_names(asked, "task"), by=BY)
    return (await asked.ask(t.CANCEL, request)).count, ""


async def _hurrying(asked: PageRequest) -> Plan:
    text = "These tasks become due now, if they still wait."
    return _plan_of(asked, "task", "Run tasks now", text, "Run them now")


async def _hurry(asked: PageRequest) -> tuple[int, str]:
    request = TaskNames(names=_names(asked, "task"), by=BY)
    return (await asked.ask(t.RUN_NOW, request)).count, ""


ACTS: Final = {
    "pause": Act(_pausing, _pause, "jobs were paused"),
    "resume": Act(_resuming, _resume, "jobs were resumed"),
    "trigger": Act(_triggering, _trigger, "jobs were launched"),
    "backfill": Act(_backfilling, _backfill, "launches are due again"),
    "kill": Act(_killing, _kill, "launches are being stopped"),
    "redrive": Act(
        *_dead("Launch again", "These launches become due again.", "Launch again", is_drop=False),
        "launches are due again",
    ),
    "drop": Act(
        *_dead("Forget", "These dead letters are forgotten for good.", "Forget", is_drop=True),
        "dead letters were forgotten",
    ),
    "drain": Act(_draining, _drain, "executors were changed"),
    "open": Act(_opening, _open, "gates were opened"),
    "cancel": Act(_cancelling, _cancel, "tasks were cancelled"),
    "hurry": Act(_hurrying, _hurry, "tasks are due now"),
}


def with_done(path: str, act: str, count: int) -> str:
    """Return the address of a page that says what an act has done."""
    parts = urlsplit(path)
    query = [(name, one) for name, one in parse_qsl(parts.query) if name not in ("done", "count")]
    return f"{parts.path}?{urlencode([*query, ('done', act), ('count', str(count))])}"


def said_done(query: dict[str, str]) -> str:
    """Return what a page says of an act that led to it, "" for none: fixed words and a number."""
    act, count = ACTS.get(query.get("done", "")), query.get("count", "")
    if act is None or not count.isdecimal() or len(count) > 6:
        return ""
    return f"{int(count):,} {act.done}."
