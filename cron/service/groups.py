"""Groups of tasks: what they count, their close with the task that follows them, their end."""

from __future__ import annotations

import base64
from heapq import nlargest

import msgspec

from cron.access import names_within
from cron.api.groups import (
    CancelGroupRequest,
    CloseGroupRequest,
    GroupListQuery,
    GroupQuery,
    GroupsPage,
    TaskGroupView,
)
from cron.api.tasks import TaskFilter, TaskListQuery, TasksReport, show_iso_ms
from cron.errors import CronError, InvalidInput, OtherContent, UnknownGroup
from cron.pace import in_turns
from cron.service import spilled
from cron.service.replica import Replica
from cron.service.submitting import DONE, Handed, admit, check_handler, read, refuse
from cron.service.tasks import SHOWN_MAX, cancel_page
from cron.state.commands import Command
from cron.state.groups import CloseGroups, GroupClose, GroupRecord
from cron.state.outcome import Verdict
from cron.state.state import State
from cron.state.tasks import defaults_in
from launcher.protocol.names import short_job_name


async def get(replica: Replica, request: GroupQuery) -> TaskGroupView:
    """Return one group.

    Raises:
        UnknownGroup: there is none, or it is forgotten.
    """
    return _known(replica.state, request.name)


async def listed(replica: Replica, query: GroupListQuery) -> GroupsPage:
    """Return a page of groups, the newest first.

    Raises:
        InvalidInput: the page is none.
    """
    state, within = replica.state, names_within(query.within)
    last, tenant = _read_page(query.page) if query.page else None, f"{query.tenant}/"
    fitting = [
        group
        async for group in in_turns(list(state.groups.values()))
        if (not query.tenant or group.name.startswith(tenant))
        and (not query.state or group.state == query.state)
        and (within is None or within(group.name))
        and (last is None or _place(group) < last)
    ]
    found = nlargest(query.limit + 1, fitting, key=_place)
    shown = found[: query.limit]
    after = ""
    if len(found) > len(shown):
        place = msgspec.msgpack.encode((1, *_place(shown[-1])))
        after = base64.urlsafe_b64encode(place).decode()
    return GroupsPage(groups=[_view(state, one) for one in shown], next=after)


async def close(replica: Replica, request: CloseGroupRequest) -> TaskGroupView:
    """Close a group, and submit the task that follows it, if there is one.

    Raises:
        UnknownGroup: there is no such group. OtherContent: another task follows it, or another task
            has this key. InvalidInput, LimitExceeded, NotFound, Unavailable: the task is refused,
            and the group stays as it was.
    """
    name, asked = request.name, request.on_complete
    hook = None
    if asked is not None:
        # As if the group were written there, which State does itself.
        follows = [one for one in asked.after_any if one != name]
        hook = read(msgspec.structs.replace(asked, after_any=[*follows, name]))
    is_within = names_within(request.within)

    def build(state: State, now_ms: int) -> list[Command]:
        if hook is not None:
            admit(replica, state, hook, now_ms)
            if is_within is not None:
                check_handler(state, hook, is_within)
            _raise(hook.error)
        spec = None
        if hook is not None and hook.spec is not None:
            rest = tuple(one for one in hook.spec.after_any if one != name)
            spec = msgspec.structs.replace(hook.spec, after_any=rest)
        defaults = defaults_in(state.format) if spec is not None else None
        return [CloseGroups((GroupClose(name, spec),), request.by, defaults)]

    if hook is not None:
        _raise(hook.error)
    _, results = await replica.leader.submit(build)
    state, verdict = replica.state, Verdict(results[0].items[0])
    if verdict is Verdict.ON_DISK and hook is not None and hook.asked is not None:
        await spilled.bring_back(replica, [hook.name, *hook.asked.follows])
        _, results = await replica.leader.submit(build)
        state, verdict = replica.state, Verdict(results[0].items[0])
    if verdict is Verdict.UNKNOWN_GROUP:
        raise unknown_group(name)
    if verdict not in DONE and hook is not None:
        _refuse_hook(state, name, hook, verdict)
    return _known(state, name)


async def cancel(replica: Replica, request: CancelGroupRequest) -> TasksReport:
    """Close a group and cancel a portion of its tasks that are not over, those that its caller may
    cancel; or say which would be.

    Raises:
        UnknownGroup: there is no such group. As `listed` for a page.
    """
    if request.name not in replica.state.groups:
        raise unknown_group(request.name)
    if not (request.is_dry_run or request.page):
        await replica.leader.append(CloseGroups((GroupClose(request.name),), request.by))
    wanted = TaskFilter(group=request.name, within=request.within)
    query = TaskListQuery(filter=wanted, limit=SHOWN_MAX, page=request.page)
    return await cancel_page(replica, query, request.by, is_dry_run=request.is_dry_run)


def unknown_group(name: str) -> UnknownGroup:
    """Return the error for a group that is not there."""
    return UnknownGroup(
        f"group {short_job_name(name)} does not exist",
        "its first task makes it; one that is complete is forgotten after a day",
    )


def _refuse_hook(state: State, name: str, hook: Handed, verdict: Verdict) -> None:
    group = state.groups.get(name)
    known = state.tasks_by_number.get(group.hook) if group is not None else None
    if verdict is Verdict.OTHER_CONTENT and known is not None:
        text = f"task {short_job_name(known.name)} follows group {short_job_name(name)} already"
        raise OtherContent(text, "a group is followed by one such task; others use after_any")
    hook.verdict = verdict
    refuse(state, hook, state.tasks.get(hook.name), {})
    _raise(hook.error)


def _raise(error: CronError | None) -> None:
    if error is not None:
        raise error


def _known(state: State, name: str) -> TaskGroupView:
    group = state.groups.get(name)
    if group is None:
        raise unknown_group(name)
    return _view(state, group)


def _view(state: State, group: GroupRecord) -> TaskGroupView:
    hook = state.tasks_by_number.get(group.hook) if group.hook else None
    return TaskGroupView(
        group=group.name,
        state=group.state,
        waiting=group.waiting,
        running=group.running,
        done=group.done,
        failed=group.failed,
        dropped=group.dropped,
        created_at=show_iso_ms(group.created_ms),
        completed_at=show_iso_ms(group.completed_ms),
        on_complete=hook.name if hook is not None else "",
        by=group.by,
    )


def _place(group: GroupRecord) -> tuple[int, str]:
    return group.created_ms, group.name


def _read_page(text: str) -> tuple[int, str]:
    try:
        content = base64.b64decode(text, altchars=b"-_", validate=True)
        _form, created_ms, name = msgspec.msgpack.decode(content, type=tuple[int, int, str])
    except (ValueError, msgspec.DecodeError) as error:
        hint = "begin again without a page"
        raise InvalidInput("page is not one of a list of groups", hint) from error
    return created_ms, name
