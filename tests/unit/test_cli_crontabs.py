from __future__ import annotations

import json

import pytest
from click.testing import Result

from cron import limits
from cron.api.jobs import ApplyReport, ApplyRequest, JobChange, SourceFile
from cron.errors import CrontabError, Problem
from tests.unit.api_rig import NOON_S, FakeBackend, run_cli, serving

GOOD = b"#: name=backup\n0 3 * * * true\n"
BAD = b"61 * * * * true\n* * * *\n"

REPORT = ApplyReport(
    zone="UTC",
    source="jobs.crontab",
    revision=4,
    changes=[
        JobChange(
            action="added",
            job="default/new",
            schedule="? 3 * * *",
            resolved="17 3 * * *",
            zone="UTC",
            next_after_s=[NOON_S, NOON_S + 60],
        ),
        JobChange(
            action="changed",
            job="acme/old",
            schedule="@daily",
            resolved="0 0 * * *",
            zone="Europe/Berlin",
            what=["schedule", "timeout"],
            next_before_s=[NOON_S],
            next_after_s=[NOON_S + 1],
        ),
        JobChange(action="removed", job="default/gone", next_before_s=[NOON_S]),
        JobChange(action="unchanged", job="default/same", schedule="@daily"),
    ],
    problems=[Problem("jobs.crontab", 1, 1, "TZ is only passed on", "write CRON_TZ", True)],
    applied=True,
)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "jobs.crontab").write_bytes(GOOD)
    (tmp_path / "bad.crontab").write_bytes(BAD)
    return tmp_path


async def cli(backend: FakeBackend, *arguments: str, stdin: bytes | None = None) -> Result:
    async with serving(backend) as server:
        return await run_cli(*arguments, server=server, stdin=stdin)


# ---- apply


async def test_apply_sends_the_files_as_they_are(folder):
    (folder / "more.toml").write_bytes(b"\xff\x00")
    backend = FakeBackend(put_jobs=ApplyReport())
    result = await cli(
        backend,
        "apply",
        "jobs.crontab",
        "more.toml",
        "--source",
        "s",
        "--system",
        "--prune",
        "--yes",
    )
    assert result.exit_code == 0, result.stderr
    request = ApplyRequest(
        files=[SourceFile("jobs.crontab", GOOD), SourceFile("more.toml", b"\xff\x00")],
        source="s",
        system=True,
        prune=True,
        is_confirmed=True,
        by="ada",
        removes_later=True,
    )
    assert backend.calls == [("put_jobs", (request,))]


async def test_apply_shows_the_zone_the_changes_and_the_times_before_and_after(folder):
    result = await cli(FakeBackend(put_jobs=REPORT), "apply", "jobs.crontab")
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        "zone UTC unless CRON_TZ says otherwise; source jobs.crontab",
        "+ new: ? 3 * * * = 17 3 * * * UTC",
        "    next:   2026-11-20 15:00:00 UTC, 2026-11-20 15:01:00 UTC",
        "~ acme/old: @daily Europe/Berlin (schedule, timeout)",
        "    before: 2026-11-20 15:00:00 UTC",
        "    next:   2026-11-20 15:00:01 UTC",
        "- gone",
        "    before: 2026-11-20 15:00:00 UTC",
        "applied as revision 4: 1 added, 1 changed, 1 removed, 1 unchanged",
    ]
    assert result.stderr.splitlines() == [
        "jobs.crontab line 1, column 1: warning: TZ is only passed on",
        "  hint: write CRON_TZ",
    ]


async def test_where_only_the_command_changes_there_are_no_times_to_compare(folder):
    change = JobChange(
        action="changed",
        job="default/a",
        schedule="@daily",
        zone="UTC",
        what=["command"],
        next_before_s=[NOON_S],
        next_after_s=[NOON_S],
    )
    backend = FakeBackend(put_jobs=ApplyReport(changes=[change], applied=True))
    lines = (await cli(backend, "apply", "jobs.crontab")).stdout.splitlines()
    assert lines[1] == "~ a: @daily UTC (command)"
    assert lines[2].startswith("applied as revision")


async def test_apply_as_json_has_one_change_a_line(folder):
    result = await cli(FakeBackend(put_jobs=REPORT), "apply", "jobs.crontab", "-o", "json")
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert [row["action"] for row in rows] == ["added", "changed", "removed", "unchanged"]
    assert rows[1] == {
        "action": "changed",
        "job": "old",
        "tenant": "acme",
        "schedule": "@daily",
        "resolved": "0 0 * * *",
        "zone": "Europe/Berlin",
        "what": ["schedule", "timeout"],
        "next_before": ["2026-11-20T15:00:00.000Z"],
        "next_after": ["2026-11-20T15:00:01.000Z"],
        "source": "jobs.crontab",
        "revision": 4,
        "default_zone": "UTC",
        "applied": True,
    }


async def test_applying_the_same_again_says_that_there_is_nothing_to_change(folder):
    report = ApplyReport(changes=[JobChange(action="unchanged", job="default/a")], applied=True)
    result = await cli(FakeBackend(put_jobs=report), "apply", "jobs.crontab")
    assert result.stdout.splitlines()[-1].startswith("nothing to change: ")


async def test_a_dry_run_says_that_nothing_changed(folder):
    backend = FakeBackend(put_jobs=ApplyReport(is_dry_run=True))
    result = await cli(backend, "apply", "--dry-run", "jobs.crontab")
    assert "dry run, nothing changed" in result.stdout
    assert backend.calls[0][1][0].is_dry_run


async def test_apply_prints_all_errors_and_exits_with_two(folder):
    problems = [Problem("bad.crontab", n, 1, f"error {n}", "mend it") for n in range(1, 60)]
    result = await cli(FakeBackend(put_jobs=CrontabError(problems)), "apply", "bad.crontab")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert [line for line in result.stderr.splitlines() if not line.startswith("  hint")] == [
        f"bad.crontab line {n}, column 1: error {n}" for n in range(1, 60)
    ]


@pytest.mark.parametrize("name", ["missing.crontab", ".", "a\x00b"])
async def test_a_file_that_cannot_be_read_sends_nothing(folder, name):
    backend = FakeBackend(put_jobs=ApplyReport())
    result = await cli(backend, "apply", "jobs.crontab", name)
    assert result.exit_code == 2
    assert "cannot be read" in result.stderr
    assert backend.calls == []


async def test_a_file_over_the_limit_sends_nothing(folder, monkeypatch):
    monkeypatch.setattr(limits, "CRONTAB_BYTES_MAX", len(GOOD) - 1)
    backend = FakeBackend(put_jobs=ApplyReport())
    result = await cli(backend, "apply", "jobs.crontab")
    assert result.exit_code == 2
    assert "more than" in result.stderr
    assert backend.calls == []


async def test_the_standard_input_needs_the_name_of_its_source(folder):
    backend = FakeBackend(put_jobs=ApplyReport())
    assert (await cli(backend, "apply", "-", stdin=GOOD)).exit_code == 2
    assert (await cli(backend, "apply", "-", "--source", "s", stdin=GOOD)).exit_code == 0
    assert backend.calls[0][1][0].files == [SourceFile("<stdin>", GOOD)]


# ---- lint


async def test_lint_of_a_good_file_needs_no_cluster(folder):
    result = await run_cli("lint", "jobs.crontab")
    assert result.exit_code == 0, result.output
    assert result.stdout == "1 job, 0 errors, 0 warnings\n"


async def test_lint_names_every_error_with_its_place_and_exits_with_two(folder):
    result = await run_cli("lint", "jobs.crontab", "bad.crontab", "-o", "json")
    assert result.exit_code == 2
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(row["file"], row["line"], row["severity"]) for row in rows] == [
        ("bad.crontab", 1, "error"),
        ("bad.crontab", 2, "error"),
    ]
    assert all(row["message"] and row["hint"] for row in rows)


async def test_lint_refuses_what_apply_refuses_of_several_files(folder):
    (folder / "copy.crontab").write_bytes(GOOD)
    result = await run_cli("lint", "jobs.crontab", "copy.crontab")
    assert result.exit_code == 2
    assert "copy.crontab line 2, column 1: job default/backup stands in jobs.c" in result.stdout
    result = await run_cli("lint", "jobs.crontab", "jobs.crontab")
    assert result.exit_code == 2
    assert "jobs.crontab: file is given twice" in result.stdout


async def test_lint_of_a_file_with_warnings_exits_with_zero(folder):
    (folder / "warn.crontab").write_bytes(b"MAILTO=root\n0 3 * * * true\n")
    result = await run_cli("lint", "warn.crontab")
    assert result.exit_code == 0
    assert "warning" in result.stdout


async def test_lint_names_a_minute_in_which_very_many_jobs_are_due_once(folder):
    jobs = "".join(f"#: name=j{number}\n0 0 * * *  true\n" for number in range(300))
    (folder / "many.crontab").write_text(jobs)
    result = await run_cli("lint", "many.crontab")
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        "many.crontab: warning: 300 launches fall due in one minute, 00:00 UTC "
        "(most by `0 0 * * *`); `? 0 * * *` would leave about 5 in each minute of that hour",
        "  hint: write `?`: the cell chooses a minute for each job once, where the load is lowest",
        "300 jobs, 0 errors, 1 warning",
    ]


async def test_lint_of_nothing_is_a_usage_error(folder):
    assert (await run_cli("lint")).exit_code == 2
