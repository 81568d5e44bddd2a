"""This tree beside an older commit: `make bench-compare BASE=a8027c6 [PAIRS=5] [ONLY=name,name]`.

    python -m bench.compare --base a8027c6 [--pairs 5] [--only cpu-2000,late] [--json]

Figures of a busy machine are not stable; ratios of what ran one after the other are. So a pair is
each probe once in either tree, which of them is first changes, and what counts is the median of the
pairs' ratios. The questions and their bounds are those of issue 13. Rows go to
bench/results/compare.jsonl as they come; the table in README.md keeps the rows of questions that
were not asked. The last line of the output is JSON: what was measured of each question.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import msgspec

from bench.busy import busy_loops
from bench.search import search
from bench.section import figure, merge_rows
from bench.trees import ROOT, ProbeFailed, Tree, end_by_signals, run_probe, this_tree, tree_of

README: Final = ROOT / "bench" / "README.md"
RESULTS: Final = ROOT / "bench" / "results" / "compare.jsonl"
BEGIN: Final = "<!-- compared: written by `make bench-compare` -->"
END: Final = "<!-- end of what was compared -->"
RATE_S: Final = (10, 60)
RATE_LIMIT_S: Final = 600
RATE_START: Final = 6_000

Row = dict[str, Any]
Once = Callable[[Tree], Row]
"""Measures a tree once. Raises ProbeFailed."""


class Question(msgspec.Struct, frozen=True):
    """One line of the table: `key` of the rows of `probe`.

    The answer is the ratio new : base of each pair, or of `is_absolute` the new tree's own figure.
    Where `is_more`, more is better. 0 is no bound.
    """

    name: str
    text: str
    probe: str
    key: str
    aim: float = 0
    must: float = 0
    is_absolute: bool = False
    is_more: bool = False

    def verdict(self, measured: float | None) -> str:
        """Return which bound is met."""
        if measured is None or not self.must:
            return "-"
        for word, bound in (("aim", self.aim), ("must", self.must)):
            if measured >= bound if self.is_more else measured <= bound:
                return word
        return "**no**"


def _cpu(rate: int, text: str) -> list[Question]:
    probe = f"cost-{rate}"
    parts = ("leader", "followers", "executors", "workers")
    return [
        Question(
            f"cpu-{rate}", f"{text}, all processes, µs", probe, "cpu_us_per_launch", 0.12, 0.3
        ),
        *(
            Question(f"cpu-{rate}-{part}", f"{text}, {part}, µs", probe, f"{part}_us")
            for part in parts
        ),
    ]


QUESTIONS: Final = (
    *_cpu(2_000, "CPU a launch, handlers, 2,000/s"),
    *_cpu(5_000, "CPU a launch, handlers, 5,000/s"),
    Question(
        "commands", "CPU a launch, 200 commands due every second, without the commands, µs",
        "commands", "cpu_without_commands_us", 0.2, 0.4,
    ),
    Question(
        "awake", "the same 200 commands, on cores that do not sleep, µs", "awake",
        "cpu_without_commands_us", 0.2, 0.4,
    ),
    Question(
        "rate", "highest rate borne for 60 s, handlers, a second", "rate", "rate", 6, 3,
        is_more=True,
    ),
    Question(
        "late", "lateness p95, handlers, 5,000/s, ms", "cost-5000", "lateness_p95_ms", 0.2, 0.5
    ),
    Question(
        "log", "log a launch, B (new)", "cost-5000", "log_bytes_per_launch", 15, 30,
        is_absolute=True,
    ),
    Question(
        "disk", "history on the disk a launch, B (new)", "cost-5000", "disk_bytes_per_launch",
        20, 40, is_absolute=True,
    ),
    Question(
        "drain", "Salsify's 200,000 tasks through the whole pool, a second", "drain",
        "tasks_per_second", 6, 3, is_more=True,
    ),
    Question(
        "drain-cpu", "CPU a task of these, all processes, µs", "drain", "cpu_us_per_task",
    ),
    Question(
        "frozen", "leader frozen: longest gap without a launch, s (new)", "frozen",
        "longest_gap_s", 2, 2.5, is_absolute=True,
    ),
    Question(
        "cli", "`raftcron jobs`, 10 jobs : `python -c pass` (new)", "cli", "call_to_pass", 10, 15,
        is_absolute=True,
    ),
    Question(
        "starts", "commands started a second : a loop of posix_spawn in C (new)", "starts",
        "starts_to_loop", 0.6, 0.45, is_absolute=True, is_more=True,
    ),
)  # fmt: skip
COLUMNS: Final = (
    "question", "aim", "must", "measured", "met", "base", "new", "pairs", "spread", "commits",
    "what went badly",
)  # fmt: skip
PROBLEMS: Final = ("missing", "skipped", "failed", "open", "leader_changed")


def probes(seconds: int, tasks: int) -> dict[str, Once]:
    """Return how each probe is run, with the time that it gets."""

    def of(name: str, limit_s: float, **options: Any) -> Once:
        return lambda tree: run_probe(tree, name, options, limit_s)

    noop, commands = {"kind": "noop"}, {"kind": "command", "executors": 1}
    few = of("cost", 180 + seconds, work=commands, rate=200, seconds=seconds)

    def awake(tree: Tree) -> Row:
        with busy_loops(os.cpu_count() or 1, idle=True):
            return few(tree)

    return {
        "cost-2000": of("cost", 180 + seconds, work=noop, rate=2_000, seconds=seconds),
        "cost-5000": of("cost", 300 + seconds, work=noop, rate=5_000, seconds=seconds),
        "commands": few,
        "awake": awake,
        "rate": _Highest(noop),
        "drain": of("drain", 480, tasks=tasks),
        "frozen": of("frozen", 120, seconds=15),
        "cli": of("cli", 120, calls=15),
        "starts": of("starts", 180, commands=5_000),
    }


class _Highest:
    """Searches the highest rate; each next search of a tree begins where the one before ended."""

    def __init__(self, work: dict[str, Any]) -> None:
        self._work = work
        self._starts: dict[Path, int] = {}

    def __call__(self, tree: Tree) -> Row:
        start = self._starts.get(tree.path, RATE_START)
        rate, tried = search(tree, self._work, start, RATE_S, RATE_LIMIT_S)
        if rate is None:
            last = f"; {tried[-1].rate:,}: {tried[-1].refusal}" if tried else ""
            raise ProbeFailed(f"no rate was borne for {RATE_S[1]} s{last}")
        self._starts[tree.path] = rate
        return {"rate": rate, "tried": msgspec.to_builtins(tried)}


class Pairs:
    """The rows of both trees by probe, pair by pair, and what went badly."""

    def __init__(self, base: Tree, new: Tree) -> None:
        self.trees = {"base": base, "new": new}
        self.rows: dict[str, list[dict[str, Row]]] = {}
        self.troubles: dict[str, list[str]] = {}

    def measure(self, name: str, once: Once) -> None:
        """Add a pair; a tree that gives no row in it is said, and the pair gives no ratio."""
        pair: dict[str, Row] = {}
        done = self.rows.setdefault(name, [])
        for side in ("new", "base") if len(done) % 2 else ("base", "new"):
            try:
                pair[side] = once(self.trees[side])
            except ProbeFailed as failed:
                self._trouble(name, f"{side}: {failed}")
                continue
            for what in PROBLEMS:
                if found := pair[side].get(what):
                    self._trouble(name, f"{side}: {what.replace('_', ' ')} {int(found):,}")
        if len(nice := nices(pair)) > 1:
            self._trouble(name, f"nice {min(nice)} and {max(nice)}: no ratio")
        done.append(pair)

    def _trouble(self, probe: str, what: str) -> None:
        self.troubles.setdefault(probe, []).append(what)

    def values(self, question: Question, side: str) -> list[float]:
        """Return what a tree said, of the pairs in which it said anything."""
        found = (pair[side].get(question.key) for pair in self.rows.get(question.probe, [])
                 if side in pair)  # fmt: skip
        return [float(value) for value in found if value is not None]

    def answers(self, question: Question) -> list[float]:
        """Return the answer of each pair that has one."""
        if question.is_absolute:
            return self.values(question, "new")
        found = []
        for pair in self.rows.get(question.probe, []):
            base, new = (pair.get(side, {}).get(question.key) for side in ("base", "new"))
            if base and new is not None and len(nices(pair)) == 1:
                found.append(new / base)
        return found

    def measured(self, question: Question) -> float | None:
        """Return the median of the answers."""
        return _median(self.answers(question))

    def line(self, question: Question) -> list[str]:
        """Return the cells of COLUMNS."""
        answers, measured = self.answers(question), self.measured(question)
        spread = f"{figure(min(answers))} to {figure(max(answers))}" if answers else "-"
        troubles = self.troubles.get(question.probe, [])
        told = [f"{troubles.count(one)} times {one}" for one in dict.fromkeys(troubles)]
        return [
            question.text,
            figure(question.aim or None),
            figure(question.must or None),
            figure(measured),
            question.verdict(measured),
            figure(_median(self.values(question, "base"))),
            figure(_median(self.values(question, "new"))),
            str(len(answers)),
            spread,
            f"{self.trees['base'].commit}, {self.trees['new'].commit}",
            "; ".join(told).replace("|", "/") or "-",
        ]


def nices(pair: dict[str, Row]) -> set[int]:
    """Return the nice values that both trees' scheduling groups had at the end of a pair; two of
    them say that one tree had more of the processors."""
    return {int(row.get("group_nice", 0)) for row in pair.values()}


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def asked(only: str) -> list[Question]:
    """Return the questions of a list of names, all of an empty one; `cpu-2000` has its parts.

    Raises:
        ValueError: there is no such question.
    """
    names = [name for name in only.split(",") if name]
    known = [question.name for question in QUESTIONS]
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"{unknown[0]}: no such question; there are {', '.join(known)}")
    return [
        question
        for question in QUESTIONS
        if not names or any(f"{question.name}-".startswith(f"{name}-") for name in names)
    ]


def compare(pairs: Pairs, count: int, runs: dict[str, Once], report: Callable[[], None]) -> None:
    """Measure so many pairs of each probe; `report` is called after each pair."""
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    with RESULTS.open("w", encoding="utf-8") as results:
        for number in range(count):
            for name, once in runs.items():
                pairs.measure(name, once)
                row = {"pair": number + 1, "probe": name, **pairs.rows[name][-1]}
                print(json.dumps(row), file=results, flush=True)
                print(json.dumps(row), file=sys.stderr, flush=True)
            report()


def summary(pairs: Pairs, questions: Sequence[Question], count: int) -> Row:
    """Return the JSON row: what was measured of each question; None where it could not be."""
    row: Row = {name: tree.commit for name, tree in pairs.trees.items()}
    row["pairs"] = count
    for question in questions:
        measured = pairs.measured(question)
        row[question.name] = measured if measured is None else round(measured, 3)
    return row


def main() -> int:
    """Measure, write the table and print the row."""
    parser = argparse.ArgumentParser(prog="bench.compare", description="beside an older commit")
    parser.add_argument("--base", required=True, help="the commit to compare with")
    parser.add_argument("--pairs", type=int, default=5, help="runs of each probe in each tree")
    parser.add_argument("--only", default="", help="names of questions, with commas")
    parser.add_argument("--seconds", type=int, default=30, help="window of a steady rate")
    parser.add_argument("--tasks", type=int, default=200_000, help="of Salsify's test")
    parser.add_argument("--json", action="store_true", help="leave README.md alone")
    options = parser.parse_args()
    if min(options.pairs, options.seconds) < 1:
        parser.error("--pairs and --seconds are at least 1")
    try:
        questions = asked(options.only)
    except ValueError as error:
        parser.error(str(error))
    wanted = {question.probe for question in questions}
    found = probes(options.seconds, options.tasks)
    runs = {name: once for name, once in found.items() if name in wanted}
    end_by_signals()
    with ExitStack() as stack:
        try:
            base = stack.enter_context(tree_of(options.base))
        except (subprocess.CalledProcessError, BlockingIOError) as error:
            print(f"{options.base}: cannot be measured: {error}", file=sys.stderr)
            return 1
        pairs = Pairs(base, this_tree())

        def report() -> None:
            lines = [pairs.line(question) for question in questions]
            if not options.json:
                merge_rows(README, BEGIN, END, COLUMNS, lines)

        compare(pairs, options.pairs, runs, report)
    print(json.dumps(summary(pairs, questions, options.pairs)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
