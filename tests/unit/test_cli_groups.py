"""group, and the options of task about groups and chains, before a service that a test plays."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from cron.api.groups import (
    CancelGroupRequest,
    CloseGroupRequest,
    GroupListQuery,
    GroupQuery,
    GroupsPage,
    TaskGroupView,
)
from cron.api.tasks import TaskFilter, TasksPage, TasksReport, TaskSubmission
from cron.errors import UnknownGroup
from tests.unit.api_rig import FakeBackend
from tests.unit.test_cli_tasks import accepted, asked, cli, rows, task

AT = "2026-11-20T15:00:00.000Z"


def group(**fields: Any) -> TaskGroupView:
    given = {"group": "default/import", "state": "open", "created_at": AT, "by": "shop"}
    return TaskGroupView(**(given | {"waiting": 1_200, "done": 3} | fields))


async def test_a_task_names_its_group_and_what_it_comes_after() -> None:
    backend = FakeBackend(submit=accepted)
    result = await cli(
        backend, "task", "submit", "--handler", "h", "--key", "k", "--group", "import",
        "--after", "h:a", "--after", "parts", "--after-any", "acme/h:b",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    (one,) = asked(backend, "submit").tasks
    assert (one.group, one.after) == ("import", ["h:a", "parts"])
    assert one.after_any == ["acme/h:b"]


async def test_tasks_of_a_group_are_listed_with_what_they_wait_for() -> None:
    view = task(group="default/import", after=["default/h:a"], waits_for=1)
    backend = FakeBackend(list=TasksPage(tasks=[view]), get=view)
    result = await cli(backend, "-o", "json", "task", "list", "--group", "import")
    assert asked(backend, "list").filter == TaskFilter(group="default/import")
    (row,) = rows(result)
    assert (row["group"], row["after"], row["waits_for"]) == ("default/import", ["default/h:a"], 1)
    shown = (await cli(backend, "task", "get", "mail.send:k1")).stdout
    assert [line.split() for line in shown.splitlines() if "h:a" in line] == [["after", "h:a"]]


async def test_a_group_is_shown_with_its_counts() -> None:
    backend = FakeBackend(get_group=group(on_complete="default/h:import.complete"))
    result = await cli(backend, "group", "show", "import")
    assert asked(backend, "get_group") == GroupQuery(name="default/import")
    shown = dict(line.split(maxsplit=1) for line in result.stdout.splitlines()[1:])
    assert shown["waiting"] == "1,200"
    assert result.stdout.splitlines()[0].startswith("import")
    assert result.stdout.splitlines()[-1].split()[-1] == "h:import.complete"
    (row,) = rows(await cli(backend, "-o", "json", "group", "show", "import"))
    assert (row["group"], row["waiting"], row["completed_at"]) == ("default/import", 1_200, None)


async def test_groups_are_listed_page_by_page() -> None:
    pages = {"": GroupsPage(groups=[group()], next="p"), "p": GroupsPage(groups=[group()])}
    backend = FakeBackend(list_groups=lambda asks: pages[asks.page])
    result = await cli(backend, "-o", "json", "group", "list", "--state", "open")
    assert len(rows(result)) == 2
    assert asked(backend, "list_groups") == GroupListQuery(limit=50, state="open")


@pytest.mark.parametrize(
    ("arguments", "hook"),
    [
        ("import", None),
        ("import --on-complete-handler h", TaskSubmission(key="import.complete", handler="h")),
        (
            "acme/import --on-complete-queue q --on-complete-key k --on-complete-payload [1]",
            TaskSubmission(key="k", queue="q", tenant="acme", payload=msgspec.Raw(b"[1]")),
        ),
    ],
)
async def test_a_group_is_closed_with_the_task_that_follows(
    arguments: str, hook: TaskSubmission | None
) -> None:
    backend = FakeBackend(close_group=group(state="closed"))
    result = await cli(backend, "group", "close", *arguments.split())
    assert result.exit_code == 0, result.output
    request = asked(backend, "close_group")
    assert isinstance(request, CloseGroupRequest)
    assert request.on_complete == hook
    assert request.name.endswith("/import")


async def test_a_task_that_follows_needs_a_handler() -> None:
    result = await cli(FakeBackend(), "group", "close", "import", "--on-complete-payload", "1")
    assert result.exit_code == 2
    assert "--on-complete-handler" in result.stderr


async def test_a_group_is_cancelled_after_a_look_at_it() -> None:
    backend = FakeBackend(cancel_group=TasksReport(count=1, tasks=[task(state="cancelled")]))
    result = await cli(backend, "group", "cancel", "import", "--dry-run")
    assert result.stdout == "mail.send:k1 would be cancelled\n"
    assert asked(backend, "cancel_group") == CancelGroupRequest(
        by="ada", name="default/import", is_dry_run=True
    )
    result = await cli(backend, "group", "cancel", "import")
    assert result.stdout == "mail.send:k1 cancelled\n"


async def test_a_group_that_is_not_there_is_an_error_with_the_way_out() -> None:
    error = UnknownGroup("group import does not exist", "its first task makes it")
    result = await cli(FakeBackend(get_group=error), "group", "show", "import")
    assert result.exit_code == 3
    assert "its first task makes it" in result.stderr
