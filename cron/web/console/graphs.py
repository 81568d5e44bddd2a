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
from cron.web.console.texts import group_link, job_link, mark, number, short

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
_LINES_MAX: Final = 1_000
_PASSES_MAX: Final = 1_000
_SQUARE: Final = 11
_SQUARES_EACH: Final = 17
_HEAD: Final = 26


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
    title = f"{number(tasks)} tasks and {number(groups)} groups, and what follows what"
    drawn = [_line(way, kind) for way, kind in lines]
    drawn += [_box(one, one.node, is_here=name == here) for name, one in boxes.items() if one.node]
    return Markup(
        '<svg class="chart graph" viewBox="0 0 {} {}" width="{}" height="{}" role="group"'
        ' aria-label="{}"><title>{}</title>{}</svg>'
    ).format(*[f"{one:g}" for one in (width, height) * 2], title, title, Markup("").join(drawn))


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


def _line(way: Sequence[_Box], kind: str) -> Markup:
    drawn = {AFTER_ANY: "any", MEMBER: "in"}.get(kind, "")
    x, y = way[0].x + _WIDTH, _port(way[0])
    path = f"M{x:g} {y:g}"
    for box in way[1:]:
        end, to_y = box.x, _port(box)
        bend = max(20.0, (end - x) / 2)
        path += f"C{x + bend:g} {y:g} {end - bend:g} {to_y:g} {end:g} {to_y:g}"
        if box.node is None:
            path += f"h{_WIDTH}"
        x, y = end + _WIDTH, to_y
    end = way[-1].x
    arrow = f"M{end - 7:g} {y - 4:g}L{end - 1:g} {y:g}L{end - 7:g} {y + 4:g}z"
    return Markup('<path class="edge {}" d="{}"/><path class="arrow" d="{}"/>').format(
        drawn, path, arrow
    )


def _port(box: _Box) -> float:
    """Return how far down a line meets a box."""
    return box.y + (_HEIGHT / 2 if box.node is not None else 0)


def _shown(name: str) -> str:
    """Return a name with its begin and its end, where it is too long for a box."""
    return name if len(name) <= _CHARS else f"{name[:_CHARS_BEFORE]}…{name[-_CHARS_AFTER:]}"


def _box(box: _Box, node: GraphNode, *, is_here: bool) -> Markup:
    name = short(node.name)
    said = f"group, {node.state}, {number(node.total)} tasks" if node.is_group else node.state
    address = group_link(node.name) if node.is_group else job_link(node.name)
    state = "group" if node.is_group else f"s-{node.state}"
    label = "▤" if node.is_group else mark(node.state)
    squares = [
        Markup('<rect class="s-{}" x="{}" y="{}" width="{}" height="{}"><title>{}</title></rect>')
        .format(
            one.state,
            f"{box.x + 6 + place % _SQUARES_EACH * (_SQUARE + 0.6):g}",
            f"{box.y + _HEAD + place // _SQUARES_EACH * (_SQUARE + 1):g}",
            _SQUARE - 1,
            _SQUARE - 1,
            f"{short(one.name)}: {one.state}",
        )
        for place, one in enumerate(box.squares)
    ]  # fmt: skip
    return Markup(
        '<a href="{}"><title>{}</title>'
        '<rect class="box {}{}" x="{}" y="{}" width="{}" height="{}" rx="4"/>'
        '<rect class="bar {}" x="{}" y="{}" width="4" height="{}"/>'
        '<text x="{}" y="{}">{} {}</text>{}</a>'
    ).format(
        address, f"{name}: {said}", state, " here" if is_here else "",
        f"{box.x:g}", f"{box.y:g}", _WIDTH, f"{box.height:g}", state, f"{box.x:g}", f"{box.y:g}",
        f"{box.height:g}", f"{box.x + 10:g}", f"{box.y + 19:g}", label, _shown(name),
        Markup("").join(squares),
    )  # fmt: skip
