"""Every field an executor sends, at its bounds and beyond: the answer names the field."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher import limits as executor_limits
from launcher.pool import limits
from launcher.protocol.limits import (
    DETAIL_CHARS_MAX,
    KNOWN_MAX,
    LABELS_MAX,
    OUTPUT_KEPT_BYTES_MAX,
    PID_MAX,
    PROTOCOL,
    REPORTS_MAX,
    RETRY_AFTER_MS_MAX,
    ROW_MAX,
    SLOTS_MAX,
    USAGE_MAX,
    WALL_MS_MAX,
)
from launcher.protocol.names import AttemptName, LaunchName
from launcher.protocol.reading import (
    BadMessage,
    check_heartbeat,
    parse_hello,
    parse_name,
    parse_reports,
)
from launcher.protocol.reports import BatchReport, RowReport
from launcher.protocol.status import Reason, Status
from launcher.protocol.v1 import pool_pb2
from launcher.protocol.work import Epoch
from tests.unit.pool_rig import CELL, LEDGER, hello, reports, said

MANY_LABELS = {f"k{i}": "v" for i in range(LABELS_MAX + 1)}


def ends(index: int, rows: Sequence[int], **fields: Any) -> pool_pb2.BatchReport:
    usual = {"index": index, "rows": rows, "status": int(Status.ENDED), "started_ms": [5]}
    return pool_pb2.BatchReport(**usual | fields)


def read(**fields: Any) -> Any:
    return parse_hello(hello(**fields), CELL)


@pytest.mark.parametrize(
    ("field", "value", "place"),
    [
        ("cell", "", "hello.cell"),
        ("cell", "paris", "hello.cell"),
        ("executor", "", "hello.executor"),
        ("executor", "a/b", "hello.executor"),
        ("executor", "-a", "hello.executor"),
        ("executor", "a b", "hello.executor"),
        ("executor", "ä", "hello.executor"),
        ("executor", "a\n", "hello.executor"),
        ("executor", "x" * 101, "hello.executor"),
        ("ledger", "", "hello.ledger"),
        ("ledger", "not-a-uuid", "hello.ledger"),
        ("ledger", LEDGER.upper(), "hello.ledger"),
        ("ledger", LEDGER.replace("-", ""), "hello.ledger"),
        ("ledger", "{" + LEDGER + "}", "hello.ledger"),
        ("incarnation", "", "hello.incarnation"),
        ("incarnation", "a b", "hello.incarnation"),
        ("incarnation", "x" * 101, "hello.incarnation"),
        ("slots", 0, "hello.slots"),
        ("slots", SLOTS_MAX + 1, "hello.slots"),
        ("host", "", "hello.host"),
        ("host", "a\x00b", "hello.host"),
        ("host", "x" * 254, "hello.host"),
        ("pid", 0, "hello.pid"),
        ("pid", PID_MAX + 1, "hello.pid"),
        ("version", "", "hello.version"),
        ("version", "1\n2", "hello.version"),
        ("wall_ms", -1, "hello.wall_ms"),
        ("wall_ms", WALL_MS_MAX + 1, "hello.wall_ms"),
        ("labels", {"a b": "v"}, "hello.labels"),
        ("labels", {"a": "x" * 201}, "hello.labels[a]"),
        ("labels", {"a": "x\x1b[0m"}, "hello.labels[a]"),
        ("labels", MANY_LABELS, "hello.labels"),
        ("highest_epoch", pool_pb2.Epoch(generation=1 << 63), "hello.highest_epoch.generation"),
        ("highest_epoch", pool_pb2.Epoch(term=1 << 63), "hello.highest_epoch.term"),
        ("highest_epoch", pool_pb2.Epoch(replica="r/1"), "hello.highest_epoch.replica"),
        ("known", reports(ends(7, [1], status=6)), "hello.known.batches[0].status"),
        ("known", reports(said(1), said(2, reason=99)), "hello.known.batches[1].reason"),
        ("known", reports(said(1), said(1)), "hello.known.batches[1].rows"),
        ("known", reports(ends(1, [4]), ends(1, [3, 1])), "hello.known.batches[1].rows"),
        ("protocol", PROTOCOL - 1, "hello.protocol"),
        ("protocol", PROTOCOL + 1, "hello.protocol"),
    ],
)
def test_a_bad_hello_is_refused_with_its_field(field: str, value: Any, place: str) -> None:
    with pytest.raises(BadMessage) as caught:
        read(**{field: value})
    assert caught.value.field == place
    assert str(caught.value).startswith(f"{place}: ")
    assert str(caught.value).isascii()  # it travels as a status message


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("executor", "x" * 100),
        ("executor", "_worker.7-b"),
        ("slots", 1),
        ("slots", SLOTS_MAX),
        ("pid", 1),
        ("pid", PID_MAX),
        ("host", "x" * 253),
        ("wall_ms", 0),
        ("wall_ms", WALL_MS_MAX),
        ("labels", {"zone": "", "rack": "ä 7"}),
        ("labels", {f"k{i}": "v" * 200 for i in range(LABELS_MAX)}),
    ],
)
def test_a_hello_at_its_bounds_is_taken(field: str, value: Any) -> None:
    assert getattr(read(**{field: value}), field) == value


@pytest.mark.parametrize(
    ("theirs", "who"),
    [(0, "the executor"), (PROTOCOL - 1, "the executor"), (9, "the replicas")],
)
def test_who_speaks_another_protocol_is_told_what_to_upgrade(theirs: int, who: str) -> None:
    text = f"speaks {theirs}, and this replica speaks {PROTOCOL}; upgrade {who}$"
    with pytest.raises(BadMessage, match=text):
        read(protocol=theirs, cell="")  # whatever else an older one says


def test_an_executor_that_never_saw_a_leader_has_the_lowest_epoch() -> None:
    assert read().highest_epoch == Epoch()
    assert read(highest_epoch=pool_pb2.Epoch(generation=1, term=2, replica="r3")).highest_epoch == (
        Epoch(1, 2, "r3")
    )


def test_more_known_rows_than_the_bound_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launcher.protocol.limits.KNOWN_MAX", 2)
    assert len(read(known=reports(said(1), ends(7, [0]))).known) == 2
    with pytest.raises(BadMessage, match=r"hello\.known: 3 rows are more than 2"):
        read(known=reports(said(1), ends(7, [0, 1])))


def test_more_reports_than_the_bound_are_refused() -> None:
    assert len(parse_reports(reports(said(1), said(2)), rows_max=2)) == 2
    for others in ([said(2), said(3)], [ends(7, [0, 1])]):
        with pytest.raises(BadMessage, match="reports: 3 rows are more than 2; send fewer"):
            parse_reports(reports(said(1), *others), rows_max=2)


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"status": 0}, "status"),
        ({"status": 7}, "status"),
        ({"reason": 99}, "reason"),
        ({"exit_code": 256}, "exit_code"),
        ({"exit_code": -2}, "exit_code"),
        ({"started_ms": [-1]}, "started_ms"),
        ({"started_ms": [WALL_MS_MAX + 1]}, "started_ms"),
        ({"finished_ms": [-1]}, "finished_ms"),
        ({"finished_ms": [WALL_MS_MAX + 1]}, "finished_ms"),
        ({"detail": "x" * (DETAIL_CHARS_MAX + 1)}, "detail"),
        ({"index": 0}, "index"),
        ({"index": 1 << 63}, "index"),
        ({"rows": [ROW_MAX + 1]}, "rows"),
    ],
)
def test_a_bad_report_is_refused_with_its_place(fields: dict[str, Any], place: str) -> None:
    with pytest.raises(BadMessage) as caught:
        parse_reports(reports(said(1), said(2, **fields)))
    assert caught.value.field == f"reports.batches[1].{place}"


# ---- columns


def test_columns_are_read_in_full() -> None:
    usage = {"cpu_ms": [4], "memory_peak_bytes": [7, 8, 9], "retry_after_ms": [0, 0, 5]}
    times = {"started_ms": [100], "finished_ms": [110, -5, 20]}
    batch = ends(7, [3, 1, 2], output_bytes=[0, 9, 0], **times, **usage)
    (found,) = parse_reports(reports(batch))
    assert found == BatchReport(
        7, Status.ENDED, Reason.NONE, 0, [3, 1, 2], [100], [110, -5, 20], [0, 9, 0], "",
        [4], [7, 8, 9], [0, 0, 5],
    )  # fmt: skip
    assert (found.column("finished_ms"), found.column("cpu_ms")) == ([110, 105, 125], [4, 4, 4])
    facts = list(found.pick([1, 2]).row_reports())
    assert [(one.row, one.output_bytes, one.cpu_ms) for one in facts] == [(4, 9, 4), (6, 0, 4)]
    assert [(one.memory_peak_bytes, one.retry_after_ms) for one in facts] == [(8, 0), (9, 5)]
    (bare,) = parse_reports(reports(ends(7, [3], status=1, started_ms=[])))
    assert (bare.started_ms, bare.finished_ms, bare.output_bytes) == ([], [], [])


def test_a_batch_of_facts_is_a_fact_for_each_row() -> None:
    batch = ends(7, [3, 1], started_ms=[100, 1], exit_code=2, reason=int(Reason.USER), detail="no")
    (found,) = parse_reports(reports(batch))
    facts = [RowReport(7, row, Status.ENDED, Reason.USER, 2, 97 + row, 0, "no") for row in (3, 4)]
    assert list(found.row_reports()) == facts
    assert [list(found.pick([place]).row_reports()) for place in (0, 1)] == [facts[:1], facts[1:]]


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"index": 0}, "index"),
        ({"status": 0}, "status"),
        ({"reason": 99}, "reason"),
        ({"exit_code": 256}, "exit_code"),
        ({"detail": "x" * (DETAIL_CHARS_MAX + 1)}, "detail"),
        ({"rows": []}, "rows"),
        ({"rows": [0, 0, 1]}, "rows"),
        ({"rows": [0, 1, ROW_MAX]}, "rows"),
        ({"started_ms": [1, 2]}, "started_ms"),
        ({"started_ms": [1, 2, -9]}, "started_ms"),
        ({"started_ms": [1, 1, 1, 1]}, "started_ms"),
        ({"finished_ms": [WALL_MS_MAX + 1]}, "finished_ms"),
        ({"output_bytes": [1, 2]}, "output_bytes"),
        ({"output_bytes": [0, 0, OUTPUT_KEPT_BYTES_MAX + 1]}, "output_bytes"),
        ({"cpu_ms": [USAGE_MAX + 1]}, "cpu_ms"),
        ({"memory_peak_bytes": [1, 2, 3, 4]}, "memory_peak_bytes"),
        ({"retry_after_ms": [0, 0, RETRY_AFTER_MS_MAX + 1]}, "retry_after_ms"),
    ],
)
def test_a_bad_column_is_refused_with_its_place(fields: dict[str, Any], place: str) -> None:
    batch = ends(**{"index": 7, "rows": [0, 1, 1]} | fields)
    with pytest.raises(BadMessage) as caught:
        parse_reports(reports(ends(7, [0]), batch))
    assert caught.value.field == f"reports.batches[1].{place}"


@pytest.mark.parametrize("status", list(Status))
@pytest.mark.parametrize("reason", list(Reason))
def test_every_status_and_every_reason_is_read(status: Status, reason: Reason) -> None:
    [batch] = parse_reports(reports(said(1, status, reason=int(reason))))
    assert (batch.status, batch.reason) == (status, reason)


def test_the_leader_takes_all_that_an_executor_may_send() -> None:
    # Two files of bounds: one of what an executor keeps and sends, one of what the pool takes.
    assert executor_limits.HELLO_ROWS_MAX <= KNOWN_MAX
    assert executor_limits.REPORTS_PER_MESSAGE_MAX <= REPORTS_MAX
    assert executor_limits.DETAIL_BYTES_MAX <= DETAIL_CHARS_MAX
    assert executor_limits.SLOTS_MAX <= SLOTS_MAX
    assert executor_limits.OUTPUT_CHUNK_BYTES_MAX <= limits.OUTPUT_BYTES_MAX
    assert executor_limits.MESSAGE_BYTES_MAX >= limits.ORDERS_BYTES_MAX + limits.WORK_BYTES_MAX


def test_statuses_are_numbered_as_in_the_protocol() -> None:
    numbers = {name: value for name, value in pool_pb2.Status.items() if value}
    assert {status.name: status.value for status in Status} == numbers


@pytest.mark.parametrize(
    "text",
    [
        "",
        "backup",
        "default/backup@2026-11-20T15:00:00Z",
        "backup@2026-11-20T15:00:00Z#1",
        "default/backup@2026-11-20T15:00:00Z#1/1",
        "default/backup@2026-11-20T15:00:00Z#0",
        "default/backup@2026-11-20T15:00:00Z#01",
        "default/backup@2026-02-30T15:00:00Z#1",
        "default/backup@2026-11-20T15:00:00Z#1\n",
        "default/backup@2026-11-20T15:00:00Z#1\x00",
        "default/backup@\uff12\uff10\uff12\uff16-11-20T15:00:00Z#1",
        "default/backup@2026-11-20T15:00:00Z#\u0967",
        "a" * 100_000,
    ],
)
def test_a_name_is_full_and_written_in_one_way(text: str) -> None:
    with pytest.raises(BadMessage) as caught:
        parse_name("here", text)
    assert len(str(caught.value)) < 400


attempts = st.builds(
    AttemptName,
    launch=st.builds(
        LaunchName,
        job=st.from_regex(r"[a-z_][a-z0-9_.-]{0,9}/[a-z_][a-z0-9_.-]{0,9}", fullmatch=True),
        scheduled_s=st.integers(0, 4_000_000_000),
        trigger=st.integers(0, 999),
    ),
    attempt=st.integers(1, 999),
    part=st.integers(1, 99),
)


@given(attempts)
def test_a_name_that_was_written_is_read_back(name: AttemptName) -> None:
    assert parse_name("here", str(name)) == name


def test_heartbeats_count_up() -> None:
    beat = pool_pb2.Heartbeat(number=5, running=2, wall_ms=9)
    check_heartbeat(beat, 4)
    for previous in (5, 6):
        with pytest.raises(BadMessage, match=f"heartbeat.number: 5 does not follow {previous}"):
            check_heartbeat(beat, previous)


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"number": 0}, "heartbeat.number"),
        ({"number": 1 << 63}, "heartbeat.number"),
        ({"running": SLOTS_MAX + 1}, "heartbeat.running"),
        ({"wall_ms": -1}, "heartbeat.wall_ms"),
        ({"wall_ms": WALL_MS_MAX + 1}, "heartbeat.wall_ms"),
    ],
)
def test_a_bad_heartbeat_is_refused_with_its_field(fields: dict[str, int], place: str) -> None:
    with pytest.raises(BadMessage) as caught:
        check_heartbeat(pool_pb2.Heartbeat(**{"number": 1} | fields), 0)
    assert caught.value.field == place


def test_all_of_a_message_is_checked_before_any_of_it_counts() -> None:
    with pytest.raises(BadMessage):
        parse_reports(reports(said(1), said(2), said(3, exit_code=999)))
