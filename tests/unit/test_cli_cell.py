from __future__ import annotations

import json
import time

import msgspec
import pytest

from cron.api import client as route
from cron.api.launches import TASKS_BEGIN, AuditReport, AuditRequest, Violation
from cron.api.members import JoinProgress, StatusRow, TaskCounts
from tests.unit.api_rig import NOON_S, FakeBackend, Follower, asks, closed_address, run_cli, serving

ROWS = [
    StatusRow(
        kind="replica",
        id="r1",
        address="127.0.0.1:7400",
        pid=77,
        role="leader",
        term=4,
        applied=88,
        digest="ab" * 32,
        version="0.1.0",
        leader="r1",
        clock_offset_ms=0,
        tzdata="2026f",
        since_ms=NOON_S * 1000,
    ),
    StatusRow(kind="replica", id="r2", role="unreachable", clock_offset_ms=-2_500),
    StatusRow(kind="executor", id="e1", pid=78, role="connected", slots=8, running=3),
]


async def test_status_as_json_begins_with_the_promised_keys():
    async with serving(FakeBackend(status=ROWS)) as server:
        result = await run_cli("status", "-o", "json", server=server)
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    keys = ["kind", "id", "address", "pid", "role", "term", "applied", "digest"]
    assert [list(row)[:8] for row in rows] == [keys] * 3
    assert rows[0]["digest"] == "ab" * 32
    assert rows[0]["since"] == "2026-11-20T15:00:00.000Z"
    assert rows[0]["clock_offset_ms"] == 0
    assert (rows[1]["role"], rows[1]["pid"], rows[1]["address"]) == ("unreachable", None, None)


async def test_status_as_a_table_names_slots_and_clocks_that_are_off():
    async with serving(FakeBackend(status=ROWS)) as server:
        result = await run_cli("status", server=server)
    _, leader, away, executor, verdict = result.stdout.splitlines()
    assert verdict.startswith("works, with faults: r1 leads; r2 does not answer")
    assert leader.split()[:5] == ["replica", "r1", "127.0.0.1:7400", "77", "leader"]
    assert leader.split()[5:8] == ["4", "88", "abababababab"]
    assert "clock -2.5s off" in away
    assert "3 of 8 slots" in executor


async def test_status_counts_launches_that_wait_for_slots_of_an_executor():
    busy = [msgspec.structs.replace(ROWS[-1], running=71)]
    async with serving(FakeBackend(status=busy)) as server:
        result = await run_cli("status", server=server)
    assert "71 launches, 8 slots" in result.stdout


async def test_status_counts_tasks():
    counts = TaskCounts(waiting=1200, due=3, running=2)
    leader = [msgspec.structs.replace(ROWS[0], tasks=counts)]
    async with serving(FakeBackend(status=leader)) as server:
        shown = await run_cli("status", server=server)
        as_json = await run_cli("status", "-o", "json", server=server)
    assert shown.stdout.splitlines()[-2] == "tasks: 1,200 waiting, 3 due, 2 running"
    tasks = json.loads(as_json.stdout)["tasks"]
    assert tasks == {"waiting": 1200, "due": 3, "running": 2}


async def test_a_cell_of_which_nobody_answers_exits_with_five(monkeypatch):
    monkeypatch.setattr(route, "UNREACHED_MS", 1_000)
    begun = time.monotonic()
    result = await run_cli("status", server=closed_address())
    assert time.monotonic() - begun < 50
    assert result.exit_code == 5
    assert "connection refused" in result.stderr
    assert result.stdout == ""


async def test_a_cell_without_a_leader_exits_with_five_within_its_timeout():
    async with serving(Follower(None)) as server:
        begun = time.monotonic()
        result = await run_cli("--timeout", "3s", "jobs", server=server)
        assert time.monotonic() - begun < 50
    assert result.exit_code == 5
    assert result.stderr.startswith("raftcron: no leader within 3 s\n  hint: ")


async def test_options_work_before_and_after_the_command():
    backend = FakeBackend(status=ROWS)
    async with serving(backend) as server:
        wrong = closed_address()
        before = await run_cli("--server", server, "-o", "json", "status", server=wrong)
        after = await run_cli("status", "--server", server, "-o", "json", server=wrong)
        nearer = await run_cli("--server", wrong, "status", "--server", server, "-o", "json")
    assert before.exit_code == after.exit_code == nearer.exit_code == 0
    assert before.stdout == after.stdout == nearer.stdout


@pytest.mark.parametrize("server", ["192.0.2.1:7400", "127.0.0.1:x", ",", "h" * 5_000])
async def test_a_server_that_may_not_be_asked_is_refused(server):
    result = await run_cli("status", server=server)
    assert result.exit_code == 2
    assert "raftcron: " in result.stderr


@pytest.mark.parametrize(
    "arguments", [["-o", "xml", "status"], ["--timeout", "0", "status"], ["stat"], ["status", "x"]]
)
async def test_what_is_no_command_line_exits_with_two(arguments):
    assert (await run_cli(*arguments)).exit_code == 2


async def test_an_audit_without_a_violation_exits_with_zero():
    report = AuditReport(
        jobs=2,
        instants=10,
        launches=7,
        ran=4,
        skipped=2,
        skipped_in_runs=3,
        runs=1,
        open=1,
        extra_attempts=1,
        manual=3,
        since_ms=1,
        until_ms=NOON_S * 1000,
    )
    backend = FakeBackend(audit=report)
    async with serving(backend) as server:
        result = await run_cli("audit", "--since", "2026-11-20T15:00:00Z", server=server)
        row = await run_cli("audit", "backup", "-o", "json", server=server)
    assert result.exit_code == row.exit_code == 0
    assert result.stdout.splitlines()[1:] == [
        "10 instants = 4 ran + 2 skipped or cancelled one by one + 3 skipped in 1 stretch + 1 open",
        "besides: 1 extra attempt (backfills, retries), 3 manual launches, "
        "0 amendments (late report)",
        "no violation",
    ]
    told = json.loads(row.stdout)
    assert told["ok"] is True
    assert told["instants"] == sum(told[k] for k in ("ran", "skipped", "skipped_in_runs", "open"))
    assert (told["runs"], told["extra_attempts"], told["manual"], told["amendments"]) == (
        1,
        1,
        3,
        0,
    )
    assert backend.calls == [
        ("audit", (asks("audit", "", NOON_S * 1000, TASKS_BEGIN),)),
        ("audit", (asks("audit", "default/backup", 0),)),
    ]


async def test_an_audit_of_many_tasks_goes_on_part_by_part():
    violation = Violation(job="default/q:k", scheduled_s=NOON_S, kind="missing", message="no row")

    def part(request: AuditRequest) -> AuditReport:
        nexts = {TASKS_BEGIN: "00000000000000aa", "00000000000000aa": ""}
        is_first = request.tasks_after == TASKS_BEGIN
        return AuditReport(
            jobs=2 * is_first, tasks=5, tasks_ran=4, tasks_open=1,
            tasks_next=nexts[request.tasks_after],
            violations=[] if is_first else [violation],
        )  # fmt: skip

    async with serving(FakeBackend(audit=part)) as server:
        result = await run_cli("audit", "-o", "json", server=server)
    told = json.loads(result.stdout)
    assert (told["jobs"], told["tasks"], told["tasks_ran"], told["tasks_open"]) == (2, 10, 8, 2)
    assert (result.exit_code, len(told["violations"])) == (1, 1)


async def test_what_a_restore_lost_is_named_and_not_called_skipped():
    report = AuditReport(jobs=1, instants=9, ran=2, lost=6, lost_stretches=2, open=1)
    async with serving(FakeBackend(audit=report)) as server:
        result = await run_cli("audit", server=server)
        row = await run_cli("audit", "-o", "json", server=server)
    assert result.stdout.splitlines()[1] == (
        "9 instants = 2 ran + 0 skipped or cancelled one by one + 0 skipped in 0 stretches + "
        "6 lost in 2 stretches + 1 open"
    )
    told = json.loads(row.stdout)
    assert (told["lost"], told["lost_stretches"], told["skipped_in_runs"]) == (6, 2, 0)


async def test_instants_without_a_row_are_counted_too():
    report = AuditReport(jobs=1, instants=3, ran=1)
    async with serving(FakeBackend(audit=report)) as server:
        result = await run_cli("audit", server=server)
    assert "0 open + 2 without a row\n" in result.stdout


async def test_an_audit_of_all_time_says_so():
    async with serving(FakeBackend(audit=AuditReport(until_ms=NOON_S * 1000))) as server:
        result = await run_cli("audit", server=server)
    assert result.stdout.startswith("from the beginning to 2026-11-20 15:00:00 UTC: ")


async def test_an_audit_with_a_violation_exits_with_one_and_names_it():
    violation = Violation(
        job="default/a", scheduled_s=NOON_S, kind="missing", message="there is no row"
    )
    async with serving(FakeBackend(audit=AuditReport(violations=[violation]))) as server:
        result = await run_cli("audit", server=server)
        row = await run_cli("audit", "-o", "json", server=server)
    assert result.exit_code == row.exit_code == 1
    line = "violation: a at 2026-11-20 15:00:00 UTC: missing: there is no row"
    assert line in result.stdout
    assert json.loads(row.stdout)["violations"] == [
        {
            "job": "a",
            "tenant": "default",
            "scheduled_at": "2026-11-20T15:00:00.000Z",
            "kind": "missing",
            "message": "there is no row",
        }
    ]


# ---- who stands for an id


async def test_status_shows_who_stands_for_an_id_and_how_far_it_is():
    rows = [
        StatusRow(kind="replica", id="r1", role="leader", incarnation=1, member_state="votes",
                  matched=1_500),
        StatusRow(kind="replica", id="r2", role="learner", incarnation=2, member_state="joining",
                  matched=0, joining=JoinProgress("dump", 40_000_000, 100_000_000)),
        StatusRow(kind="replica", id="r3", incarnation=1, member_state="votes", matched=1_401,
                  note="it does not answer"),
        StatusRow(kind="replica", id="r4", incarnation=1, member_state="votes", matched=1_400),
    ]  # fmt: skip
    async with serving(FakeBackend(status=rows)) as server:
        table = await run_cli("status", server=server)
        told = await run_cli("status", "-o", "json", server=server)
    _, leader, joins, third, fourth, _ = table.stdout.splitlines()
    assert leader.endswith("votes #1")
    assert "joining #2" in joins
    assert joins.endswith("receives the state: 40 of 100 MB")
    assert third.split("votes #1")[1].strip() == "it does not answer", "99 are on their way"
    assert fourth.endswith("100 entries behind")
    one, two, *_ = [json.loads(line) for line in told.stdout.splitlines()]
    assert (one["incarnation"], one["member_state"], one["matched"]) == (1, "votes", 1_500)
    assert one["joining"] is None
    progress = {"stage": "dump", "done": 40_000_000, "goal": 100_000_000, "text": ""}
    assert (two["joining"], two["matched"]) == (progress, 0)
