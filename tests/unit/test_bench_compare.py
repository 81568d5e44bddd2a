"""bench.compare and bench.search: what is asked, what a pair answers, and the table."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench import compare, overload, search
from bench.probes.load import Work, sampled
from bench.probes.single import longest_gap_s
from bench.search import GRAIN, Tried, highest, refusal
from bench.section import merge_rows
from bench.trees import ROOT, ProbeFailed, Tree
from cron.crontab.reader import read_crontab

BASE, NEW = (Tree(name, Path(name), Path("python")) for name in ("base1", "new1"))
CPU, LATE, LOG, RATE = (
    next(one for one in compare.QUESTIONS if one.name == name)
    for name in ("cpu-5000", "late", "log", "rate")
)


# ---- the search


class Clock:
    """A trial takes a second or, if it is long, six; the time that is left."""

    def __init__(self, left_s: float) -> None:
        self.left_s = left_s

    def __call__(self) -> float:
        return self.left_s


def bears(most: int, clock: Clock, long_most: int | None = None) -> Callable[[int, bool], str]:
    def trial(rate: int, is_long: bool) -> str:
        clock.left_s -= 6 if is_long else 1
        limit = most if long_most is None or not is_long else long_most
        return "" if rate <= limit else "too much"

    return trial


@pytest.mark.parametrize("most", [3, 70, 900, 4_321, 60_000])
@pytest.mark.parametrize("start", [1, 1_000, 90_000])
def test_the_highest_rate_is_found_from_either_side(most: int, start: int) -> None:
    clock = Clock(200)
    rate, tried = highest(bears(most, clock), start, clock)
    assert rate is not None
    assert rate <= most < rate * GRAIN * GRAIN + 1
    assert tried[-1] == Tried(rate, True, "")


def test_a_search_goes_no_higher_than_the_most_jobs_that_there_may_be() -> None:
    clock = Clock(200)
    rate, tried = highest(bears(10**9, clock), 40_000, clock, most=100_000)
    assert rate == 100_000
    assert max(one.rate for one in tried) == 100_000


def test_a_rate_that_is_borne_only_for_a_short_time_is_lowered() -> None:
    clock = Clock(400)
    rate, tried = highest(bears(1_000, clock, long_most=700), 1_000, clock)
    assert rate is not None
    assert 600 < rate <= 700
    assert [one.refusal for one in tried if one.is_long][:1] == ["too much"]


def test_a_search_ends_when_its_time_is_over_and_where_nothing_is_borne() -> None:
    clock = Clock(20)
    assert highest(bears(1_000, clock, long_most=0), 1_000, clock)[0] is None
    assert clock.left_s > -6, "no trial began after the time was over"
    clock = Clock(1_000)
    rate, tried = highest(bears(0, clock), 50, clock)
    assert rate is None
    assert tried[-1].rate == 1


def test_a_rate_is_borne_when_everything_began_within_a_second_and_was_done() -> None:
    good = {
        "lateness_p95_ms": 999, "not_done": 0, "open": 0, "missing": 0, "leader_changed": False
    }  # fmt: skip
    assert refusal(good) == ""
    assert refusal({**good, "lateness_p95_ms": 1_000}) == "p95 1,000 ms"
    assert refusal({**good, "lateness_p95_ms": None}) == "nothing was started"
    assert refusal({**good, "not_done": 1}) == "launches not done"
    assert refusal({**good, "missing": 2}) == "launches missing"
    assert refusal({**good, "leader_changed": True}) == "another leader"


def test_a_search_asks_the_tree_and_takes_a_trial_that_hangs_for_too_much(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run_probe(tree: Tree, name: str, options: dict[str, Any], limit_s: float) -> Any:
        assert (tree, name, limit_s) == (NEW, "trial", options["seconds"] + search.TRIAL_S)
        if options["rate"] > 100:
            raise ProbeFailed("did not end within 70 s")
        return {
            "lateness_p95_ms": 5, "not_done": 0, "open": 0, "missing": 0, "leader_changed": False
        }  # fmt: skip

    monkeypatch.setattr(search, "run_probe", run_probe)
    rate, _ = search.search(NEW, {"kind": "noop"}, 100, (10, 60), 600)
    assert rate is not None
    assert 90 < rate <= 100
    told = capsys.readouterr().err.splitlines()
    assert told[:2] == [
        "new1: 100/s for 10 s: borne",
        "new1: 160/s for 10 s: did not end within 70 s",
    ]
    assert told[-1] == f"new1: {rate}/s for 60 s: borne"


def test_each_search_of_a_tree_begins_where_the_one_before_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    starts = []

    def found(tree: Tree, _work: object, start: int, *_times: object) -> Any:
        starts.append((tree.commit, start))
        return (9_000, []) if tree is NEW else (None, [Tried(3_750, False, "p95 9,000 ms")])

    monkeypatch.setattr(compare, "search", found)
    once = compare.probes(30, 200)["rate"]
    assert [once(NEW)["rate"], once(NEW)["rate"]] == [9_000, 9_000]
    with pytest.raises(ProbeFailed, match="no rate was borne for 60 s; 3,750: p95 9,000 ms"):
        once(BASE)
    assert starts == [("new1", compare.RATE_START), ("new1", 9_000), ("base1", compare.RATE_START)]


# ---- the probes' own arithmetic


def test_few_seconds_of_a_fast_window_are_read_and_the_last_is_among_them() -> None:
    assert sampled(100, 110, 200) == list(range(100, 110))
    assert len(sampled(0, 60, 200)) == 12
    assert sampled(0, 60, 60_000) == [11, 23, 35, 47, 59]
    assert sampled(0, 60, 100_000) == [19, 39, 59]


def test_the_longest_gap_is_between_starts_that_follow_each_other() -> None:
    assert longest_gap_s([9_000, 1_000, 1_500, 4_000]) == 5.0
    assert longest_gap_s([1]) is None


@pytest.mark.parametrize("kind", ["noop", "handler", "command"])
def test_every_kind_of_work_has_jobs_that_can_be_read(kind: str) -> None:
    work = Work(kind=kind, line="sleep 1")
    reading = read_crontab(work.crontab(45).encode(), file="f")
    assert not reading.problems
    assert [job.name for job in reading.jobs] == work.names(45)
    assert (work.shape().kind == "command") == (kind == "command")


# ---- pairs


def pairs_of(*rows: tuple[Any, Any], probe: str = "cost-5000") -> compare.Pairs:
    """Pairs of which the base and the new tree said these; an exception is raised."""
    found = compare.Pairs(BASE, NEW)
    for base, new in rows:
        said = {BASE.path: base, NEW.path: new}

        def once(tree: Tree, said: dict[Path, Any] = said) -> dict[str, Any]:
            row = said[tree.path]
            if isinstance(row, ProbeFailed):
                raise row
            return dict(row)

        found.measure(probe, once)
    return found


def test_what_counts_is_the_median_of_the_ratios_within_pairs() -> None:
    pairs = pairs_of(*(
        ({"cpu_us_per_launch": base}, {"cpu_us_per_launch": new})
        for base, new in ((100, 20), (200, 50), (300, 30))
    ))  # fmt: skip
    assert pairs.answers(CPU) == [0.2, 0.25, 0.1]
    line = dict(zip(compare.COLUMNS, pairs.line(CPU), strict=True))
    assert (line["measured"], line["met"], line["spread"]) == ("0.2", "must", "0.1 to 0.25")
    assert (line["base"], line["new"], line["pairs"]) == ("200", "30", "3")
    assert line["what went badly"] == "-"


def test_who_is_first_changes_from_pair_to_pair() -> None:
    seen: list[str] = []

    def once(tree: Tree) -> dict[str, Any]:
        seen.append(tree.commit)
        return {}

    pairs = compare.Pairs(BASE, NEW)
    for _ in range(3):
        pairs.measure("cli", once)
    assert seen == ["base1", "new1", "new1", "base1", "base1", "new1"]


def test_a_base_that_cannot_do_it_is_said_and_gives_no_ratio() -> None:
    failed = ProbeFailed("did not end within 330 s")
    good = {"cpu_us_per_launch": 50, "log_bytes_per_launch": 14, "skipped": 7}
    pairs = pairs_of((failed, good), (failed, {**good, "skipped": 0}))
    line = dict(zip(compare.COLUMNS, pairs.line(CPU), strict=True))
    assert (line["measured"], line["met"], line["base"], line["new"]) == ("-", "-", "-", "50")
    told = "2 times base: did not end within 330 s; 1 times new: skipped 7"
    assert line["what went badly"] == told
    assert pairs.measured(LOG) == 14, "a figure of the new tree needs no base"
    row = compare.summary(pairs, [CPU, LOG], 2)
    assert row == {"base": "base1", "new": "new1", "pairs": 2, "cpu-5000": None, "log": 14}
    assert json.loads(json.dumps(row)) == row


def test_a_bound_is_met_from_below_or_from_above() -> None:
    assert [LATE.verdict(value) for value in (0.2, 0.5, 0.51, None)] == [
        "aim",
        "must",
        "**no**",
        "-",
    ]
    assert [RATE.verdict(value) for value in (6, 3, 2.9)] == ["aim", "must", "**no**"]


def test_a_name_stands_for_a_question_and_its_parts() -> None:
    assert [one.name for one in compare.asked("late,cli")] == ["late", "cli"]
    parts = [one.name for one in compare.asked("cpu-2000")]
    assert parts[:2] == ["cpu-2000", "cpu-2000-leader"]
    assert len(parts) == 5
    assert compare.asked("") == [*compare.QUESTIONS]
    with pytest.raises(ValueError, match="cpu: no such question; there are cpu-2000"):
        compare.asked("cpu")


def test_every_question_has_a_probe_and_a_line_of_its_own() -> None:
    assert {one.probe for one in compare.QUESTIONS} == set(compare.probes(30, 200))
    for what in ("name", "text"):
        assert len({getattr(one, what) for one in compare.QUESTIONS}) == len(compare.QUESTIONS)


def test_pairs_are_kept_as_they_come_and_reported_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compare, "RESULTS", tmp_path / "results" / "compare.jsonl")
    pairs, reported = compare.Pairs(BASE, NEW), []
    runs = {"cli": lambda tree: {"call_to_pass": 9}}
    compare.compare(pairs, 2, runs, lambda: reported.append(len(pairs.rows["cli"])))
    assert reported == [1, 2]
    kept = [json.loads(line) for line in compare.RESULTS.read_text().splitlines()]
    assert [row["pair"] for row in kept] == [1, 2]
    assert kept[0]["base"] == {"call_to_pass": 9}


# ---- the table


def test_rows_of_before_stay_unless_their_question_was_asked_again(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text("prose\n<a>\n\nnot measured yet\n\n<b>\nmore\n")
    columns = ("question", "measured")
    merge_rows(readme, "<a>", "<b>", columns, [["one", "1"], ["two", "2"]])
    merge_rows(readme, "<a>", "<b>", columns, [["three", "3"], ["one", "9"]])
    table = "| question | measured |\n| --- | --: |\n| one | 9 |\n| two | 2 |\n| three | 3 |"
    assert readme.read_text() == f"prose\n<a>\n\n{table}\n\n<b>\nmore\n"
    merge_rows(readme, "<a>", "<b>", ("question", "other"), [["four", "4"]])
    assert "one" not in readme.read_text(), "rows of other columns cannot be kept"


def test_the_marks_are_in_the_real_file() -> None:
    text = (ROOT / "bench" / "README.md").read_text()
    for bench in (compare, overload):
        assert text.index(bench.BEGIN) < text.index(bench.END)
