"""The largest messages that an executor may send are such that arrive."""

from __future__ import annotations

from cron.limits import RPC_BYTES_MAX
from launcher.executor.ledger import Page
from launcher.executor.rows import INTERRUPTED, changes_of
from launcher.executor.rules import ROW_MAX
from launcher.executor.stream import messages_of, recollection_of
from launcher.limits import (
    DETAIL_BYTES_MAX,
    HELLO_ROWS_MAX,
    INVENTORY_ROWS_MAX,
    MESSAGE_BYTES_MAX,
    SLOTS_MAX,
)
from launcher.protocol import limits
from launcher.protocol.limits import (
    ACCOUNT_CHARS_MAX,
    ACCOUNTS_MAX,
    LABEL_CHARS_MAX,
    LABELS_MAX,
)
from launcher.protocol.names import NAME_PART_CHARS_MAX, parse_attempt_name
from launcher.protocol.reports import RowReport
from launcher.protocol.status import Reason
from launcher.protocol.v1 import pool_pb2

PART = "x" * NAME_PART_CHARS_MAX
OUTPUT = limits.OUTPUT_KEPT_BYTES_MAX


def longest_row() -> RowReport:
    number = 999_999_999
    name = f"{PART}/{PART}@9999-12-31T23:59:59Z+t{number}#{number}/{number}"
    assert str(parse_attempt_name(name)) == name
    late_ms = 253_402_300_799_999
    return RowReport(
        limits.INDEX_MAX, ROW_MAX, INTERRUPTED, max(Reason), -1, late_ms, late_ms,
        "x" * DETAIL_BYTES_MAX, OUTPUT, limits.RETRY_AFTER_MS_MAX, limits.USAGE_MAX,
        limits.USAGE_MAX, name=name, epoch="9" * limits.EPOCH_CHARS_MAX,
    )  # fmt: skip


def test_a_greeting_full_of_the_longest_rows_fits_into_a_message() -> None:
    [said] = messages_of(changes_of([longest_row()]), 1)
    longest = pool_pb2.Hello(known=said).ByteSize()
    labels = LABELS_MAX * (NAME_PART_CHARS_MAX + 4 * LABEL_CHARS_MAX + 20)
    labels += ACCOUNTS_MAX * (4 * ACCOUNT_CHARS_MAX + 4)
    assert HELLO_ROWS_MAX * longest + labels + 10_000 < MESSAGE_BYTES_MAX < RPC_BYTES_MAX


def test_a_greeting_has_room_for_all_that_runs() -> None:
    assert HELLO_ROWS_MAX > 2 * SLOTS_MAX


def test_a_part_of_a_recollection_fits_where_grpc_is_told_nothing_of_sizes() -> None:
    longest = recollection_of(Page([longest_row()], 0, None)).ByteSize()
    assert INVENTORY_ROWS_MAX * longest < 4 << 20
    assert INVENTORY_ROWS_MAX <= limits.REPORTS_MAX
