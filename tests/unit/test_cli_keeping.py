"""What `raftcron status` says of snapshots, history and what waits for upload."""

from __future__ import annotations

from cron.api.snapshots import KeepingView
from cron.cli.snapshots import keeping_pairs
from tests.unit.api_rig import NOON_S

URL = "s3://bucket/prefix"


def test_what_is_kept_is_told_in_pairs():
    now_ms = NOON_S * 1000
    kept = KeepingView(
        snapshot_index=88, snapshot_at_ms=now_ms - 5_000, segments=3, segments_missing=1,
        open_rows=7, store=URL, stored_index=80, stored_at_ms=now_ms - 65_000,
        segments_waiting=2, failing="denied", failing_since_ms=now_ms,
    )  # fmt: skip
    pairs = dict(keeping_pairs(kept, now_ms))
    assert pairs["snapshot here"] == "5s ago, index 88"
    assert pairs["snapshot stored"] == f"1m05s ago, index 80, in {URL}"
    assert "1 missing on this disk" in pairs["history"]
    assert "2 wait for upload" in pairs["history"]
    assert pairs["failing"] == "since 2026-11-20 15:00:00 UTC: denied"
    nothing = dict(keeping_pairs(KeepingView(), now_ms))
    assert nothing["snapshot here"] == "none yet"
    assert nothing["snapshot stored"] == "nowhere: no store"
    assert nothing["failing"] == nothing["under way"] == ""


def test_what_is_under_way_is_told_together():
    kept = KeepingView(resolving="asks e1", filling="history 40%")
    assert dict(keeping_pairs(kept, 0))["under way"] == "asks e1; history 40%"


def test_a_clock_that_is_behind_shows_no_negative_age():
    kept = KeepingView(snapshot_index=1, snapshot_at_ms=NOON_S * 1000)
    assert dict(keeping_pairs(kept, 0))["snapshot here"] == "0ms ago, index 1"
