"""The picture of a graph of tasks and groups: boxes from left to right in the order in which they
run, and lines from each to what follows it. Pure.

Tasks of a group that neither follow anything nor are followed are small squares in the group's box.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec
from markupsafe import Markup

from cron.api.graphs import AFTER_ANY, MEMBER, GraphEdge, GraphNode, TaskGraph
from cron.web.console.texts import group_link, html_bytes, job_link, mark, number, short

_WIDTH: Final = 214
_HEIGHT: Final = 30
_GAP_X: Final = 64
_GAP_Y: Final = 12
_MARGIN: Final = 4
_CHARS: Final = 25
_CHARS_BEFORE: Final = 9
_CHARS_AFTER: Final = 15
_COLUMN_MAX: Final = 14
"""Boxes of one column; more of a layer stand in several columns."""
_LINES_MAX: Final = 500
_PASSES_MAX: Final = 500
HTML_BYTES_MAX: Final = 72_000
"""Of a picture and the table below it; a page has 100 KB at most."""
FOLLOWED: Final = 5
"""What one task follows, in the table."""
_SQUARE: Final = 11
_SQUARES_EACH: Final = 17
_HEAD: Final = 26
_DEFINED: Final = Markup(
    '<defs><g id="graph-task"><rect class="graph-box" width="{}" height="{}" rx="4"/>'
    '<rect class="graph-bar" width="4" height="{}"/></g>'
    '<rect id="graph-square" class="graph-square" width="{}" height="{}"/></defs>'
).format(_WIDTH, _HEIGHT, _HEIGHT, _SQUARE - 1, _SQUARE - 1)
"""The outline of a task, and the square of a member: drawn once, and used by each."""


class _Box(msgspec.Struct):
    """A box and its place. One without a node keeps a line free that passes a layer."""

    name: str
    node: GraphNode | None = None
    squares: list[GraphNode] = []
    x: float = 0
    y: float = 0

    @property
    def height(self) -> float:
        if self.node is None:
            return 0
        rows = -(-len(self.squares) // _SQUARES_EACH)
        return _HEIGHT + (rows * (_SQUARE + 1) + 4 if rows else 0)


def picture(graph: TaskGraph, here: str) -> Markup:
    """Return the graph; `here` is the task or group whose page it is on. "" for a single node."""
    if len(graph.nodes) < 2:
        return Markup("")
    boxes, edges = _boxes(graph)
    lines, passes = _routed(boxes, edges)
    width, height = _place([*boxes.values(), *passes], lines)
    tasks = sum(not one.is_group for one in graph.nodes)
    groups = len(graph.nodes) - tasks
    title = f"{_many(tasks, 'task')} and {_many(groups, 'group')}, and what follows what"
    drawn = [_DEFINED, _lines(lines)]
    drawn += [_box(one, one.node, is_here=name == here) for name, one in boxes.items() if one.node]
    return Markup(
        '<svg class="chart graph" viewBox="0 0 {} {}" width="{}" height="{}" role="group"'
        ' aria-label="{}"><title>{}</title>{}</svg>'
    ).format(*[f"{one:g}" for one in (width, height) * 2], title, title, Markup("").join(drawn))


def fitting(
    graph: TaskGraph, here: str, bytes_max: int = HTML_BYTES_MAX
) -> tuple[TaskGraph, Markup]:
    """Return as much of a graph as a page has room for, the nearest tasks and groups, and its
    picture. Names may be long; what is left out is counted."""
    while True:
        drawn = picture(graph, here)
        size = len(drawn.encode(errors="replace")) + _table_bytes(graph)
        if size <= bytes_max or len(graph.nodes) < 2:
            return graph, drawn
        nodes = graph.nodes[: len(graph.nodes) * 4 // 5]
        names = {one.name for one in nodes}
        graph = msgspec.structs.replace(
            graph,
            nodes=nodes,
            edges=[one for one in graph.edges if one.before in names and one.after in names],
            left=graph.left + len(graph.nodes) - len(nodes),
        )


def _table_bytes(graph: TaskGraph) -> int:
    """Return about how long the table below the picture is."""
    edges = [one for some in follows(graph).values() for one in some[:FOLLOWED]]
    return sum(
        90 + len(job_link(one.name)) + html_bytes(one.name + one.state) for one in graph.nodes
    ) + sum(2 + html_bytes(one.before) + 50 * (one.kind == AFTER_ANY) for one in edges)


def _many(count: int, what: str) -> str:
    return f"{number(count)} {what}{'' if count == 1 else 's'}"


def follows(graph: TaskGraph) -> dict[str, list[GraphEdge]]:
    """Return the edges to what each task or group follows, by its name."""
    found: dict[str, list[GraphEdge]] = {}
    for edge in graph.edges:
        if edge.kind != MEMBER:
            found.setdefault(edge.after, []).append(edge)
    return found


def _boxes(graph: TaskGraph) -> tuple[dict[str, _Box], list[GraphEdge]]:
    """Return the boxes by their names, and the lines between them."""
    nodes = {one.name: one for one in graph.nodes}
    linked = {name for one in graph.edges if one.kind != MEMBER for name in (one.before, one.after)}
    boxes: dict[str, _Box] = {}
    inside: dict[str, str] = {}
    for edge in graph.edges:
        if edge.kind == MEMBER and edge.before not in linked:
            inside[edge.before] = edge.after
    for name, node in nodes.items():
        if inside.get(name) not in nodes:
            boxes[name] = _Box(name, node)
    for name, group in inside.items():
        if group in boxes and name in nodes:
            boxes[group].squares.append(nodes[name])
    edges = [one for one in graph.edges if one.before in boxes and one.after in boxes]
    has_follower = {one.before for one in edges if one.kind != MEMBER}
    # Of a chain within a group the last task is enough to show where it belongs.
    edges = [one for one in edges if one.kind != MEMBER or one.before not in has_follower]
    return boxes, edges[:_LINES_MAX]


def _layers(names: Iterable[str], edges: Sequence[GraphEdge]) -> dict[str, int]:
    """Return how many steps each box is from those that follow nothing. What is in a circle, which
    a cell does not allow, stands behind all others."""
    before: dict[str, int] = dict.fromkeys(names, 0)
    after: dict[str, list[str]] = {}
    for edge in edges:
        before[edge.after] += 1
        after.setdefault(edge.before, []).append(edge.after)
    layers = {name: 0 for name, count in before.items() if not count}
    ready = deque(layers)
    while ready:
        name = ready.popleft()
        for one in after.get(name, ()):
            before[one] -= 1
            layers[one] = max(layers.get(one, 0), layers[name] + 1)
            if not before[one]:
                ready.append(one)
    last = max(layers.values(), default=-1) + 1
    return {name: layers[name] if not before[name] else last for name in before}


def _routed(
    boxes: Mapping[str, _Box], edges: Sequence[GraphEdge]
) -> tuple[list[tuple[list[_Box], str]], list[_Box]]:
    """Return the way of each line, through all that it passes, with its kind; and the places that
    lines pass in layers between."""
    layers = _layers(boxes, edges)
    lines: list[tuple[list[_Box], str]] = []
    passes: list[_Box] = []
    for edge in edges:
        way = [boxes[edge.before]]
        between = range(layers[edge.before] + 1, layers[edge.after])
        if len(passes) + len(between) <= _PASSES_MAX:
            # No name of a task or group begins with a space.
            way += [_Box(f" {len(passes) + place}") for place, _ in enumerate(between)]
        passes += way[1:]
        lines.append(([*way, boxes[edge.after]], edge.kind))
    return lines, passes


def _place(boxes: Sequence[_Box], lines: Sequence[tuple[list[_Box], str]]) -> tuple[float, float]:
    """Give each box its place; return the width and height of all."""
    steps = [step for way, _ in lines for step in itertools.pairwise(way)]
    layers = _layers(
        [one.name for one in boxes], [GraphEdge(before.name, one.name) for before, one in steps]
    )
    above: dict[str, list[_Box]] = {}
    for before, one in steps:
        above.setdefault(one.name, []).append(before)
    columns: dict[int, list[_Box]] = {}
    for box in boxes:
        columns.setdefault(layers[box.name], []).append(box)
    x, height = float(_MARGIN), 0.0
    for layer in sorted(columns):
        middles = {one.name: _middle(above.get(one.name, ())) for one in columns[layer]}
        ordered = sorted(columns[layer], key=lambda one: (middles[one.name], one.name))
        for first in range(0, len(ordered), _COLUMN_MAX):
            y = float(_MARGIN)
            for box in ordered[first : first + _COLUMN_MAX]:
                box.x, box.y = x, y
                y += box.height + _GAP_Y
            height = max(height, y)
            x += _WIDTH + (_GAP_X if first + _COLUMN_MAX >= len(ordered) else _GAP_Y)
    return x - _GAP_X + _MARGIN, height - _GAP_Y + _MARGIN


def _middle(above: Sequence[_Box]) -> float:
    """Return how far down the boxes are that one follows, which keeps lines short."""
    return sum(one.y for one in above) / len(above) if above else 0.0


def _lines(lines: Sequence[tuple[Sequence[_Box], str]]) -> Markup:
    """Return all lines, in one path for each kind, which is a third of the bytes of a path each."""
    paths: dict[str, list[str]] = {}
    arrows = []
    for way, kind in lines:
        drawn = {AFTER_ANY: "any", MEMBER: "in"}.get(kind, "")
        paths.setdefault(drawn, []).append(_path(way))
        end, y = way[-1].x, _port(way[-1])
        arrows.append(f"M{end - 7:g} {y - 4:g}l6 4-6 4z")
    found = [
        Markup('<path class="edge {}" d="{}"/>').format(drawn, "".join(some))
        for drawn, some in paths.items()
    ]
    return Markup("").join([*found, Markup('<path class="arrow" d="{}"/>').format("".join(arrows))])


def _path(way: Sequence[_Box]) -> str:
    x, y = way[0].x + _WIDTH, _port(way[0])
    path = f"M{x:g} {y:g}"
    for box in way[1:]:
        along, down = box.x - x, _port(box) - y
        bend = max(20.0, along / 2)
        path += f"c{bend:g} 0 {along - bend:g} {down:g} {along:g} {down:g}"
        if box.node is None:
            path += f"h{_WIDTH}"
        x, y = box.x + _WIDTH, _port(box)
    return path


def _port(box: _Box) -> float:
    """Return how far down a line meets a box."""
    return box.y + (_HEIGHT / 2 if box.node is not None else 0)


def _box(box: _Box, node: GraphNode, *, is_here: bool) -> Markup:
    name = short(node.name)
    said = f"group, {node.state}, {number(node.total)} tasks" if node.is_group else node.state
    address = group_link(node.name) if node.is_group else job_link(node.name)
    state = "group" if node.is_group else f"s-{node.state}"
    label = "▤" if node.is_group else mark(node.state)
    outline = Markup('<use href="#graph-task"/>')
    if box.squares:
        outline = Markup(
            '<rect class="graph-box" width="{}" height="{}" rx="4"/>'
            '<rect class="graph-bar" width="4" height="{}"/>'
        ).format(_WIDTH, f"{box.height:g}", f"{box.height:g}")
    squares = [
        Markup('<use href="#graph-square" class="s-{}" x="{}" y="{}"><title>{}</title></use>')
        .format(
            one.state,
            f"{6 + place % _SQUARES_EACH * (_SQUARE + 0.6):g}",
            _HEAD + place // _SQUARES_EACH * (_SQUARE + 1),
            f"{short(one.name)}: {one.state}",
        )
        for place, one in enumerate(box.squares)
    ]  # fmt: skip
    # Where it is too long for the box, it stands there with its begin and its end.
    shown = name if len(name) <= _CHARS else f"{name[:_CHARS_BEFORE]}…{name[-_CHARS_AFTER:]}"
    return Markup(
        '<a href="{}" class="{}{}" transform="translate({} {})"><title>{}</title>{}{}'
        '<text x="10" y="19">{} {}</text></a>'
    ).format(
        address, state, " here" if is_here else "", f"{box.x:g}", f"{box.y:g}", f"{name}: {said}",
        outline, Markup("").join(squares), label, shown,
    )  # fmt: skip
