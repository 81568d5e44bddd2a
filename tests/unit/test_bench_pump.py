"""bench: the tasks of many tenants, how fair a queue was to them, and the table."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import msgspec
import pytest

from bench.pump import __main__ as program
from bench.pump import table
from bench.pump.fairness import (
    Fairness,
    Served,
    Wait,
    by_priority,
    indexes,
    jain,
    longest_wait,
    summarize,
)
from bench.pump.table import Cores, Run, machine_us
from bench.pump.workload import HUGE, Workload, shares


def served(*turns: int, priority: int = 0, each_s: float = 1.0) -> list[Served]:
    """Tasks of these tenants, one after the other, beginning after one `each_s`."""
    return [Served(priority, tenant, n * each_s) for n, tenant in enumerate(turns, 1)]


# ---- the workload


def test_shares_are_as_equal_as_whole_numbers_may_be() -> None:
    assert shares(10, 3) == [4, 3, 3]
    assert shares(2, 3) == [1, 1, 0]
    assert sum(shares(100_000, 199)) == 100_000


def test_one_of_200_tenants_owns_half_of_200_000_tasks() -> None:
    backlog = Workload().backlog()
    assert sum(backlog.values()) == 200_000
    assert {tenant for _, tenant in backlog} == set(range(200))
    owned = [sum(backlog[priority, tenant] for priority in range(3)) for tenant in range(200)]
    assert owned[HUGE] == 100_000
    assert set(owned[1:]) == {502, 503}
    assert min(backlog.values()) >= 167, "everybody has something of every priority"


def test_the_huge_tenant_is_in_front() -> None:
    assert [tenant for _, tenant in Workload().backlog()][:4] == [HUGE, HUGE, HUGE, 1]


# ---- Jain's index


def test_jains_index_is_one_for_equals_and_one_nth_for_one_of_n() -> None:
    assert jain([5, 5, 5, 5]) == 1.0
    assert jain([8, 0, 0, 0]) == 0.25
    assert jain([4, 4, 0, 0]) == 0.5
    assert jain([3, 1]) == pytest.approx(16 / 20)


def test_a_window_in_which_nobody_got_anything_is_no_unfairness() -> None:
    assert jain([0, 0]) == 1.0
    assert jain([]) == 1.0


def test_windows_compare_those_who_still_wait_at_their_end() -> None:
    backlog = {(0, 0): 9, (0, 1): 2, (0, 2): 9}
    rows = served(0, 1, 2, 0, 1, 2, 0, 0, 0, 2, 0, 0)
    # Tenant 1 is through in the first window, and not to be compared with then.
    assert indexes(rows, backlog, size=6) == [1.0, jain([5, 1])]


def test_a_window_that_is_not_full_tells_nothing() -> None:
    assert indexes(served(0, 0, 0), {(0, 0): 9, (0, 1): 9}, size=4) == []


def test_a_tenant_that_is_alone_is_treated_fairly_by_definition() -> None:
    assert indexes(served(0, 0, 0, 0), {(0, 0): 9, (0, 1): 0}, size=2) == []


def test_a_starved_tenant_shows_in_the_index() -> None:
    assert indexes(served(0, 0, 0, 0), {(0, 0): 9, (0, 1): 1}, size=2) == [0.5, 0.5]


def test_priorities_are_looked_at_apart() -> None:
    backlog = {(0, 0): 9, (0, 1): 9, (1, 0): 9, (1, 1): 9}
    rows = served(0, 1, 0, 1) + served(0, 0, 0, 0, priority=1)
    assert indexes(rows, backlog, size=4) == [1.0, 0.5]
    assert list(by_priority(rows)) == [0, 1]


# ---- the longest wait


def test_the_wait_for_the_first_turn_counts_from_the_beginning() -> None:
    backlog = {(0, HUGE): 9, (0, 1): 1}
    assert longest_wait(served(0, 0, 0, 1, 0), backlog, 5.0) == Wait(4.0, 3)


def test_the_wait_between_two_turns_counts_who_came_between() -> None:
    backlog = {(0, HUGE): 9, (0, 1): 2}
    assert longest_wait(served(1, 0, 0, 1, 0, 0, 0, 0), backlog, 8.0) == Wait(3.0, 2)


def test_a_tenant_without_tasks_waits_for_nothing() -> None:
    backlog = {(0, HUGE): 99, (0, 1): 1, (0, 2): 0}
    assert longest_wait(served(1, 0, 0, 0, 0, 0), backlog, 6.0) == Wait(1.0, 0)


def test_who_still_waits_at_the_end_has_waited_at_least_so_long() -> None:
    backlog = {(0, HUGE): 99, (0, 1): 2}
    assert longest_wait(served(1, 0, 0, 0), backlog, 10.0) == Wait(9.0, 3, True)


def test_the_huge_tenant_has_no_wait_that_matters() -> None:
    backlog = {(0, HUGE): 9, (0, 1): 3}
    assert longest_wait(served(1, 1, 1), backlog, 9.0) == Wait(1.0, 0)


def test_a_lower_priority_begins_to_wait_when_it_is_its_turn() -> None:
    backlog = {(0, HUGE): 3, (1, HUGE): 2, (1, 1): 1}
    rows = [*served(0, 0, 0), Served(1, 0, 4.0), Served(1, 0, 5.0), Served(1, 1, 6.0)]
    assert longest_wait(rows, backlog, 6.0) == Wait(2.0, 2)


def test_a_run_is_summed_up() -> None:
    backlog = {(0, tenant): 2_000 for tenant in range(4)}
    rows = served(*[n % 4 for n in range(2_000)], each_s=0.5)
    found = summarize(rows, backlog, 1_000.0)
    assert (found.jain_median, found.jain_least, found.windows) == (1.0, 1.0, 2)
    assert found.longest_wait.others == 3
    assert summarize(rows[:10], backlog, 5.0).jain_median is None


def test_the_machine_is_busy_when_it_is_neither_idle_nor_waiting() -> None:
    ticks = os.sysconf("SC_CLK_TCK")
    assert machine_us(f"cpu  {ticks} 0 {ticks} 999 888 0 {ticks} 777 0 0") == 3_000_000
    assert machine_us() > 0


def test_what_the_bench_itself_uses_is_not_the_strangers(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, ours, now = iter([0, 5_000_000]), iter([0, 2_000_000]), iter([10.0, 12.0])
    monkeypatch.setattr(table, "machine_us", lambda: next(machine))
    monkeypatch.setattr(table, "cpu_us", lambda pid: next(ours))
    monkeypatch.setattr(time, "monotonic", lambda: next(now))
    assert Cores().strangers() == 1.5


# ---- the table


def run(**fields: object) -> Run:
    fairness = Fairness(jain_median=0.9912, jain_least=0.95, windows=3, longest_wait=Wait(0.5, 199))
    made = Run(tasks=200_000, seconds=4.0, cpu_us=12.34, fairness=fairness, strangers=0.02)
    return msgspec.structs.replace(made, **fields)


def test_a_row_has_medians_and_the_spread() -> None:
    runs = [run(seconds=seconds) for seconds in (4.0, 2.0, 10.0)]
    assert table.row(runs) == [
        *("50,000", "20,000", "100,000", "12.3"),
        *("0.991", "0.95", "500", "199", "200,000", "0", "0.02"),
    ]  # fmt: skip


def test_a_wait_that_did_not_end_in_one_of_the_runs_is_a_bound() -> None:
    over = Fairness(
        jain_median=None, jain_least=None, windows=0, longest_wait=Wait(4.0, 9_000, True)
    )
    cells = table.row([run(), run(fairness=over), run(fairness=over)])
    assert cells[6:8] == ["> 4,000", "> 9,000"]
    assert table.row([run(fairness=over)])[4:6] == ["-", "-"]


def test_rounds_are_kept_as_they_come_and_written_into_their_own_section(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(program, "RESULTS", tmp_path / "results" / "pump.jsonl")
    monkeypatch.setattr(program, "fdatasyncs_per_second", lambda: 700)
    runs = program.measure(2, run)
    kept = [json.loads(line) for line in program.RESULTS.read_text().splitlines()]
    assert [row["fdatasync_per_second"] for row in kept] == [700, 700]
    assert "round 2: 50,000 tasks/s" in capsys.readouterr().err
    readme = tmp_path / "README.md"
    readme.write_text(f"# Title\n\n{table.BEGIN}\nold\n{table.END}\n\nprose\n")
    monkeypatch.setattr(table, "README", readme)
    table.write(Workload(), runs)
    text = readme.read_text()
    assert "old" not in text
    assert text.endswith(f"{table.END}\n\nprose\n")
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert len(lines) == 3
    assert len({line.count("|") for line in lines}) == 1
