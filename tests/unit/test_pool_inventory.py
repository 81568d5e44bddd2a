"""What a ledger remembers, as the pool takes it: asked for, in order, each field checked."""

from __future__ import annotations

import contextlib
from typing import Any

import grpc
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from launcher.executor.ledger import Page
from launcher.executor.stream import recollection_of
from launcher.pool.events import InventoryPage, Joined
from launcher.protocol import limits
from launcher.protocol.names import AttemptName, LaunchName
from launcher.protocol.reading import BadMessage, parse_recollection
from launcher.protocol.reports import RowReport
from launcher.protocol.status import Reason, Status
from launcher.protocol.v1 import pool_pb2
from tests.unit.pool_rig import (
    LEDGER,
    FakeExecutor,
    Rig,
    attempt,
    fact,
    report,
    rigged,
)

START = (-1, -1)
INVALID = grpc.StatusCode.INVALID_ARGUMENT


def about(number: int) -> dict[str, Any]:
    """What the inventory says of a row beside a report."""
    return {"name": str(attempt(number)), "epoch": "0.7.r1"}


def row(number: int, **fields: Any) -> pool_pb2.RowReport:
    return report(number, **{"name": str(attempt(number)), "epoch": "0.7.r1"} | fields)


def part(*rows: pool_pb2.RowReport, last: bool = False, floor: int = 0) -> pool_pb2.Recollection:
    return pool_pb2.Recollection(reports=rows, last=last, floor=floor)


async def ended_over(rig: Rig, fake: FakeExecutor) -> str:
    """Why the pool ended the stream for a bad message."""
    code, details = await fake.status()
    assert code is INVALID
    assert (await rig.gone()).reason == details
    return details


# ---- over the stream


async def test_all_parts_reach_the_leader_in_order_with_every_field() -> None:
    async with rigged() as rig, rig.joined(inventory=True, can_inventory=True) as fake:
        first = row(1, exit_code=3, reason=int(Reason.USER), output_bytes=77, detail="no")
        await fake.send(recollection=part(first, row(2, status=int(Status.FENCED)), floor=50))
        await fake.send(recollection=part(last=True, floor=60))
        await rig.heard(InventoryPage, 2)
        more = {"exit_code": 3, "detail": "no", "output_bytes": 77}
        assert rig.of(InventoryPage) == [
            InventoryPage(
                "executor-7",
                LEDGER,
                (
                    fact(1, Status.ENDED, Reason.USER, **more, **about(1)),
                    fact(2, Status.FENCED, **about(2)),
                ),
                is_last=False,
                watermark=50,
            ),
            InventoryPage("executor-7", LEDGER, (), is_last=True, watermark=60),
        ]


@pytest.mark.parametrize(
    ("inventory", "can_inventory"), [(False, True), (False, False), (True, False)]
)
async def test_what_nobody_asked_for_ends_the_stream(
    *, inventory: bool, can_inventory: bool
) -> None:
    async with (
        rigged() as rig,
        rig.joined(inventory=inventory, can_inventory=can_inventory) as fake,
    ):
        assert (await rig.heard(Joined)).greeting.can_inventory is can_inventory
        await fake.send(recollection=part(last=True))
        assert "not asked for" in await ended_over(rig, fake)
        assert not rig.of(InventoryPage)


async def test_nothing_follows_the_last_part() -> None:
    async with rigged() as rig, rig.joined(inventory=True, can_inventory=True) as fake:
        await fake.send(recollection=part(row(1), last=True))
        await fake.send(recollection=part(row(2), last=True))
        assert "came to its last part" in await ended_over(rig, fake)
        assert len(rig.of(InventoryPage)) == 1


# ---- each field


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", "default/backup"),
        ("name", "backup@2026-11-20T16:00:00Z#1"),
        ("status", 0),
        ("status", 99),
        ("status", int(Status.UNKNOWN)),
        ("reason", 999),
        ("exit_code", -2),
        ("exit_code", 256),
        ("started_ms", -1),
        ("finished_ms", limits.WALL_MS_MAX + 1),
        ("detail", "x" * (limits.DETAIL_CHARS_MAX + 1)),
        ("output_bytes", limits.OUTPUT_KEPT_BYTES_MAX + 1),
        ("index", limits.INDEX_MAX + 1),
        ("index", 0),
        ("row", limits.ROW_MAX + 1),
        ("epoch", "1"),
        ("epoch", "1.2"),
        ("epoch", "01.2.r1"),
        ("epoch", "1.-2.r1"),
        ("epoch", "1.2.r 1"),
        ("epoch", "1.2.r1\n"),
        ("epoch", f"{limits.INDEX_MAX + 1}.2.r1"),
        ("epoch", f"1.{limits.INDEX_MAX + 1}.r1"),
        ("epoch", "1.2." + "r" * 101),
        ("epoch", "1" * 10_000),
    ],
)
def test_a_wrong_field_is_named_with_its_row(field: str, value: Any) -> None:
    message = part(row(1), row(2, **{field: value}))
    with pytest.raises(BadMessage) as caught:
        parse_recollection(message, START)
    assert str(caught.value).startswith(f"recollection.reports[1].{field}: ")


def test_too_many_rows_are_refused_before_any_is_read() -> None:
    with pytest.raises(BadMessage, match=r"^recollection: 50001 rows are more than"):
        parse_recollection(part(*[pool_pb2.RowReport()] * (limits.REPORTS_MAX + 1)), START)


@pytest.mark.parametrize(
    "rows",
    [
        (row(2), row(1)),
        (row(1), row(1)),
        (row(2, index=5, row=7), row(1, index=5, row=6)),
    ],
)
def test_rows_out_of_log_order_are_refused(rows: tuple[pool_pb2.RowReport, ...]) -> None:
    with pytest.raises(BadMessage, match=r"^recollection\.reports\[1\]\.row: .* follow"):
        parse_recollection(part(*rows), START)


# ---- round trip

MS = st.integers(0, limits.WALL_MS_MAX)
EPOCHS = st.builds(
    lambda generation, term, replica: f"{generation}.{term}.{replica}",
    st.integers(0, limits.INDEX_MAX),
    st.integers(0, limits.INDEX_MAX),
    st.sampled_from(["", "r1", "a.b-c_d", "9.9"]),
)
ROWS = st.builds(
    RowReport,
    index=st.integers(1, limits.INDEX_MAX),
    row=st.integers(0, limits.ROW_MAX),
    status=st.sampled_from([one for one in Status if one is not Status.UNKNOWN]),
    name=st.builds(
        lambda second, trigger, tried: str(
            AttemptName(LaunchName("acme/backup", second, trigger), tried)
        ),
        st.integers(0, 2_000_000_000),
        st.integers(0, 3),
        st.integers(1, 3),
    ),
    epoch=EPOCHS,
    started_ms=MS,
    finished_ms=MS,
    exit_code=st.integers(-1, 255),
    reason=st.sampled_from(Reason),
    detail=st.text(max_size=50),
)


def where(one: RowReport) -> tuple[int, int]:
    return (one.index, one.row)


@given(st.lists(ROWS, max_size=8, unique_by=where), st.integers(0, 1 << 30))
def test_what_an_executor_tells_is_what_the_leader_hears(rows: list[RowReport], kept: int) -> None:
    rows.sort(key=where)
    for one in rows:
        one.output_bytes = kept
    told = recollection_of(Page(rows, 5, None))
    heard = pool_pb2.Recollection.FromString(told.SerializeToString())
    assert (heard.last, heard.floor) == (True, 5)
    for one, said in zip(rows, parse_recollection(heard, START), strict=True):
        assert (said.name, said.status) == (one.name, one.status)
        assert (where(said), said.epoch) == (where(one), one.epoch)
        assert (said.started_ms, said.finished_ms) == (one.started_ms, one.finished_ms)
        assert (said.exit_code, int(said.reason)) == (one.exit_code, one.reason)
        assert said.detail == one.detail
        assert said.output_bytes == kept


@given(st.binary(max_size=200))
def test_bytes_of_any_kind_are_rows_or_a_bad_message(raw: bytes) -> None:
    with contextlib.suppress(BadMessage, DecodeError):
        message = pool_pb2.Recollection.FromString(raw)
        rows = parse_recollection(message, START)
        assert len(rows) == len(message.reports)
