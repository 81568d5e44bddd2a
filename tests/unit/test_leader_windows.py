"""How long a begun launch may still start, and what becomes of it when its order waited too long
(rule R7)."""

from __future__ import annotations

import pytest

from cron.config import LimitsConfig
from cron.job import Catchup
from cron.scheduler.policy import FAILOVER_MS
from cron.state import commands as c
from tests.batches import refused_item
from tests.unit.queues_rig import QueuesRig
from tests.unit.state_rig import T0, job


def begun(catchup: Catchup) -> QueuesRig:
    rig = QueuesRig(job(catchup=catchup, deadline_s=600))
    rig.to(60).account(60)
    assert rig.turn() == ["begin 1@60#1"]
    return rig


def test_a_window_is_as_long_as_an_instant_is_live() -> None:
    """It was 30 s: an order that waited in a dead connection started 14 to 16 s late."""
    rig = begun(Catchup.NONE)
    assert rig.rig.row(60).not_after_ms == rig.rig.at_ms + FAILOVER_MS
    assert LimitsConfig().start_window_ms == FAILOVER_MS


def test_what_outlasted_its_window_is_not_begun_late_where_nothing_late_is_wanted() -> None:
    rig = begun(Catchup.NONE)
    rig.to(74).refuse(60, 1)
    rig.to(75)
    assert rig.turn() == ["skip 1@60 fenced"]


@pytest.mark.parametrize("catchup", [Catchup.LAST, Catchup.ALL])
def test_what_outlasted_its_window_begins_anew_where_what_was_missed_is_wanted(
    catchup: Catchup,
) -> None:
    rig = begun(catchup)
    rig.to(74).refuse(60, 1)
    rig.to(75)
    assert rig.turn() == ["begin 1@60#2"]


def test_what_was_refused_within_its_window_begins_elsewhere_and_waits_for_its_deadline() -> None:
    """An executor that was full for a moment is no reason to skip a launch."""
    rig = begun(Catchup.NONE)
    rig.to(61).refuse(60, 1)
    rig.to(62)
    assert rig.turn() == ["begin 1@60#2"]
    # Nor is a new leader, who finds it waiting later than its window was.
    rig.refuse(60, 2)
    rig.to(120)
    rig.lead()
    assert rig.turn() == ["begin 1@60#3"]


def test_what_a_person_asked_for_begins_anew_however_long_its_order_waited() -> None:
    rig = QueuesRig(job(catchup=Catchup.NONE, deadline_s=600))
    rig.to(60).append(c.Trigger("default/backup", "q1", "anna"))
    assert rig.turn() == ["begin 1@60+t1#1"]
    rig.to(74).append(c.Report((refused_item((1, T0 + 60, 1), 1, "too late"),)))
    rig.to(75)
    assert rig.turn() == ["begin 1@60+t1#2"]
