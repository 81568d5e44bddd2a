"""What the command line says of stored outputs."""

from __future__ import annotations

import json

import pytest

from cron.api.launches import OutputView
from cron.api.members import StatusRow
from cron.api.rpc import encode
from cron.api.snapshots import KeepingView
from cron.api.table import PEER_STATUS
from cron.cli import rows
from cron.cli.cell import keeping_row
from cron.cli.export import COLUMNS, INTEGERS
from cron.cli.snapshots import keeping_pairs
from tests.unit.test_cli_launches import LAUNCH, FakeBackend, cli, launch

WHY = "executor e1, which keeps the output, is not connected"


async def test_logs_says_on_stderr_where_it_is_from():
    output = OutputView(content=b"one\n", size=4, ended=True, store="s3://b", note=WHY)
    result = await cli(FakeBackend(output=output), "logs", LAUNCH)
    assert result.stdout == "one\n"
    assert result.stderr == f"raftcron: from s3://b: {WHY}\n"


async def test_show_says_where_the_tail_is_from():
    output = OutputView(content=b"one\n", size=4, ended=True, store="s3://b", note=WHY)
    result = await cli(FakeBackend(show=[launch()], output=output), "show", LAUNCH)
    assert "output, the last 4 of 4 bytes, from s3://b:\none\n" in result.stdout


async def test_logs_of_a_connected_executor_says_nothing_more():
    output = OutputView(content=b"one\n", size=4, ended=True, executor="e1")
    result = await cli(FakeBackend(output=output), "logs", LAUNCH)
    assert result.stderr == ""


async def test_history_as_json_has_the_size_of_the_output():
    for view, size in ((launch(output_bytes=12), 12), (launch(), None)):
        result = await cli(FakeBackend(history=[view]), "history", "-o", "json")
        assert json.loads(result.stdout)["output_bytes"] == size


def test_an_export_has_it_as_a_number():
    assert "output_bytes" in COLUMNS
    assert "output_bytes" in INTEGERS
    assert set(COLUMNS) <= {*rows.launch_details(launch(count=2))}


@pytest.mark.parametrize(
    ("waiting", "text"), [(None, ""), (0, "0 wait for upload"), (7, "7 wait for upload")]
)
def test_status_says_how_many_outputs_wait(waiting, text):
    kept = KeepingView(store="s3://b", outputs_waiting=waiting)
    assert dict(keeping_pairs(kept, 0))["outputs"] == text
    assert keeping_row(kept)["outputs_waiting"] == waiting


@pytest.mark.parametrize("waiting", [None, 0, 7])
def test_what_is_not_known_stays_unknown_on_the_way(waiting):
    kept = KeepingView(outputs_waiting=waiting)
    row = StatusRow(kind="replica", id="r1", keeping=kept)
    assert PEER_STATUS.read_answer([encode(row)]) == row
