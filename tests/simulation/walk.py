"""`python -m tests.simulation.walk [--write]`: the functions that one launch passes through.

`--write` puts them into cron/DESIGN.md, in the order in which a launch comes to them.

A calm world with one job that is due every half minute. A function is on the way of a launch if it
is called around each of them and never in the seconds between: what every turn, heartbeat and look
does as well is not counted, nor what the judge asks for. Lambdas and comprehensions belong to the
function that they stand in.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from types import FrameType
from typing import Any, Final

from tests.simulation.world import BASE_MS, World, simulate

ROOT: Final = Path(__file__).resolve().parents[2]
CRONTAB: Final = "#: name=a deadline=60s overlap=allow\n@every 30s run 0.1\n"
SEED: Final = 4
AROUND_S: Final = (-3, 2)
"""From when until when seconds belong to a launch: clocks differ, and its end is told later."""

DESIGN: Final = ROOT / "cron" / "DESIGN.md"
BEGIN: Final = "<!-- walk: written by `make docs` -->"
END: Final = "<!-- end of walk -->"
COLUMNS_MAX: Final = 100

Function = tuple[str, str]


class Recorder:
    """Which functions of the product are called in which second of the world."""

    def __init__(self) -> None:
        self.by_second: dict[int, dict[Function, None]] = {}
        self._known: dict[Any, Function | None] = {}

    def __call__(self, frame: FrameType, event: str, arg: object) -> None:
        loop = asyncio._get_running_loop()
        if event != "call" or loop is None:
            return
        code = frame.f_code
        if code not in self._known:
            self._known[code] = _function(code.co_filename, code.co_qualname)
        function = self._known[code]
        if function is not None and not _is_asked_by_judge(frame):
            self.by_second.setdefault(int(loop.time()), {}).setdefault(function)


def _function(file: str, name: str) -> Function | None:
    path = Path(file)
    if not path.is_relative_to(ROOT) or name.endswith(">"):
        return None
    inside = path.relative_to(ROOT)
    is_product = inside.parts[0] in {"cron", "launcher"} and not inside.stem.endswith("_pb2")
    return (str(inside), name) if is_product else None


def _is_asked_by_judge(frame: FrameType) -> bool:
    caller: FrameType | None = frame.f_back
    while caller is not None:
        if caller.f_code.co_filename.endswith(("judge.py", "verdict.py", "checkers.py")):
            return True
        caller = caller.f_back
    return False


def walk() -> list[Function]:
    """Return the functions, in the order in which the last launch first came to them.

    Raises:
        LookupError: there were too few launches to tell.
    """
    recorder = Recorder()
    sys.setprofile(recorder)
    try:
        world = simulate(SEED, crontab=CRONTAB, chaos_s=1.0)
    finally:
        sys.setprofile(None)
    begun = started_s(world)
    seconds = recorder.by_second
    windows = [range(at_s + AROUND_S[0], at_s + AROUND_S[1]) for at_s in begun[1:-1]]
    if not windows:
        raise LookupError("the world has too few launches")
    busy = {second for at_s in begun for second in range(at_s - 5, at_s + 5)}
    quiet = (second for second in range(begun[0], begun[-1]) if second not in busy)
    between = set[Function]().union(*(seconds.get(second, ()) for second in quiet))
    around = [
        dict.fromkeys(chain.from_iterable(seconds.get(second, ()) for second in one))
        for one in windows
    ]
    every = set.intersection(*map(set, around)) - between
    return [function for function in around[-1] if function in every]


def table(functions: Iterable[Function]) -> str:
    """Return functions as a table in Markdown, a row a file, in their order."""
    by_file: dict[str, list[str]] = {}
    for file, name in functions:
        by_file.setdefault(file, []).append(name)
    lines = ["| File | Functions |", "| --- | --- |"]
    for file, names in by_file.items():
        row = f"| `{file}` |"
        for number, name in enumerate(names):
            piece = f" `{name}`" + ("," if number < len(names) - 1 else " |")
            if len(row) + len(piece) > COLUMNS_MAX:
                lines.append(f"{row.rstrip(',')} |")
                row = "| |"
            row += piece
        lines.append(row)
    return "\n".join(lines)


def written(text: str, functions: list[Function]) -> str:
    """Return cron/DESIGN.md with the table and the number of these functions in it."""
    head, rest = text.split(BEGIN)
    said = f"\nOne launch passes through {len(functions)} functions:\n\n{table(functions)}\n\n"
    return head + BEGIN + said + END + rest.split(END)[1]


def started_s(world: World) -> list[int]:
    """Return in which seconds of its loop a world started commands."""
    started_ms = (one.started_ms for one in world.judge.begun.values() if one.started_ms)
    return sorted((at_ms - BASE_MS) // 1000 for at_ms in started_ms)


def main() -> None:
    """Print the walk, and how many functions it has by package."""
    found = walk()
    if "--write" in sys.argv[1:]:
        DESIGN.write_text(written(DESIGN.read_text(), found))
    print(*(f"{file}: {name}" for file, name in found), sep="\n")
    packages = Counter(str(Path(file).parent) for file, _ in found)
    print(*(f"{count:4}  {package}" for package, count in packages.most_common()), sep="\n")
    print(f"{len(found):4}  in all")


if __name__ == "__main__":
    main()
