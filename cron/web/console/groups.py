"""The page of a group of tasks: its counts, its tasks, and what follows it."""

from __future__ import annotations

from typing import Any, Final

from cron.api import table as t
from cron.api.graphs import GraphQuery
from cron.api.groups import GroupQuery
from cron.api.tasks import TaskFilter, TaskListQuery
from cron.web.console import graphs
from cron.web.console.frame import Page
from cron.web.console.page_request import Missing, PageRequest

LISTED: Final = 25
DRAWN: Final = 200
"""Tasks and groups that a picture shows."""


async def show_one(asked: PageRequest, name: str) -> Page:
    """Return the page of one group."""
    group = await asked.ask(t.GET_GROUP, GroupQuery(name=name))
    query = TaskListQuery(filter=TaskFilter(group=group.group), limit=LISTED)
    members = await asked.maybe(t.LIST, query)
    count = group.waiting + group.running + group.done + group.failed + group.dropped
    listed = members if isinstance(members, Missing) else members.tasks
    values: dict[str, Any] = {
        "group": group,
        **await graph_of(asked, group.group),
        "count": count,
        "members": listed,
        "more": max(0, count - len(listed)) if not isinstance(listed, Missing) and listed else 0,
    }
    return Page("group.html", group.group, values)


async def graph_of(asked: PageRequest, name: str) -> dict[str, Any]:
    """Return the graph around a task or a group for `graph` of parts.html."""
    graph = await asked.maybe(t.TASK_GRAPH, GraphQuery(name=name, limit=DRAWN))
    if isinstance(graph, Missing):
        return {"graph": graph, "picture": "", "follows": {}, "followed": 0}
    graph, picture = graphs.fitting(graph, name)
    return {
        "graph": graph,
        "picture": picture,
        "follows": graphs.follows(graph),
        "followed": graphs.FOLLOWED,
    }
