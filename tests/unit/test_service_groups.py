"""Groups and chains of tasks as programs ask for them: verdicts, order, what is shown."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from cron.api.checks import checked
from cron.api.groups import (
    CancelGroupRequest,
    CloseGroupRequest,
    GroupListQuery,
    GroupsPage,
    TaskGroupView,
)
from cron.api.tasks import (
    CancelRequest,
    SubmitRequest,
    SubmitVerdict,
    TaskFilter,
    TaskListQuery,
    TaskSubmission,
)
from cron.errors import GroupClosed, InvalidInput, OtherContent, UnknownGroup, UnknownHandler
from cron.state.chains import ReleaseTasks
from tests.unit.tasks_world import HANDLER, TasksWorld

HOOK = TaskSubmission(key="import.complete", handler=HANDLER)


@pytest.fixture
def world() -> TasksWorld:
    return TasksWorld()


def full(key: str) -> str:
    return f"default/{HANDLER}:{key}"


def task(key: str, **fields: Any) -> TaskSubmission:
    return TaskSubmission(key=key, **({"handler": HANDLER} | fields))


async def submitted(world: TasksWorld, *tasks: TaskSubmission) -> list[SubmitVerdict]:
    report = await world.service.submit(SubmitRequest(tasks=list(tasks), by="shop"))
    return list(report.tasks)


async def closed(world: TasksWorld, **fields: Any) -> TaskGroupView:
    view: TaskGroupView = await world.service.close_group(checked(CloseGroupRequest(**fields)))
    return view


def refusal(one: SubmitVerdict) -> tuple[str, str]:
    assert one.error is not None
    return one.error.code, one.error.message


# ---- chains


async def test_a_task_may_come_after_others_of_the_same_call_in_any_order(
    world: TasksWorld,
) -> None:
    last = task("c", after=[f"{HANDLER}:b"], after_any=[full("a")])
    verdicts = await submitted(world, last, task("b", after=[full("a")]), task("a"))
    assert [(one.task, one.state, one.error) for one in verdicts] == [
        (full("c"), "waiting", None), (full("b"), "waiting", None), (full("a"), "due", None),
    ]  # fmt: skip
    view = await world.got("c")
    assert (view.after, view.after_any, view.waits_for) == ([full("b")], [full("a")], 2)
    assert view.reason == f"waits for {HANDLER}:b and 1 more"


async def test_tasks_that_wait_for_each_other_are_refused_with_their_names(
    world: TasksWorld,
) -> None:
    circle = [task("a", after=[full("c")]), task("b", after=[full("a")]),
              task("c", after_any=[full("b")])]  # fmt: skip
    beside, behind = task("x"), task("y", after=[full("c")])
    *refused, other, last = await submitted(world, *circle, beside, behind)
    for one in refused:
        code, message = refusal(one)
        assert code == "invalid_input"
        assert all(f"{HANDLER}:{key}" in message for key in "abc"), message
    assert other.error is None
    code, message = refusal(last)
    assert code == "unknown_predecessor"
    assert "wait for each other" in message
    assert list(world.state.tasks) == [full("x")]


async def test_who_comes_after_a_task_that_may_be_taken_later_may_try_then(
    world: TasksWorld,
) -> None:
    await world.submit_one("a")
    world.state.queues[f"default/{HANDLER}"].waiting_max = 1
    first, second = await submitted(world, task("b"), task("c", queue="other", after=[full("b")]))
    assert (refusal(first)[0], first.retry_after_ms) == ("queue_full", 1_000)
    assert (refusal(second)[0], second.retry_after_ms) == ("queue_full", 1_000)
    assert f"task {HANDLER}:b, which it comes after, was refused" in refusal(second)[1]


@pytest.mark.parametrize(
    ("fields", "code", "said", "hint"),
    [
        ({"after": ["q:gone"]}, "unknown_predecessor",
         "task q:gone, which it comes after, does not exist", "submit it first"),
        ({"after": ["gone"]}, "unknown_predecessor",
         "group gone, which it comes after, does not exist", "submit it first"),
        ({"after": ["q:k"], "tenant": "acme"}, "unknown_predecessor",
         "task q:k, which", "of the same tenant it is acme/q:k"),
        ({"after": ["open"]}, "group_open", "cannot come after group open",
         "`raftcron group close open`"),
        ({"group": "shut"}, "group_closed", "group shut is closed", "to another group"),
        ({"after": [f"{HANDLER}:t"]}, "invalid_input", "comes after itself", ""),
        ({"group": "g", "after_any": ["g"]}, "invalid_input", "after its own group", "leave it"),
        ({"after": ["x:y"], "after_any": ["x:y"]}, "invalid_input", "is in after and in after_any",
         "choose one"),
        ({"after": ["-"]}, "invalid_input", "'-' is not the name of a group", "write group or"),
        ({"group": "a/b"}, "invalid_input", "group 'a/b' is not a plain word", "own tenant"),
        ({"after": [f"q:{n}" for n in range(101)]}, "limit_exceeded",
         "number of tasks that it comes after 101", ""),
    ],
)  # fmt: skip
async def test_a_refusal_names_the_thing_and_the_way_out(
    world: TasksWorld, fields: dict[str, Any], code: str, said: str, hint: str
) -> None:
    await submitted(world, task("o", group="open"), task("s", group="shut"))
    await world.service.close_group(checked(CloseGroupRequest(name="shut")))
    (one,) = await submitted(world, task("t", **fields))
    assert one.error is not None
    assert one.error.code == code
    assert said in one.error.message
    assert hint in one.error.hint


async def test_what_it_comes_after_and_its_group_are_content(world: TasksWorld) -> None:
    await submitted(world, task("a"), task("b"))
    mine = task("c", group="g", after=[full("a"), full("b")])
    (first,) = await submitted(world, mine)
    again = task("c", group="g", after=[full("b"), full("a")])
    (second,) = await submitted(world, again)
    assert (first.is_new, second.is_new, second.error) == (True, False, None)
    for other in ({"group": "h"}, {"after": [full("a")]}, {"after": [], "after_any": mine.after}):
        (one,) = await submitted(world, msgspec.structs.replace(mine, **other))
        assert refusal(one)[0] == "other_content"


async def test_a_task_is_shown_waiting_until_it_is_released(world: TasksWorld) -> None:
    await submitted(world, task("a"), task("b", after=[full("a")]))
    number = world.state.tasks[full("a")].number
    assert (await world.got("b")).state == "waiting"
    await world.service.cancel(CancelRequest(names=[full("a")]))
    assert world.state.tasks_by_number[number].is_over
    world.rig.append(ReleaseTasks((world.state.tasks[full("b")].number,)))
    view = await world.got("b")
    assert (view.state, view.reason) == ("cancelled", "predecessor")


# ---- groups


async def test_a_group_counts_closes_and_is_followed_by_its_task(world: TasksWorld) -> None:
    await submitted(world, task("a", group="import"), task("b", group="import"))
    group = await world.service.get_group("default/import")
    assert (group.group, group.state, group.waiting, group.by) == (
        "default/import", "open", 2, "shop",
    )  # fmt: skip
    request = CloseGroupRequest(name="import", on_complete=HOOK, by="shop")
    for _ in range(2):  # it may be repeated
        group = await world.service.close_group(checked(request))
        assert (group.state, group.on_complete) == ("closed", full("import.complete"))
    hook = await world.got("import.complete")
    assert (hook.after_any, hook.state, hook.group) == (["default/import"], "waiting", "")
    other = msgspec.structs.replace(HOOK, key="other")
    with pytest.raises(OtherContent, match=r"import.complete follows group import already"):
        await world.service.close_group(
            checked(CloseGroupRequest(name="import", on_complete=other))
        )


async def test_the_task_that_follows_a_group_may_be_submitted_again_as_any(
    world: TasksWorld,
) -> None:
    await submitted(world, task("a", group="import"))
    await world.service.close_group(checked(CloseGroupRequest(name="import", on_complete=HOOK)))
    same = msgspec.structs.replace(HOOK, after_any=["import"])
    (one,) = await submitted(world, same)
    assert (one.is_new, one.error) == (False, None)


async def test_a_hook_that_is_refused_leaves_the_group_open(world: TasksWorld) -> None:
    await submitted(world, task("a", group="import"))
    for hook, kind in (
        (msgspec.structs.replace(HOOK, handler="nobody"), UnknownHandler),
        (msgspec.structs.replace(HOOK, group="import"), InvalidInput),
        (msgspec.structs.replace(HOOK, key="a"), OtherContent),
    ):
        with pytest.raises(kind):
            await world.service.close_group(
                checked(CloseGroupRequest(name="import", on_complete=hook))
            )
    assert (await world.service.get_group("default/import")).state == "open"
    with pytest.raises(UnknownGroup, match="group nothing does not exist"):
        await world.service.close_group(checked(CloseGroupRequest(name="nothing")))
    with pytest.raises(UnknownGroup):
        await world.service.get_group("default/nothing")


async def test_a_cancelled_group_takes_no_more_and_its_tasks_end(world: TasksWorld) -> None:
    await submitted(world, task("a", group="import"), task("b", group="import"), task("c"))
    dry = CancelGroupRequest(name="import", is_dry_run=True)
    assert (await world.service.cancel_group(checked(dry))).count == 2
    assert (await world.service.get_group("default/import")).state == "open"
    report = await world.service.cancel_group(checked(CancelGroupRequest(name="import", by="anna")))
    assert (report.count, [one.state for one in report.tasks]) == (2, ["cancelled"] * 2)
    group = await world.service.get_group("default/import")
    assert (group.state, group.dropped) == ("complete", 2)
    assert group.completed_at
    assert (await world.got("c")).state == "due"
    with pytest.raises(UnknownGroup):
        await world.service.cancel_group(checked(CancelGroupRequest(name="nothing")))


async def test_who_may_cancel_some_queues_cancels_no_others_of_a_group(
    world: TasksWorld,
) -> None:
    await submitted(world, task("a", group="g"), task("b", group="g", queue="other"))
    within = ["default/other", "default/g"]
    await world.service.cancel_group(checked(CancelGroupRequest(name="g", within=within)))
    assert [world.state.tasks[name].is_over for name in (full("a"), "default/other:b")] == [
        False, True,
    ]  # fmt: skip


async def test_tasks_are_listed_by_their_group(world: TasksWorld) -> None:
    await submitted(world, task("a", group="g"), task("b"))
    page = await world.service.list(checked(TaskListQuery(filter=TaskFilter(group="g"))))
    assert [(one.task, one.group) for one in page.tasks] == [(full("a"), "default/g")]


async def test_groups_are_listed_page_by_page_newest_first(world: TasksWorld) -> None:
    for name in "abcde":
        await submitted(world, task(name, group=name))
        world.rig.at_ms += 1
    await submitted(world, task("z", group="z", tenant="acme"))
    await world.service.close_group(checked(CloseGroupRequest(name="c")))

    async def listed(**asked: Any) -> GroupsPage:
        page: GroupsPage = await world.service.list_groups(checked(GroupListQuery(**asked)))
        return page

    found, page = [], ""
    while True:
        part = await listed(limit=2, tenant="default", page=page)
        found += [one.group for one in part.groups]
        page = part.next
        if not page:
            break
    assert found == [f"default/{name}" for name in "edcba"]
    assert [one.group for one in (await listed(state="closed")).groups] == ["default/c"]
    assert [one.group for one in (await listed(within=["acme/*"])).groups] == ["acme/z"]
    with pytest.raises(InvalidInput, match="page is not one of a list of groups"):
        await listed(page="nonsense")
    with pytest.raises(InvalidInput, match="state 'over' is not one of open, closed, complete"):
        await listed(state="over")


async def test_nothing_joins_a_closed_group(world: TasksWorld) -> None:
    await submitted(world, task("a", group="g"))
    await world.service.close_group(checked(CloseGroupRequest(name="g")))
    (one,) = await submitted(world, task("b", group="g"))
    assert refusal(one) == (GroupClosed.code, "group g is closed and takes no more tasks")
