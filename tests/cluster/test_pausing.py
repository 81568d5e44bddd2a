"""Jobs that pause themselves, skip one instant, and begin later than they are due, in a cell."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cron.job import Job, Schedule
from launcher.protocol.work import WorkSpec
from tests.cluster.harness import Cell, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

CRONTAB = """
#: name=fails pause-after=2
@every 1s exit 1
#: name=late jitter=9s
@every 10s true
#: name=slow
@every 20s true
"""


def test_a_failing_job_pauses_over_a_failover_and_jitter_delays_a_launch(
    make_cell: Callable[..., Cell],
) -> None:
    cell = make_cell().start()
    cell.wait_connected()
    cell.apply(CRONTAB)
    wait_until(lambda: cell.rows("jobs", "fails")[0]["paused"], what="a pause")
    [job] = cell.rows("jobs", "fails")
    assert (job["paused_by"], job["pause_reason"]) == ("raftcron", "failed 2 times in a row")
    [change] = [row for row in cell.rows("changes") if row["by"] == "raftcron"]
    assert (change["action"], change["object"], change["after"]) == (
        "pause",
        "default/fails",
        "paused",
    )
    cell.cli("pause", "slow", "--next")
    leader = cell.leader()
    cell.kill(leader)
    cell.leader(but=leader)
    cell.start(leader)
    assert cell.rows("jobs", "fails")[0]["paused"]
    cell.wait_launches(1, "slow", "skipped")
    cell.wait_launches(1, "slow")
    assert [row.reason for row in cell.history("slow", states=["skipped"])] == ["paused"]
    cell.wait_launches(2, "late")
    late = Job("default/late", Schedule("@every 10s", every_s=10), WorkSpec(()), jitter_s=9)
    for row in cell.history("late", states=["succeeded"]):
        assert row.started_at_ms >= row.scheduled_s * 1000 + late.delay_ms(row.scheduled_s)
    cell.cli("resume", "fails")
    assert not cell.rows("jobs", "fails")[0]["paused"]
