"""What a comparison of two trees makes of the rows of its pairs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.compare import QUESTIONS, Pairs
from bench.trees import Tree

BASE = Tree("a8027c6", Path("base"), Path("python"))
NEW = Tree("0123456", Path("new"), Path("python"))
(DRAIN,) = (one for one in QUESTIONS if one.name == "drain")


def compared(*rows: dict[str, Any]) -> Pairs:
    """Return the pairs of runs that gave these rows, in the order in which they ran."""
    pairs, left = Pairs(BASE, NEW), iter(rows)
    for _ in range(len(rows) // 2):
        pairs.measure(DRAIN.probe, lambda _tree: next(left))
    return pairs


def row(rate: float, nice: int) -> dict[str, Any]:
    """Return a row of a drain."""
    return {"tasks_per_second": rate, "group_nice": nice}


def test_the_ratio_is_that_of_new_to_base_whichever_ran_first() -> None:
    pairs = compared(row(100, 0), row(300, 0), row(400, 0), row(100, 0))
    assert pairs.answers(DRAIN) == [3, 4]


def test_a_pair_at_two_nice_values_gives_no_ratio_and_the_table_says_so() -> None:
    pairs = compared(row(100, 0), row(150, 19), row(400, 19), row(100, 19))
    assert pairs.answers(DRAIN) == [4]
    assert pairs.line(DRAIN)[-1] == "1 times nice 0 and 19: no ratio"
