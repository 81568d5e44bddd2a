"""The pages of tasks: their queues and the newest tasks, and one task's life."""

from __future__ import annotations

import json
from typing import Any, Final
from urllib.parse import urlencode

from cron.api import table as t
from cron.api.groups import GroupListQuery
from cron.api.task_queues import TaskQueuesQuery
from cron.api.tasks import STATES, TaskFilter, TaskListQuery, TaskQuery
from cron.web.console.frame import Page
from cron.web.console.groups import graph_of
from cron.web.console.page_request import Missing, PageRequest, choice

LISTED: Final = 50
QUEUES: Final = 200
GROUPS: Final = 20
_FIELDS: Final = ("queue", "prefix", "state")


async def show(asked: PageRequest, _name: str) -> Page:
    """Return the page of queues and tasks."""
    filters: dict[str, Any] = {name: asked.query.get(name, "").strip() for name in _FIELDS}
    filters["state"] = choice(asked.query, "state", STATES)
    query = TaskListQuery(
        filter=TaskFilter(**filters), limit=LISTED, page=asked.query.get("page", "")
    )
    page = await asked.ask(t.LIST, query)
    queues = await asked.maybe(t.LIST_QUEUES, TaskQueuesQuery())
    groups = await asked.maybe(t.LIST_GROUPS, GroupListQuery(limit=GROUPS))
    kept = {name: one for name, one in filters.items() if one}
    values: dict[str, Any] = {
        "page": page,
        "queues": queues if isinstance(queues, Missing) else queues.queues[:QUEUES],
        "groups": groups if isinstance(groups, Missing) else groups.groups,
        "more_groups": not isinstance(groups, Missing) and bool(groups.next),
        "filters": filters,
        "states": STATES,
        "is_filtered": bool(kept),
        "following": f"/tasks?{urlencode({**kept, 'page': page.next})}" if page.next else "",
        "is_first": not asked.query.get("page"),
    }
    return Page("tasks.html", "Tasks", values)


async def show_one(asked: PageRequest, name: str) -> Page:
    """Return the page of one task."""
    task = await asked.ask(t.GET, TaskQuery(name=name))
    payload = json.dumps(task.payload, indent=2, ensure_ascii=False)
    values: dict[str, Any] = {
        "task": task,
        **await graph_of(asked, task.task),
        "payload": payload,
    }
    return Page("task.html", task.task, values)
