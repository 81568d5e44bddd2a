"""A leader appends no command that a replica of an older release does not know."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, get_args, get_type_hints

import msgspec
import pytest

from cron import origin
from cron.access import Role
from cron.alert_rules import AlertKind, Condition, JobAlerts, Rule
from cron.errors import NotNow
from cron.executor_grants import ExecutorGrant
from cron.job import Bounds, Schedule
from cron.scheduler.alerts import Observed
from cron.state import access, alerts, calendars, chains, groups, tasking, tasks
from cron.state import commands as c
from cron.state.codec import encode_entry
from cron.state.formats import COMMANDS, known_in, needed
from cron.state.known_ends import KnownEnds
from launcher.protocol.work import WorkSpec
from tests.unit.state_rig import job
from tests.unit.test_leader_term import Replica, reigning

OLD: Final = c.LEAST_FORMAT
KNOWN_IN_8: Final = """
    account backed-up begin cancel cancel-tasks claim close-gate drain drop-dead forget
    forget-debts forget-tasks format joined left lift-gates limits pause put put-queues ready-tasks
    recover redrive reopen report reschedule-tasks reset-clock reset-horizons resolve resume retire
    run-tasks seal skip snapshot submit-tasks trigger
"""
"""Tags of the commands of format 8. It is over: no other command comes to it."""
FIELDS: Final = Path(__file__).with_name("replicated_fields.txt")
"""The fields of all structs that commands consist of, in their order."""
DIGEST: Final = b"0" * tasking.DIGEST_BYTES
TASK: Final = tasks.TaskSpec("default/mails", "1", 0, b"{}", DIGEST, tasks.TaskOptions("mail"))
NEW: Final[list[c.Command]] = [
    c.NoteEnds((c.EndsItem("default/one", 1, 0, KnownEnds(0, ())),)),
    c.PutJobs("crontab", 0, 0, (job("two", after=("default/one",)),)),
    c.PutJobs("crontab", 0, 0, (job("two", after_any=("default/one",)),)),
    c.PutJobs("crontab", 0, 0, (job("two", metrics=True),)),
    c.PutJobs("crontab", 0, 0, (job("one"), job("two", alerts=JobAlerts(mail_to=("ada",))))),
    tasks.SpillTasks((1,)),
    tasks.LoadTasks(()),
    tasks.SubmitTasks((TASK, msgspec.structs.replace(TASK, key="2", group="default/all"))),
    tasks.SubmitTasks((msgspec.structs.replace(TASK, after=("default/mails:1",)),)),
    tasks.SubmitTasks((msgspec.structs.replace(TASK, after_any=("default/mails:1",)),)),
    chains.ReleaseTasks((1,)),
    groups.CloseGroups((groups.GroupClose("default/all"),)),
    groups.ForgetGroups(("default/all",)),
    access.GrantRole("anna", Role.ADMIN),
    access.RevokeRole("anna", Role.ADMIN),
    access.CreateToken("1", "web", Role.VIEWER, "", b"0" * 32),
    access.RevokeTokens(("1",)),
    access.CameFrom("certificate anna", 1),
    alerts.ApplyAlerts(0, (), (Rule("r", Condition(AlertKind.FAILED, 2), remind_s=3600),)),
    alerts.RemindAlerts(()),
    alerts.ApplyAlerts(0),
    alerts.MuteAlerts("default/*", 1),
    alerts.UnmuteAlerts((1,)),
    alerts.TestAlert("ops"),
    alerts.RaiseAlerts(()),
    alerts.ResolveAlerts(()),
    alerts.SendAlerts(()),
    access.RevokeCertificates(()),
    c.NoteChange("replace", "replica r2", "incarnation 1", "incarnation 2", "anna"),
    access.GrantExecutor(ExecutorGrant("e1", (), ("command",))),
    access.RevokeExecutor("e1"),
    access.GrantRole("anna", Role.RUN_AS, users=("app",)),
    access.RevokeRole("anna", Role.SEE_PAYLOADS),
    access.CreateToken("1", "web", Role.VIEWER, "", b"0" * 32, users=("app",)),
    access.CreateToken("1", "web", Role.VIEWER, "", b"0" * 32, payloads=True),
    calendars.PutCalendar("hol", (20_000,)),
    calendars.RemoveCalendar("hol"),
    c.PutJobs("crontab", 0, 0, (job("two", schedule=Schedule("0 0 L * *", "0 0 L * *")),)),
    c.PutJobs("crontab", 0, 0, (job("two", schedule=Schedule("@daily", bounds=Bounds(1))),)),
    c.PutJobs("crontab", 0, 0, (job("two", work=WorkSpec((), secrets=(("A", "x"),))),)),
    c.PutJobs("crontab", 0, 0, (job("two", alerts=JobAlerts(remind_s=3600)),)),
    c.PutJobs("crontab", 0, 0, (job("two", pause_after=3),)),
    c.PutJobs("crontab", 0, 0, (job("two", jitter_s=60),)),
    tasks.SubmitTasks((TASK,), "shop", tasks.AT_LEAST_ONCE),
    groups.CloseGroups((groups.GroupClose("default/all", TASK),), "shop", tasks.AT_LEAST_ONCE),
]


def tag_of(command: object) -> str:
    return str(command.__struct_config__.tag)  # type: ignore[attr-defined]


def test_every_command_that_came_later_has_its_format() -> None:
    later = {tag_of(one) for one in get_args(c.Command)} - {*KNOWN_IN_8.split()}
    assert later == {tag_of(one) for one in COMMANDS}
    assert all(c.LEAST_FORMAT < one.format <= c.FORMAT for one in COMMANDS.values())
    assert all(one.what for one in COMMANDS.values())
    fields = {"put", "submit-tasks"}
    assert {tag_of(one) for one in NEW} == later | fields, "each has an example here"


def test_what_an_older_release_would_ignore_needs_a_later_format_too() -> None:
    assert {needed(one).format for one in NEW} == {9, 10, 11, 12}
    old: list[c.Command] = [
        c.PutJobs("crontab", 0, 0, (job("one"),)),
        tasks.SubmitTasks((TASK,)),
        c.Pause((), "", 0, ""),
    ]
    words = {tag_of(one): needed(one).what for one in NEW}
    assert words["apply-alerts"] == "alerts"
    assert words["put"] == "jitter= of job default/two"
    assert known_in([*NEW, *old], OLD) == old
    assert known_in([*NEW, *old], c.FORMAT) == [*NEW, *old]


def structs_of(kind: Any, found: dict[str, list[str]]) -> dict[str, list[str]]:
    """Add the structs that a type consists of to those that are found, with their fields."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        name = f"{kind.__module__}.{kind.__name__}"
        if name not in found:
            found[name] = list(kind.__struct_fields__)
            for hint in get_type_hints(kind).values():
                structs_of(hint, found)
    for one in get_args(kind):
        structs_of(one, found)
    return found


def test_no_replicated_field_is_new_without_a_format() -> None:
    """An older release ignores it, without a word, and its State differs from then on."""
    known = {name: fields for name, *fields in map(str.split, FIELDS.read_text().splitlines())}
    now = structs_of(c.Entry, {})
    moved = [name for name, old in known.items() if now.get(name, [])[: len(old)] != old]
    assert not moved, "fields are appended, and never moved, renamed or removed"
    new = [f"{name}.{field}" for name in now for field in now[name][len(known.get(name, [])) :]]
    todo = "give them a format in cron/state/formats.py, an example in NEW, and a place in"
    assert not new, f"{todo} {FIELDS.name}"


@pytest.mark.parametrize("command", NEW, ids=tag_of)
async def test_a_cell_of_an_older_format_refuses_what_its_replicas_do_not_know(
    command: c.Command,
) -> None:
    async with reigning(OLD) as replica:
        replica.leader.changes.older_replicas = lambda: "r2 has an older release"
        least, what = needed(command)
        said = f"the cell has format 8, too old for {what} (format {least}); nothing was changed"
        index = replica.state.index
        with pytest.raises(NotNow, match=re.escape(said)) as refused:
            await replica.leader.append(c.Resume((), "anna"), command)
        assert "r2 has an older release; upgrade all replicas" in refused.value.hint
        assert "docs/upgrade.md" in refused.value.hint
        assert replica.state.index == index
        replica.leader.shared_format = lambda: least
        await replica.until(lambda: replica.state.format == least)
        _, results = await replica.leader.append(command)
        assert len(results) == 1


@contextmanager
def called_from(text: str) -> Iterator[None]:
    token = origin.CURRENT.set(text)
    try:
        yield
    finally:
        origin.CURRENT.reset(token)


async def test_an_older_format_keeps_no_origin_of_changes() -> None:
    """`CameFrom` goes before each change of a person: nobody asked for it."""
    kept = []
    for log_format in (OLD, 9):
        async with reigning(log_format) as replica:
            await replica.put(job())
            with called_from("certificate anna from 10.0.0.1"):
                _, results = await replica.leader.append(
                    c.Pause(("default/backup",), "", 0, "anna")
                )
            assert len(results) == 1
            kept.append(replica.state.revisions[-1].origin)
    assert kept == ["", "certificate anna from 10.0.0.1"]


RULE: Final = Rule("away", Condition(AlertKind.REPLICA_AWAY, after_s=60))
AWAY: Final = Observed("test", {AlertKind.REPLICA_AWAY: {"r3": 600}})


async def test_a_leader_plans_nothing_that_older_replicas_do_not_know_until_they_are_upgraded() -> (
    None
):
    """State has a rule that fires and a group to be closed, as after a release that did not look
    at formats."""
    async with reigning(OLD) as replica:
        seen: list[c.Command] = []
        replica.applier.subscribe(lambda _index, outcome: seen.extend(outcome.commands))
        looks: list[Observed] = []

        def observe() -> Observed:
            looks.append(AWAY)
            return AWAY

        async def until(is_so: Callable[[], bool]) -> None:
            def soon() -> bool:
                replica.clock.ms += 1_000
                return is_so()

            await replica.until(soon)

        joined = msgspec.structs.replace(TASK, group="default/all")
        for command in (
            alerts.ApplyAlerts(0, (), (RULE,)),
            tasks.SubmitTasks((joined,)),
            tasks.CancelTasks(("default/mails:1",)),
        ):
            await put_past_the_leader(replica, command)
        seen.clear()
        replica.leader.observe = observe
        for _ in range(2):  # the task is forgotten, and with that the group begins to be idle
            replica.clock.ms += groups.IDLE_MS + 120_000
            looks.clear()
            await until(lambda: len(looks) >= 5)
        assert seen
        assert known_in(seen, OLD) == seen
        assert not replica.state.alerts.open
        assert not replica.state.groups["default/all"].is_closed
        replica.leader.shared_format = lambda: 9
        await until(lambda: bool(replica.state.alerts.open))
        await until(lambda: replica.state.groups["default/all"].is_closed)


async def put_past_the_leader(replica: Replica, command: c.Command) -> None:
    assert replica.leader.epoch is not None
    entry = encode_entry(replica.clock.wall_ms(), replica.leader.epoch, (command,))
    applied = await replica.log.append(entry, timeout_ms=10_000)
    [result] = applied.outcome.results
    assert not any((result.verdict, *result.items)), result
