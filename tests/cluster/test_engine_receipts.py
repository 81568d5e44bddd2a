"""The verdict on clients' receipts: it must find what it is there to find."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.engine_receipts import Entry, Receipts, judge, read_receipts

A1, A2, A3, B1 = Entry("a", 1, 40), Entry("a", 2, 5), Entry("a", 3, 9), Entry("b", 1, 300)
STATUSES = {A1: "1", B1: "sent", A2: "3", A3: "refused"}
LOG = [A1.content, B1.content, A2.content]


def test_a_log_that_holds_all_that_was_acknowledged_is_right() -> None:
    verdict = judge(STATUSES, LOG)
    assert verdict.problems == []
    assert (verdict.acknowledged, verdict.unknown, verdict.refused) == (2, 1, 1)
    assert judge({A1: "1", B1: "sent"}, LOG[:1]).problems == [], "unknown may be missing"


@pytest.mark.parametrize(
    ("log", "field"),
    [
        ([A1.content, B1.content], "missing"),
        ([*LOG, B1.content], "duplicates"),
        ([*LOG, b"from nowhere"], "strangers"),
        ([*LOG, A3.content], "strangers"),
        ([B1.content, A1.content, A2.content], "disorder"),
        ([A2.content, B1.content, A1.content], "disorder"),
        ([A1.content, B1.content, A2.content[:-1] + b"!"], "missing"),
    ],
)
def test_each_kind_of_loss_is_found(log: list[bytes], field: str) -> None:
    verdict = judge(STATUSES, log)
    assert getattr(verdict, field)
    assert verdict.problems


def test_receipts_are_read_back_with_the_last_status_of_each_entry(tmp_path: Path) -> None:
    receipts = Receipts(tmp_path / "receipts")
    for entry, status in STATUSES.items():
        receipts.write(entry, "sent")
        if status != "sent":
            receipts.write(entry, status)
    receipts.close()
    assert read_receipts(tmp_path / "receipts") == STATUSES


def test_entries_differ_in_their_content() -> None:
    assert len(A1.content) == 40
    assert len({entry.content for entry in (*STATUSES, Entry("a", 11, 40))}) == 5
