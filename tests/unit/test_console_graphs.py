"""Graphs of tasks and groups: what the cell tells of them, and the picture."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable

import pytest

from cron.api.checks import checked
from cron.api.graphs import GraphEdge, GraphNode, GraphQuery, TaskGraph
from cron.api.groups import CloseGroupRequest
from cron.api.tasks import SubmitRequest, TasksPage, TaskSubmission, TaskView
from cron.errors import UnknownGroup, UnknownTask
from cron.web.console.graphs import picture
from tests.unit.console_rig import HOSTILE, Reader, check_sound
from tests.unit.tasks_world import HANDLER, TasksWorld
from tests.unit.test_console_pages import full, page_of

HOOK = TaskSubmission(key="done", handler=HANDLER)


def full_name(key: str) -> str:
    return f"default/{HANDLER}:{key}"


async def world_with(*tasks: TaskSubmission) -> TasksWorld:
    world = TasksWorld()
    report = await world.service.submit(SubmitRequest(tasks=list(tasks), by="shop"))
    assert [one.error for one in report.tasks] == [None] * len(tasks)
    return world


async def asked(world: TasksWorld, name: str, **more: object) -> TaskGraph:
    query = checked(GraphQuery(name=name, **more))  # type: ignore[arg-type]
    found: TaskGraph = await world.service.task_graph(query)
    return found


def edges(graph: TaskGraph) -> set[tuple[str, str, str]]:
    return {
        (one.before.rpartition(":")[2], one.after.rpartition(":")[2], one.kind)
        for one in graph.edges
    }


# ---- what the cell tells


async def test_a_graph_has_what_a_task_follows_and_what_follows_it() -> None:
    world = await world_with(
        TaskSubmission(key="a", handler=HANDLER),
        TaskSubmission(key="b", handler=HANDLER, after=[full_name("a")]),
        TaskSubmission(key="c", handler=HANDLER, after_any=[full_name("b")]),
        TaskSubmission(key="alone", handler=HANDLER),
    )
    wanted = {("a", "b", "after"), ("b", "c", "after-any")}
    for key in "abc":
        graph = await asked(world, f"{HANDLER}:{key}")
        assert edges(graph) == wanted
        assert (len(graph.nodes), graph.left) == (3, 0)
        assert graph.nodes[0].name == full_name(key), "what is asked about comes first"
    alone = await asked(world, f"{HANDLER}:alone")
    assert [one.name for one in alone.nodes] == [full_name("alone")]


async def test_the_graph_of_a_group_has_its_tasks_and_its_hook_and_is_bounded() -> None:
    members = [TaskSubmission(key=f"m{n}", handler=HANDLER, group="import") for n in range(30)]
    world = await world_with(*members)
    await world.service.close_group(
        checked(CloseGroupRequest(name="default/import", on_complete=HOOK))
    )
    graph = await asked(world, "import", limit=10)
    assert len(graph.nodes) == 10
    assert graph.left == 22, "of the group, 30 members and the hook"
    assert (graph.nodes[0].name, graph.nodes[0].is_group, graph.nodes[0].total) == (
        "default/import", True, 30,
    )  # fmt: skip
    assert graph.nodes[1].name == full_name("done"), "what follows comes before members"
    assert ("default/import", "done", "after-any") in edges(graph)
    whole = await asked(world, "import")
    assert (len(whole.nodes), whole.left) == (32, 0)


async def test_a_graph_has_nothing_beyond_the_scopes_of_its_caller() -> None:
    world = TasksWorld()
    tasks = [
        TaskSubmission(key="a", handler=HANDLER, tenant="acme"),
        TaskSubmission(key="b", handler=HANDLER, tenant="ops", after=[f"acme/{HANDLER}:a"]),
    ]
    await world.service.submit(SubmitRequest(tasks=tasks, by="shop"))
    graph = await asked(world, f"ops/{HANDLER}:b", within=["ops/*"])
    assert [one.name for one in graph.nodes] == [f"ops/{HANDLER}:b"]
    assert (graph.edges, graph.left) == ([], 1)


async def test_what_is_not_there_has_no_graph() -> None:
    world = TasksWorld()
    with pytest.raises(UnknownTask):
        await asked(world, f"{HANDLER}:none")
    with pytest.raises(UnknownGroup):
        await asked(world, "none")


# ---- the picture


def drawn(graph: TaskGraph, here: str = "") -> str:
    return str(picture(graph, here))


def chain(count: int) -> TaskGraph:
    names = [f"t/q:k{n}" for n in range(count)]
    return TaskGraph(
        nodes=[GraphNode(name=one, state="waiting") for one in names],
        edges=[GraphEdge(*pair) for pair in itertools.pairwise(names)],
    )


def test_a_chain_goes_from_left_to_right() -> None:
    boxes = re.findall(r'href="/tasks/t/q:k(\d)".*?transform="translate\(([\d.]+) ([\d.]+)\)"',
                       drawn(chain(4), "t/q:k2"))  # fmt: skip
    assert [int(number) for number, _, _ in sorted(boxes, key=lambda one: float(one[1]))] == [
        0, 1, 2, 3,
    ]  # fmt: skip
    assert len({y for _, _, y in boxes}) == 1
    assert drawn(chain(4), "t/q:k2").count(" here") == 1


def test_no_two_boxes_lie_on_each_other() -> None:
    many = TaskGraph(
        nodes=[GraphNode(name="t/q:end"), *(GraphNode(name=f"t/q:k{n}") for n in range(60))],
        edges=[GraphEdge(f"t/q:k{n}", "t/q:end") for n in range(60)],
    )
    svg = drawn(many)
    outline = re.search(r'class="graph-box" width="(\d+)" height="([\d.]+)"', svg)
    assert outline is not None
    found = re.findall(r'transform="translate\(([\d.]+) ([\d.]+)\)"', svg)
    places = [tuple(map(float, (*one, *outline.groups()))) for one in found]
    assert len(places) == 61
    for first, (x, y, width, height) in enumerate(places):
        for other_x, other_y, other_width, other_height in places[first + 1 :]:
            is_beside = x + width <= other_x or other_x + other_width <= x
            is_below = y + height <= other_y or other_y + other_height <= y
            assert is_beside or is_below


def test_members_that_nothing_follows_are_squares_in_the_box_of_their_group() -> None:
    graph = TaskGraph(
        nodes=[
            GraphNode(name="t/g", is_group=True, state="open", total=3),
            *(GraphNode(name=f"t/q:k{n}", state="failed") for n in range(3)),
        ],
        edges=[
            *(GraphEdge(f"t/q:k{n}", "t/g", "member") for n in range(3)),
            GraphEdge("t/q:k0", "t/q:k1"),
        ],
    )
    read = Reader(drawn(graph))
    boxes = [attrs for tag, attrs in read.tags if tag == "a"]
    assert [one["href"] for one in boxes] == ["/groups/t/g", "/tasks/t/q:k0", "/tasks/t/q:k1"]
    squares = [attrs for tag, attrs in read.tags if attrs.get("href") == "#graph-square"]
    assert [one["class"] for one in squares] == ["s-failed"]


def test_a_circle_is_drawn_too() -> None:
    circle = TaskGraph(
        nodes=[GraphNode(name=f"t/q:{one}") for one in "ab"],
        edges=[GraphEdge("t/q:a", "t/q:b"), GraphEdge("t/q:b", "t/q:a")],
    )
    assert drawn(circle).count("<a ") == 2


def test_one_task_alone_has_no_picture() -> None:
    assert drawn(chain(1)) == ""


async def test_names_in_a_picture_are_text() -> None:
    graph = TaskGraph(
        nodes=[GraphNode(name=f"t/{HOSTILE}", state=HOSTILE), GraphNode(name="t/q:b")],
        edges=[GraphEdge(f"t/{HOSTILE}", "t/q:b")],
        left=1_200,
    )
    of = full("plain")
    of.answers["task_graph"] = graph
    for path in ("/tasks/acme/mail:k", "/groups/acme/import"):
        said, read = await page_of(path, of)
        assert said.status == 200
        assert b"<script>alert" not in said.body
        assert "and 1,200 more." in read.text


def linked(name: str, pairs: Iterable[tuple[int, int]]) -> TaskGraph:
    members = [GraphNode(name=f"acme/mail:{n}{name}", state="waiting") for n in range(199)]
    return TaskGraph(
        nodes=[GraphNode(name="acme/import", is_group=True, total=99_000), *members],
        edges=[
            *(GraphEdge(one.name, "acme/import", "member") for one in members),
            *(GraphEdge(members[one].name, members[other].name) for one, other in pairs),
        ],
        left=98_801,
    )


LONG = "k" * 180
CHAIN = list(itertools.pairwise(range(199)))
FAN = [*itertools.product(range(10), range(10, 120))]


@pytest.mark.parametrize(
    ("graph", "least"),
    [
        (linked("-member", CHAIN), 150),
        (linked("-member", FAN), 100),
        (linked("", []), 200),
        (linked(LONG, CHAIN), 50),
        (linked(LONG, FAN), 30),
    ],
    ids=["a chain", "all after ten", "squares", "a chain, long names", "all after ten, long names"],
)
async def test_a_page_with_as_many_tasks_as_a_picture_has_is_below_100_kb(
    graph: TaskGraph, least: int
) -> None:
    of = full("plain")
    of.answers["task_graph"] = graph
    names = [one.name for one in graph.nodes[1:26]]
    of.answers["list"] = TasksPage(
        tasks=[TaskView(task=one, state="waiting", after=names[:9]) for one in names]
    )
    said, read = await page_of("/groups/acme/import", of)
    assert len(said.body) < 100_000
    check_sound(said.body.decode())
    drawn = sum("transform" in attrs for _, attrs in read.tags)
    drawn += sum(attrs.get("href") == "#graph-square" for _, attrs in read.tags)
    assert drawn >= least
    assert f"and {99_001 - drawn:,} more." in read.text, "what has no room is counted"
