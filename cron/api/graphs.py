"""Which tasks and groups follow which: the graph around one of them."""

from __future__ import annotations

from typing import Annotated, Final

from cron.api.checks import Within, bound
from cron.api.rpc import Request, View
from cron.api.tasks import predecessor

NODES_MAX: Final = 1_000
MEMBER: Final = "member"
AFTER: Final = "after"
AFTER_ANY: Final = "after-any"


class GraphQuery(Request, frozen=True, kw_only=True):
    """A task (`queue:key`) or a group around which to show at most `limit` tasks and groups, the
    nearest first."""

    name: Annotated[str, predecessor]
    limit: Annotated[int, bound(1, NODES_MAX, "limit")] = 200
    within: Within = []


class GraphNode(View, frozen=True, kw_only=True):
    """A task, or a group, by its full name. `total` counts the tasks of a group, those included
    that are forgotten."""

    name: str
    state: str = ""
    is_group: bool = False
    total: int = 0


class GraphEdge(View, frozen=True):
    """`after` follows `before`. `kind` is after (it needs its success), after-any (it needs its
    end) or member: the task `before` is one of the group `after`."""

    before: str
    after: str
    kind: str = AFTER


class TaskGraph(View, frozen=True, kw_only=True):
    """What a task or group follows, what follows it, and so on; of a group its tasks, too.

    The cell knows what a task follows until the task is begun. `left` more are known to belong
    there and are not shown. `is_cut`: there are too many tasks in the cell to look at all.
    """

    nodes: list[GraphNode] = []
    edges: list[GraphEdge] = []
    left: int = 0
    is_cut: bool = False
