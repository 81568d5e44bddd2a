"""bench.overload: what it offers, what it watches, and what it counts as bad."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bench import overload
from bench.probes.load import Work
from bench.probes.overload import NORMAL_S, Watch, missing_of, of_calm, recovered_s
from bench.search import Tried
from bench.trees import ProbeFailed, Tree
from cron.api.launches import AuditReport, AuditRequest, LaunchView, Violation
from cron.api.members import StatusRow
from cron.errors import Unavailable
from tests.unit.dev_fakes import launch

TREE = Tree("abc", Path(), Path("python"))
GOOD = {
    "kind": "handler", "factor": 10, "busy": 0, "commit": "abc", "seconds": 300,
    "borne_per_second": 700, "offered_per_second": 7_000, "goodput_per_second": 650.5,
    "goodput_ratio": 0.929, "leader_changes": 0, "executors_lost": 0, "rss_mb_max": 150.2,
    "missing": 0, "lost": 0, "recovered_s": 4, "lateness_p95_ms": 900, "unanswered": 0,
}  # fmt: skip


# ---- what is offered


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What the overload is asked to do; a cell bears 700 a second."""
    found: list[dict[str, Any]] = []

    def search(*_of: Any) -> tuple[int, list[Tried]]:
        return 700, [Tried(700, True, "")]

    def run_probe(_tree: Tree, name: str, options: dict[str, Any], limit_s: float) -> Any:
        assert name == "overload"
        found.append({**options, "limit_s": limit_s})
        return {"goodput_per_second": 7}

    monkeypatch.setattr(overload, "search", search)
    monkeypatch.setattr(overload, "run_probe", run_probe)
    return found


def test_so_many_times_what_is_borne_is_offered_by_a_hundred_thousand_jobs_at_most(
    asked: list[dict[str, Any]],
) -> None:
    rows = [*overload.measure(TREE, "handler", [10, 400], 300)]
    assert [one["offered"] for one in asked] == [7_000, 100_000]
    assert asked[0]["limit_s"] == 300 + overload.COUNT_S
    assert [row["factor"] for row in rows] == [10, 400]
    assert (rows[0]["borne_per_second"], rows[0]["goodput_per_second"]) == (700, 7)


def test_a_cell_that_collapses_still_has_its_row(
    asked: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def collapses(*_of: Any) -> Any:
        raise ProbeFailed("did not end within 900 s")

    monkeypatch.setattr(overload, "run_probe", collapses)
    [row] = overload.measure(TREE, "command", [10], 300)
    assert overload.troubles(row) == ["did not end within 900 s"]
    cells = overload.line({**row, "busy": 2, "commit": "abc"})
    assert cells[0] == "command, 10 times, 2 busy loops"
    assert cells[1:4] == ["7,000", "700", "-"]
    monkeypatch.setattr(overload, "search", lambda *_of: (None, []))
    [row] = overload.measure(TREE, "command", [10], 300)
    assert row["borne_per_second"] is None
    assert overload.troubles(row) == ["no rate was borne"]


def test_the_capacity_of_every_kind_is_that_of_its_slots() -> None:
    for kind, options in overload.WORKS.items():
        work = msgspec.convert(options, Work)
        assert (work.kind, work.shape().executors) == (kind, work.executors)
    assert set(overload.WORKS) == set(overload.STARTS) == set(overload.FACTORS)


def test_busy_loops_end_with_what_they_are_beside() -> None:
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    before = children.read_text().split()
    with overload.busy_loops(2):
        loops = set(children.read_text().split()) - set(before)
    assert len(loops) == 2
    assert not any(Path("/proc", pid).exists() for pid in loops)


# ---- what is bad


def test_a_good_row_has_a_cell_for_each_column_and_nothing_bad() -> None:
    assert overload.troubles(GOOD) == []
    cells = overload.line(GOOD)
    assert len(cells) == len(overload.COLUMNS) + 3
    assert (cells[0], cells[-1]) == ("handler, 10 times", "-")


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("goodput_ratio", 0.79, "goodput below 0.8"),
        ("leader_changes", 1, "1 leader changes"),
        ("executors_lost", 2, "2 executors lost"),
        ("missing", 1_200, "1,200 missing"),
        ("missing", None, "no audit"),
        ("rss_mb_max", 600.0, "600 MB and more"),
        ("recovered_s", 16, "not normal again within 15 s"),
        ("recovered_s", None, "not normal again within 15 s"),
        ("unanswered", 3, "status gave no answer 3 times"),
    ],
)
def test_what_must_not_be_is_said(field: str, value: object, told: str) -> None:
    assert overload.troubles({**GOOD, field: value}) == [told]


# ---- what is watched


def status(leader: str, term: int, *executors: str, lost: str = "") -> list[StatusRow]:
    rows = [StatusRow(kind="replica", id=leader, role="leader", term=term)] if leader else []
    rows += [StatusRow(kind="executor", id=name, role="connected") for name in executors]
    return rows + ([StatusRow(kind="executor", id=lost, role="lost")] if lost else [])


def test_another_leader_or_term_is_a_change_and_an_executor_that_is_gone_is_lost() -> None:
    answers = iter([
        status("r1", 3, "e1", "e2"),
        status("", 0),
        status("r1", 3, "e1", "e2"),
        status("r2", 4, "e1", lost="e2"),
        status("r2", 5, "e1", lost="e2"),
    ])  # fmt: skip
    watch = Watch([os.getpid()], lambda: next(answers))
    for _ in range(5):
        watch.look()
    assert (watch.leader_changes, watch.executors_lost, watch.unanswered) == (2, 1, 0)
    assert watch.rss_mb_max > 1


def test_a_status_without_an_answer_is_counted_and_a_dead_process_has_no_memory() -> None:
    def nobody() -> list[StatusRow]:
        raise Unavailable("nobody")

    with subprocess.Popen(["true"]) as over:
        pass
    watch = Watch([over.pid], nobody)
    watch.look()
    assert (watch.unanswered, watch.rss_mb_max) == (1, 0)


# ---- what is missing


class Auditor:
    """Answers audits of single jobs; of some there is no answer."""

    def __init__(self, reports: dict[str, AuditReport]) -> None:
        self.reports = reports
        self.asked: list[str] = []

    def ask(self, _rpc: Any, asked: AuditRequest) -> AuditReport:
        self.asked.append(asked.job)
        assert asked.since_ms == 100_000
        if asked.job not in self.reports:
            raise Unavailable("nobody")
        return self.reports[asked.job]


def test_instants_without_a_row_and_broken_promises_are_missing_and_what_is_unproven_is_not() -> (
    None
):
    def violations(*kinds: str) -> list[Violation]:
        return [Violation(job="t/j", scheduled_s=1, kind=kind, message="") for kind in kinds]

    well = AuditReport(instants=9, ran=3, skipped=2, skipped_in_runs=3, lost=1)
    auditor: Any = Auditor({
        "t/well": well,
        "t/gap": msgspec.structs.replace(well, skipped=0),
        "t/twice": msgspec.structs.replace(well, violations=violations("twice")),
        "t/long": msgspec.structs.replace(well, ran=0, violations=violations("unproven")),
    })  # fmt: skip
    names = ["t/well", "t/gap", "t/twice", "t/long", "t/unknown"]
    assert missing_of(auditor, names, 100) == (3, 3)
    assert missing_of(auditor, ["t/unknown"], 100) == (None, 0)


def test_of_many_jobs_a_thousand_are_audited_evenly_spread() -> None:
    auditor: Any = Auditor({})
    missing_of(auditor, [str(number) for number in range(2_500)], 100)
    assert auditor.asked[:2] == ["0", "3"]
    assert len(auditor.asked) == 834


# ---- when it is normal again


def second(*late_ms: int | None, state: str = "succeeded") -> list[LaunchView]:
    return [launch(n, lateness_ms=late, state=state) for n, late in enumerate(late_ms)]


def test_lateness_is_normal_again_once_it_stays_so_for_some_seconds() -> None:
    well, late = second(5, 8), second(5, 4_000)
    seconds = [late, well, well, late, *[well] * NORMAL_S]
    assert recovered_s([*enumerate(seconds, 100)], 100) == 4
    assert recovered_s([*enumerate([well] * NORMAL_S, 100)], 100) == 0
    assert recovered_s([*enumerate(seconds[:-1], 100)], 100) is None


def test_a_second_whose_launches_were_skipped_or_are_not_there_is_not_normal() -> None:
    for bad in (second(5, None), second(5, state="skipped"), []):
        seconds = [bad, *[second(5)] * NORMAL_S]
        assert recovered_s([*enumerate(seconds, 100)], 100) == 1


def test_only_jobs_that_stay_tell_when_it_is_normal_again() -> None:
    rows = [msgspec.structs.replace(launch(1), job=f"j{number}") for number in (0, 9, 10, 700)]
    assert [row.job for row in of_calm(rows, 10)] == ["j0", "j9"]
