"""Who changed what: kept in State, bounded, and told by the leader's log."""

from __future__ import annotations

import pytest
import structlog

from cron.launch_state import LaunchState
from cron.service.jobs import of_job
from cron.state import commands as c
from cron.state import pool, revisions
from cron.state.image import decode_state
from cron.state.imaging import encode_state
from launcher.protocol.status import Reason
from tests.unit.state_rig import T0, StateRig, job, with_job
from tests.unit.test_leader_term import reigning

BACKUP = "default/backup"


def told(rig: StateRig) -> list[tuple[str, str, str, int]]:
    return [(one.by, one.command, one.subject, one.count) for one in rig.state.revisions]


def gate(by: str) -> pool.Gate:
    return pool.Gate(0, pool.GateAction.PAUSE, "why", by, 0)


def test_each_change_is_kept_with_who_made_it() -> None:
    rig = with_job()
    rig.to(60).account(60)
    rig.append(c.Pause((BACKUP, "default/never"), "why", 0, "ada"))
    rig.append(c.Resume((BACKUP,), "bob"))
    rig.append(pool.SetLimits((pool.LimitItem(("acme", "", -1), pool.Limits(weight=2)),), "cyd"))
    rig.append(pool.CloseGate(gate("dan")))
    rig.append(pool.LiftGates((1,), "eve"))
    rig.append(pool.Drain("e1", "fay"))
    rig.append(pool.Drain("e1", "gil", is_over=True))
    rig.append(c.Cancel((c.CancelItem((1, T0 + 60, 0), Reason.KILLED, "hal"),)))
    rig.reopen(60, LaunchState.CANCELLED)
    name = "default/backup@2026-11-20T16:01:00Z"
    assert told(rig) == [
        ("anna", "put", "crontab", 1),
        ("ada", "pause", BACKUP, 1),
        ("bob", "resume", BACKUP, 1),
        ("cyd", "limits", "tenant acme", 1),
        ("dan", "close-gate", "1", 1),
        ("eve", "lift-gates", "1", 1),
        ("fay", "drain", "e1", 1),
        ("gil", "drain", "e1", 1),
        ("hal", "cancel", name, 1),
        ("anna", "reopen", name, 1),
    ]
    assert [one.at_ms for one in rig.state.revisions] == [T0 * 1000] + [(T0 + 60) * 1000] * 9
    assert decode_state([encode_state(rig.state)]).revisions == rig.state.revisions


def test_what_changes_nothing_is_no_change() -> None:
    rig = with_job()
    rig.to(60).account(60)
    before = told(rig)
    rig.append(c.Resume((BACKUP,), "ada"))
    rig.append(c.Pause(("default/never",), "why", 0, "ada"))
    rig.append(c.Cancel((c.CancelItem((1, T0 + 60, 0), Reason.REPLACED, "a newer launch"),)))
    rig.put(job(deadline_s=9), source="other")
    assert told(rig) == before


def test_a_change_in_several_parts_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = StateRig()
    jobs = [job(name) for name in "abc"]
    for part, one in enumerate(jobs, 1):
        put = c.PutJobs("crontab", 0, T0, (one,), (), "ada", "x", part, 3)
        rig.append(put)
    assert told(rig) == [("ada", "put", "crontab", 3)]
    monkeypatch.setattr(revisions, "REVISIONS_KEPT", 2)
    for by in ("bob", "cyd", "dan"):
        rig.append(pool.CloseGate(gate(by)))
    assert [one.by for one in rig.state.revisions] == ["cyd", "dan"]


def test_a_job_says_who_applied_it_last_and_when() -> None:
    rig = with_job()
    rig.to(60).account(60)
    rig.put(job(deadline_s=77), by="bob")
    record = rig.record()
    view = of_job(record, job(), None, rig.at_ms)
    assert (view.changed_by, view.changed_ms) == ("bob", (T0 + 60) * 1000)


async def test_the_leaders_log_has_a_line_of_each_change() -> None:
    async with reigning() as replica:
        with structlog.testing.capture_logs() as lines:
            await replica.put(job("a"), job("b"))
            pause = c.Pause(("default/a", "default/b"), "why", 0, "ada")
            index, _ = await replica.leader.append(pause)
        assert [line for line in lines if line["event"] == "change.applied"][-1] == {
            "event": "change.applied",
            "log_level": "info",
            "replica": "r1",
            "by": "ada",
            "command": "pause",
            "subject": "default/a",
            "count": 2,
            "index": index,
        }
