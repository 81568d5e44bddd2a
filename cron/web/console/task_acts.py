"""Acts on tasks and their groups: cancel, run now, reschedule, close a group, cancel a group."""

from __future__ import annotations

from typing import Final

import msgspec

from cron.api import table as t
from cron.api.groups import CancelGroupRequest, CloseGroupRequest, GroupQuery
from cron.api.tasks import CancelRequest, RescheduleRequest, TaskNames, TasksReport
from cron.errors import InvalidInput
from cron.scopes import PRIORITIES
from cron.web.console.page_request import PageRequest
from cron.web.console.plans import BY, Act, Plan, kept, names_in, number_in, plan_of, utc_s
from cron.web.console.texts import instant

_REVISION_MAX: Final = 1 << 62
_MOVE_FIELDS: Final = ("task", "revision", "at", "priority")


def _cancel_plan(
    asked: PageRequest, field: str, title: str, text: str, report: TasksReport
) -> Plan:
    """Return the plan of a cancel, of which a dry run has told what it would do."""
    return Plan(
        title=title,
        text=f"{text} are cancelled. A task that runs is asked to stop.",
        button="Cancel them",
        items=[one.task for one in report.tasks],
        count=report.count,
        notes=[f"Not possible: {one.task}: {one.error.message}" for one in report.errors],
        fields=kept(asked, field),
        is_danger=True,
    )


async def _cancelling(asked: PageRequest) -> Plan:
    names = names_in(asked, "task")
    report = await asked.ask(t.CANCEL, CancelRequest(names=names, is_dry_run=True, by=BY))
    return _cancel_plan(asked, "task", "Cancel tasks", "These tasks", report)


async def _cancel(asked: PageRequest) -> tuple[int, str]:
    request = CancelRequest(names=names_in(asked, "task"), by=BY)
    return (await asked.ask(t.CANCEL, request)).count, ""


async def _hurrying(asked: PageRequest) -> Plan:
    text = "These tasks become due now, if they still wait."
    return plan_of(asked, "task", "Run tasks now", text, "Run them now")


async def _hurry(asked: PageRequest) -> tuple[int, str]:
    request = TaskNames(names=names_in(asked, "task"), by=BY)
    return (await asked.ask(t.RUN_NOW, request)).count, ""


def _move(asked: PageRequest) -> RescheduleRequest:
    at = asked.form.get("at", "").strip()
    return RescheduleRequest(
        name=asked.form.get("task", ""),
        revision=number_in(asked, "revision", 0, _REVISION_MAX),
        at_ms=utc_s(at, "time") * 1000 if at else 0,
        priority=number_in(asked, "priority", -1, PRIORITIES - 1),
        by=BY,
    )


async def _moving(asked: PageRequest) -> Plan:
    request = _move(asked)
    if not request.has_time and request.priority < 0:
        raise InvalidInput("nothing is to change", "say another time or priority")
    notes = []
    if request.at_ms:
        is_past = request.at_ms <= asked.now_ms
        due = "now: the time is over already" if is_past else f"{instant(request.at_ms)} UTC"
        notes.append(f"Due: {due}.")
    if request.priority >= 0:
        notes.append(f"Priority: {request.priority}, 0 is first.")
    return Plan(
        title="Reschedule a task",
        text="The task gets another time or priority, if nobody changed it meanwhile.",
        button="Reschedule",
        items=[request.name],
        count=1,
        notes=notes,
        fields=kept(asked, *_MOVE_FIELDS),
    )


async def _reschedule(asked: PageRequest) -> tuple[int, str]:
    await asked.ask(t.RESCHEDULE, _move(asked))
    return 1, ""


# ---- groups


async def _closing(asked: PageRequest) -> Plan:
    name = names_in(asked, "group")[0]
    group = await asked.ask(t.GET_GROUP, GroupQuery(name=name))
    open_tasks = group.waiting + group.running
    return Plan(
        title="Close a group",
        text="The group takes no more tasks. Those that it has go on; what follows the group may "
        "begin once all of them are over.",
        button="Close it",
        items=[group.group] if group.state == "open" else [],
        count=1,
        notes=[f"{open_tasks:,} of its tasks are not over."],
        fields=kept(asked, "group"),
    )


async def _close(asked: PageRequest) -> tuple[int, str]:
    name = names_in(asked, "group")[0]
    await asked.ask(t.CLOSE_GROUP, CloseGroupRequest(name=name, by=BY))
    return 1, ""


async def _cancelling_group(asked: PageRequest) -> Plan:
    name = names_in(asked, "group")[0]
    request = CancelGroupRequest(name=name, is_dry_run=True, by=BY)
    report = await asked.ask(t.CANCEL_GROUP, request)
    text = "The group is closed, and its tasks that are not over"
    plan = _cancel_plan(asked, "group", "Cancel a group", text, report)
    if not report.next:
        return plan
    group = await asked.ask(t.GET_GROUP, GroupQuery(name=name))
    return msgspec.structs.replace(plan, count=group.waiting + group.running)


async def _cancel_group(asked: PageRequest) -> tuple[int, str]:
    name = names_in(asked, "group")[0]
    count, page = 0, ""
    while True:
        request = CancelGroupRequest(name=name, page=page, by=BY)
        report = await asked.ask(t.CANCEL_GROUP, request)
        count, page = count + report.count, report.next
        if not page:
            return count, ""


ACTS: Final = {
    "cancel": Act(
        _cancelling, _cancel, t.CANCEL, ("task was cancelled", "tasks were cancelled")
    ),
    "hurry": Act(_hurrying, _hurry, t.RUN_NOW, ("task is due now", "tasks are due now")),
    "reschedule": Act(
        _moving, _reschedule, t.RESCHEDULE, ("task was rescheduled", "tasks were rescheduled")
    ),
    "close-group": Act(
        _closing, _close, t.CLOSE_GROUP, ("group was closed", "groups were closed")
    ),
    "cancel-group": Act(
        _cancelling_group, _cancel_group, t.CANCEL_GROUP,
        ("task was cancelled", "tasks were cancelled"),
    ),
}  # fmt: skip
