"""What a person removes by a file or by name, through the command line and a leader's State."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator

import pytest
import structlog
from click.testing import Result

from cron.cli import crontabs, options
from cron.service import catalog, job_revisions, removing
from tests.unit.api_rig import FakeBackend, run_cli, serving
from tests.unit.test_leader_term import Replica, reigning


class Cell:
    """A leader behind a server."""

    def __init__(self, replica: Replica, server: str) -> None:
        self.replica = replica
        self.server = server

    async def cli(self, *arguments: str, stdin: bytes | None = None) -> Result:
        return await run_cli(*arguments, server=self.server, stdin=stdin)

    async def declare(self, *names: str, source: str = "tab") -> Result:
        """Apply a crontab with these jobs and no others, unless that needs an answer."""
        return await self.cli(
            "apply", "-", "--source", source, "--prune", stdin=crontab(*names).encode()
        )

    @property
    def jobs(self) -> set[str]:
        records = self.replica.state.jobs.values()
        return {record.name.removeprefix("default/") for record in records if record.job}


def crontab(*names: str) -> str:
    return "".join(f"#: name={name}\n0 0 * * * true\n" for name in names)


@contextlib.asynccontextmanager
async def cell() -> AsyncIterator[Cell]:
    # What the leader logs must not stand in what the command line prints.
    with structlog.testing.capture_logs():
        async with led() as one:
            yield one


@contextlib.asynccontextmanager
async def led() -> AsyncIterator[Cell]:
    async with reigning() as replica:
        backend = FakeBackend(
            put_jobs=lambda request: catalog.put(replica.served, request),
            remove_jobs=lambda request: removing.remove(replica.served, request),
            job_revisions=lambda request: job_revisions.revisions(replica.served, request),
            roll_back=lambda request: job_revisions.roll_back(replica.served, request),
            export_jobs=lambda request: job_revisions.export(replica.served, request),
        )
        async with serving(backend) as server:
            yield Cell(replica, server)


NAMES = [f"job{number:02}" for number in range(12)]


async def test_an_emptied_file_removes_nothing_unless_somebody_says_yes():
    async with cell() as one:
        await one.declare("a", "b")
        result = await one.declare()
        assert result.exit_code == 2
        assert "all 2 jobs of tab; nothing was changed" in result.stderr
        assert "--yes" in result.stderr
        assert "- a" in result.stderr
        assert one.jobs == {"a", "b"}
        result = await one.cli("apply", "-", "--source", "tab", "--prune", "--yes", stdin=b"")
        assert result.exit_code == 0, result.stderr
        assert one.jobs == set()


async def test_more_than_ten_removals_need_a_yes_and_ten_do_not():
    async with cell() as one:
        await one.declare("kept", *NAMES)
        result = await one.declare("kept", NAMES[0])
        assert result.exit_code == 2
        assert "11 jobs of tab; nothing was changed" in result.stderr
        assert len(one.jobs) == 13
        result = await one.declare("kept", *NAMES[:2])
        assert result.exit_code == 0, result.stderr
        assert one.jobs == {"kept", *NAMES[:2]}


@pytest.mark.parametrize(("answer", "exit_code"), [("y\n", 0), ("n\n", 1), ("", 1)])
async def test_a_person_at_a_terminal_is_asked(monkeypatch, tmp_path, answer, exit_code):
    monkeypatch.setattr(options, "can_ask", lambda: True)
    (tmp_path / "tab").write_text("")
    async with cell() as one:
        await one.declare("a")
        result = await one.cli("apply", str(tmp_path / "tab"), "--prune", stdin=answer.encode())
        assert result.exit_code == exit_code, result.output
        assert "Remove the only job of tab?" in result.stderr
        assert one.jobs == (set() if exit_code == 0 else {"a"})


async def test_the_cell_itself_refuses_what_an_older_client_did_not_confirm(monkeypatch):
    monkeypatch.setattr(crontabs, "_is_agreed", lambda *_: False)
    async with cell() as one:
        await one.declare("kept", *NAMES)
        result = await one.declare("kept")
        assert result.exit_code == 2
        assert "12 jobs would be removed; nothing was changed" in result.stderr
        result = await one.declare()
        assert result.exit_code == 2
        assert "source tab declares no job" in result.stderr
        assert len(one.jobs) == 13


async def test_a_dry_run_of_an_emptied_file_shows_what_would_go():
    async with cell() as one:
        await one.declare("a")
        result = await one.cli("apply", "-", "--source", "tab", "--prune", "--dry-run", stdin=b"")
        assert result.exit_code == 0, result.stderr
        assert "- a" in result.stdout
        assert one.jobs == {"a"}


async def test_remove_takes_single_jobs_of_several_sources_and_names_what_brings_them_back():
    async with cell() as one:
        await one.declare("a", "b")
        await one.declare("c", "d", source="other")
        result = await one.cli("jobs", "remove", "a", "default/c", "--yes")
        assert result.exit_code == 0, result.stderr
        lines = result.stdout.splitlines()
        after = "brings it back when it is applied again: take it out there, too"
        assert {*zip(lines[::2], lines[1::2], strict=True)} == {
            ("removed a", f"tab {after}"),
            ("removed c", f"other {after}"),
        }
        assert one.jobs == {"b", "d"}
        await one.declare("a", "b")
        assert one.jobs == {"a", "b", "d"}


async def test_remove_of_a_job_that_is_not_there_removes_none():
    async with cell() as one:
        await one.declare("a")
        result = await one.cli("jobs", "remove", "a", "nosuch", "--yes")
        assert result.exit_code == 3
        assert "job nosuch does not exist; nothing was removed" in result.stderr
        assert one.jobs == {"a"}


async def test_remove_shows_its_plan_and_needs_a_yes():
    async with cell() as one:
        await one.declare("a", "b")
        result = await one.cli("jobs", "remove", "a")
        assert result.exit_code == 2
        assert "- a: " in result.stderr
        assert "1 job would be removed; nothing was changed" in result.stderr
        assert one.jobs == {"a", "b"}


async def test_a_job_is_compared_rolled_back_exported_and_shown(tmp_path):
    async with cell() as one:
        for minute in (1, 2):
            text = f"#: name=a\n{minute} 0 * * * true\n#: name=x/b\n@daily b\n".encode()
            await one.cli("apply", "-", "--source", "tab", stdin=text)
        result = await one.cli("jobs", "diff", "a")
        assert "- schedule: 1 0 * * *\n+ schedule: 2 0 * * *\n" in result.stdout
        rows = [
            json.loads(line)
            for line in (await one.cli("jobs", "diff", "a", "-o", "json")).stdout.splitlines()
        ]
        assert {"1 0 * * *"} == {row["before"] for row in rows if row["field"] == "schedule"}
        revision = str(rows[0]["revision"])
        assert (await one.cli("jobs", "rollback", "a", revision)).exit_code == 2
        result = await one.cli("jobs", "rollback", "a", revision, "--dry-run")
        assert "dry run, nothing changed: 0 added, 1 changed" in result.stdout
        result = await one.cli("jobs", "rollback", "a", revision, "--yes")
        assert result.exit_code == 0, result.stderr
        assert "tab changes it again when it is applied" in result.stdout
        result = await one.cli("jobs", "rollback", "a", "99", "--yes")
        assert result.exit_code == 3
        result = await one.cli("jobs", "export", "--tenant", "x")
        assert result.stdout == (
            "# raftcron apply --source 'tab' THIS-FILE\n\n"
            '[[job]]\nname = "x/b"\nschedule = "@daily"\nzone = "UTC"\ncommand = "b"\n'
        )
        folder = tmp_path / "new"
        result = await one.cli("jobs", "export", "--dir", str(folder))
        assert result.stdout == f"{folder}/tab.toml: 2 jobs of source tab\n"
        assert (folder / "tab.toml").stat().st_mode & 0o777 == 0o600
        result = await one.cli("apply", str(folder / "tab.toml"), "--source", "tab", "--prune")
        assert "2 unchanged" in result.stdout
        assert (await one.cli("jobs", "export", "--source", "none")).exit_code == 3


async def test_remove_as_json_names_the_source():
    async with cell() as one:
        await one.declare("a")
        result = await one.cli("jobs", "remove", "a", "-o", "json", "--yes")
        assert [json.loads(line) for line in result.stdout.splitlines()] == [
            {
                "job": "a",
                "tenant": "default",
                "action": "removed",
                "source": "tab",
                "full_name": "default/a",
            }
        ]


HARMFUL = ["restor", "restroe", "resotre", "remvoe", "kll", "daed", "backfil", "triger"]


@pytest.mark.parametrize("said", [*HARMFUL, "dead dropp", "dead redrve", "replica replac"])
async def test_no_misspelt_command_leads_to_one_that_does_harm(said):
    result = await run_cli(*said.split())
    assert result.exit_code == 2
    for harmful in (
        "restore",
        "remove",
        "rollback",
        "kill",
        "backfill",
        "trigger",
        "drop",
        "redrive",
    ):
        assert f" {harmful}?" not in result.stderr
        assert f"'{harmful}'" not in result.stderr


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("stauts", "status"),
        ("histroy", "history"),
        ("snapshots", "snapshot"),
        ("limit lst", "list"),
    ],
)
async def test_a_misspelt_command_is_told_its_name(said, meant):
    result = await run_cli(*said.split())
    assert result.exit_code == 2
    assert f"did you mean {meant}?" in result.stderr


async def test_apply_of_very_many_jobs_prints_a_summary(tmp_path):
    (tmp_path / "tab").write_text(crontab(*(f"j{number}" for number in range(150))))
    async with cell() as one:
        result = await one.cli("apply", str(tmp_path / "tab"))
        assert result.exit_code == 0, result.stderr
        assert result.stdout.count("\n+ ") == 20
        assert "... and 130 more changes; -o json prints all" in result.stdout
        assert "150 added" in result.stdout
