"""Changes of very many jobs at once: they happen in portions, none of which is too big for the log.

The names are long and an entry holds 2 MiB, so that fewer jobs than the 200,000 of a large cell
exceed it.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from cron import limits
from cron.api.jobs import (
    ApplyReport,
    ApplyRequest,
    PauseReport,
    PauseRequest,
    RemovedJob,
    RemoveReport,
    RemoveRequest,
    SourceFile,
)
from cron.api.table import PAUSE, RESUME
from cron.cli import crontabs
from cron.errors import LimitExceeded, OutcomeUnknown, RevisionConflict
from cron.service import catalog, removing
from cron.service import jobs as pauses
from cron.service.catalog import split_jobs
from cron.state import commands as c
from tests.fakes import memory_log as memory
from tests.unit.api_rig import FakeBackend, run_cli, serving
from tests.unit.state_rig import job
from tests.unit.test_leader_term import Replica, reigning
from tests.unit.test_service_pauses import service

MANY = 12_000


@pytest.fixture
def small_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "ENTRY_BYTES_MAX", 2 << 20)


async def declare(replica: Replica, names: list[str], source: str = "crontab") -> None:
    """Have State know jobs of these names."""
    state = replica.state
    effective_s = max(replica.clock.ms // 1000, state.at_ms // 1000)
    parts = split_jobs([job(name) for name in names])
    for number, jobs in enumerate(parts, 1):
        put = c.PutJobs(
            source, state.catalog, effective_s, jobs, (), "anna", "x", number, len(parts)
        )
        await replica.leader.append(put, changes_jobs=True)


def long_names(count: int) -> list[str]:
    return [f"{number:06}-" + "n" * 180 for number in range(count)]


def paused(replica: Replica) -> int:
    return sum(record.paused is not None for record in replica.state.jobs.values())


def live(replica: Replica) -> list[str]:
    return [name for name, record in replica.state.jobs.items() if record.job is not None]


async def apply(replica: Replica, text: str) -> Any:
    """Apply a crontab that is all that its source has."""
    request = ApplyRequest(
        files=[SourceFile(name="crontab", content=text.encode())], prune=True, by="anna",
        **({"is_confirmed": True} if "is_confirmed" in ApplyRequest.__struct_fields__ else {}),
    )  # fmt: skip
    return await service(replica).put_jobs(request)


@pytest.mark.usefixtures("small_entries")
async def test_a_pattern_pauses_and_resumes_more_jobs_than_one_entry_can_name() -> None:
    async with reigning() as replica:
        await declare(replica, long_names(MANY))
        asked = service(replica)
        report = await asked.pause(PauseRequest(pattern="*/*", reason="move", by="anna"))
        assert len(report.changed) == paused(replica) == MANY
        again = await asked.pause(PauseRequest(pattern="*/*", reason="move", by="anna"))
        assert (again.changed, len(again.unchanged)) == ([], MANY)
        assert len((await asked.resume("*/*", "anna")).changed) == MANY
        assert paused(replica) == 0


@pytest.mark.usefixtures("small_entries")
async def test_an_apply_prunes_more_jobs_than_one_entry_can_name() -> None:
    async with reigning() as replica:
        await declare(replica, long_names(MANY))
        report = await apply(replica, "#: name=new\n0 5 * * * true\n")
        removed = [change.job for change in report.changes if change.action == "removed"]
        assert len(removed) == MANY
        assert live(replica) == ["default/new"]


async def test_a_job_that_is_added_after_a_pause_of_all_is_not_paused() -> None:
    async with reigning() as replica:
        await declare(replica, ["a"])
        await service(replica).pause(PauseRequest(pattern="*/*", by="anna"))
        await declare(replica, ["b"], "other")
        assert [name for name in live(replica) if replica.state.jobs[name].paused is None] == [
            "default/b"
        ]


async def test_a_pause_that_fails_half_way_says_how_far_it_came(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with reigning() as replica:
        monkeypatch.setattr(pauses, "PAUSED_AT_ONCE", 2)
        await declare(replica, list("abcde"))
        asked, submit = service(replica), replica.leader.submit
        portions = 0

        async def submitted(build: Any, **named: Any) -> Any:
            nonlocal portions
            portions += 1
            if portions == 3:
                raise RevisionConflict("no more")
            return await submit(build, **named)

        monkeypatch.setattr(replica.leader, "submit", submitted)
        with pytest.raises(OutcomeUnknown, match="done for 4 of 5 jobs"):
            await asked.pause(PauseRequest(pattern="*/*", by="anna"))
        assert paused(replica) == 4
        report = await asked.pause(PauseRequest(pattern="*/*", by="anna"))
        assert report.changed == ["default/e"]


@pytest.mark.parametrize("command", ["pause", "resume"])
async def test_a_long_change_says_after_each_portion_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    async with reigning() as replica:
        monkeypatch.setattr(pauses, "PAUSED_AT_ONCE", 2)
        await declare(replica, list("abcde"))
        asked = service(replica)
        if command == "resume":
            await asked.pause(PauseRequest(pattern="*/*", by="anna"))

        rpc = PAUSE if command == "pause" else RESUME
        backend = FakeBackend(**{command: lambda one: asked.service.answer(rpc, one)})
        with capture_logs():  # else they stand on the stdout of the command
            async with serving(backend) as server:
                done = await run_cli(command, "*/*", server=server)
                programs = await run_cli(command, "*/*", "-o", "json", server=server)
    assert done.exit_code == 0, (done.stdout, done.stderr, done.exception)
    assert done.stderr == f"raftcron: {command}d 2 of 5 jobs\nraftcron: {command}d 4 of 5 jobs\n"
    assert done.stdout.splitlines() == [f"{name} {command}d" for name in "abcde"]
    assert [request.after for _, (request,) in backend.calls][:3] == ["", "default/b", "default/d"]
    assert (programs.stderr, len(programs.stdout.splitlines())) == ("", 5)


async def test_a_change_that_fails_after_a_portion_says_how_far_it_came() -> None:
    def one_portion(request: PauseRequest) -> PauseReport:
        if request.after:
            raise LimitExceeded("no more")
        return PauseReport(changed=["default/a", "default/b"], left=3)

    async with serving(FakeBackend(pause=one_portion)) as server:
        failed = await run_cli("pause", "*/*", server=server)
    assert failed.exit_code == 6
    assert "paused 2 jobs, and then: no more" in failed.stderr
    assert "what is done stays as it is" in failed.stderr


async def test_portions_of_a_pause_and_of_a_prune_are_logged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with reigning() as replica:
        monkeypatch.setattr(pauses, "PAUSED_AT_ONCE", 2)
        monkeypatch.setattr(catalog, "REMOVED_AT_ONCE", 2)
        await declare(replica, list("abcde"))
        with capture_logs() as lines:
            await service(replica).pause(PauseRequest(pattern="*/*", by="anna"))
            await apply(replica, "#: name=new\n0 5 * * * true\n")
    told = [(line["event"], line["jobs"], line["left"]) for line in lines if "left" in line]
    assert told == [
        (event, jobs, left)
        for event in ("jobs.paused", "jobs.removed")
        for jobs, left in ((2, 3), (4, 1), (5, 0))
    ]


async def test_each_portion_of_a_prune_costs_by_its_own_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with reigning() as replica:
        monkeypatch.setattr(catalog, "REMOVED_AT_ONCE", 2)
        await declare(replica, list("abcdefg"))
        looked_at: list[int] = []
        change_id = catalog.change_id

        def counted(diff: catalog.Diff, by: str) -> str:
            looked_at.append(len(diff.removed))
            return change_id(diff, by)

        monkeypatch.setattr(catalog, "change_id", counted)
        await apply(replica, "#: name=a\n0 5 * * * true\n")
        assert len(live(replica)) == 1
        assert looked_at[-3:] == [2, 2, 2]
        assert len(looked_at) <= 4


async def test_a_prune_goes_on_though_others_change_the_jobs_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with reigning() as replica:
        monkeypatch.setattr(catalog, "REMOVED_AT_ONCE", 2)
        await declare(replica, list("abcdefg"))
        submit = replica.leader.submit
        changes = 0

        async def submitted(build: Any, **named: Any) -> Any:
            nonlocal changes
            changes += named.get("changes_jobs", False)
            if changes == 3:
                changes += 1
                put = c.PutJobs("other", replica.state.catalog, replica.clock.ms // 1000, ())
                await submit(lambda _state, _now_ms: [put], changes_jobs=True)
            return await submit(build, **named)

        monkeypatch.setattr(replica.leader, "submit", submitted)
        report = await apply(replica, "#: name=new\n0 5 * * * true\n")
        told = {change.job: change.action for change in report.changes}
        assert told == {"default/new": "added"} | {
            f"default/{name}": "removed" for name in "abcdefg"
        }
        assert live(replica) == ["default/new"]


@contextlib.asynccontextmanager
async def pruned(
    monkeypatch: pytest.MonkeyPatch, *asides: tuple[str, Any]
) -> AsyncIterator[tuple[Replica, FakeBackend, str]]:
    """A leader behind a server that removes two jobs in an entry, and as many in a call; it knows
    the jobs a to e of source `tab`. `asides` are answers instead of its own."""
    monkeypatch.setattr(catalog, "REMOVED_AT_ONCE", 2)
    monkeypatch.setattr(limits, "REMOVED_AT_ONCE_MAX", 2)
    monkeypatch.setattr(crontabs, "_PROGRESS_EVERY", 2)
    async with reigning() as replica:
        await declare(replica, list("abcde"), "tab")
        backend = FakeBackend(
            put_jobs=lambda request: catalog.put(replica.served, request),
            remove_jobs=lambda request: removing.remove(replica.served, request),
        )
        backend.answers.update(asides)
        with capture_logs():  # else they stand on the stdout of the command
            async with serving(backend) as server:
                yield replica, backend, server


PRUNE = ["apply", "-", "--source", "tab", "--prune", "--yes"]
NEW = b"#: name=new\n0 5 * * * true\n"


async def test_a_long_prune_says_after_each_portion_how_far_it_is(monkeypatch) -> None:
    async with pruned(monkeypatch) as (replica, backend, server):
        done = await run_cli(*PRUNE, server=server, stdin=NEW)
        assert live(replica) == ["default/new"]
        revision = replica.state.catalog
    assert done.exit_code == 0, (done.stdout, done.stderr, done.exception)
    assert done.stderr == "raftcron: removed 2 of 5 jobs\nraftcron: removed 4 of 5 jobs\n"
    assert f"applied as revision {revision}: 1 added, 0 changed, 5 removed" in done.stdout
    assert [method for method, _ in backend.calls] == ["put_jobs", *["remove_jobs"] * 3]


async def test_programs_are_told_of_a_long_prune_as_of_a_short_one(monkeypatch) -> None:
    printed = []
    for is_long in (True, False):
        async with pruned(monkeypatch) as (replica, _, server):
            if not is_long:
                monkeypatch.setattr(catalog, "REMOVED_AT_ONCE", 1_000)
            result = await run_cli(*PRUNE, "-o", "json", server=server, stdin=NEW)
            rows = [json.loads(line) for line in result.stdout.splitlines()]
            assert {row.pop("revision") for row in rows} == {replica.state.catalog}
            assert (result.exit_code, result.stderr) == (0, "")
            printed.append(rows)
    assert printed[0] == printed[1]
    assert [(row["job"], row["action"]) for row in printed[0]] == [
        *((name, "removed") for name in "abcde"), ("new", "added"),
    ]  # fmt: skip


async def test_a_prune_that_fails_after_a_portion_says_how_far_it_came(monkeypatch) -> None:
    def fails(request: RemoveRequest) -> Any:
        if request.jobs[0] == "default/c":
            raise LimitExceeded("no more")
        return RemoveReport(jobs=[RemovedJob(name, "tab") for name in request.jobs])

    async with pruned(monkeypatch, ("remove_jobs", fails)) as (_, _, server):
        failed = await run_cli(*PRUNE, server=server, stdin=NEW)
    assert failed.exit_code == 6
    assert "removed 2 of 5 jobs, and then: no more" in failed.stderr
    assert "apply again: what is done stays as it is" in failed.stderr


async def test_a_long_prune_leaves_jobs_that_others_took_over_meanwhile(monkeypatch) -> None:
    async with pruned(monkeypatch) as (replica, backend, server):

        async def raced(request: ApplyRequest) -> ApplyReport:
            report = await catalog.put(replica.served, request)
            await removing.remove(replica.served, RemoveRequest(jobs=["default/b", "default/d"]))
            await declare(replica, ["d"], "other")
            return report

        backend.answers["put_jobs"] = raced
        done = await run_cli(*PRUNE, server=server, stdin=NEW)
        assert live(replica) == ["default/d", "default/new"]
    assert done.exit_code == 0, (done.stdout, done.stderr, done.exception)
    assert "1 added, 0 changed, 3 removed, 0 unchanged" in done.stdout


async def test_jobs_that_follow_each_other_are_pruned_by_the_leader_in_their_order(monkeypatch):
    async with pruned(monkeypatch) as (replica, backend, server):
        state = replica.state
        effective_s = max(replica.clock.ms // 1000, state.at_ms // 1000)
        follower = job("d", after=("default/e",))
        put = c.PutJobs("tab", state.catalog, effective_s, (follower,))
        await replica.leader.append(put, changes_jobs=True)
        assert state.followers.keys() == {"default/e"}
        done = await run_cli(*PRUNE, server=server, stdin=NEW)
        assert done.exit_code == 0, (done.stdout, done.stderr, done.exception)
        assert live(replica) == ["default/new"]
    assert {method for method, _ in backend.calls} == {"put_jobs"}


async def test_a_job_that_moves_from_one_source_to_another_is_pruned_before(monkeypatch, tmp_path):
    (tmp_path / "tab").write_bytes(NEW)
    (tmp_path / "second").write_bytes(b"#: name=b\n0 5 * * * true\n")
    files = [str(tmp_path / name) for name in ("tab", "second")]
    async with pruned(monkeypatch) as (replica, backend, server):
        done = await run_cli("apply", *files, "--prune", "--yes", server=server)
        assert done.exit_code == 0, (done.stdout, done.stderr, done.exception)
        assert sorted(live(replica)) == ["default/b", "default/new"]
    assert {method for method, _ in backend.calls} == {"put_jobs"}


async def test_an_older_command_line_has_the_leader_remove_all_jobs(monkeypatch) -> None:
    async with pruned(monkeypatch) as (replica, _, _):
        files = [SourceFile(name="tab", content=NEW)]
        report = await catalog.put(
            replica.served, ApplyRequest(files=files, prune=True, is_confirmed=True)
        )
        assert (report.left, live(replica)) == (0, ["default/new"])
