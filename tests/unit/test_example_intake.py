"""examples/intake: messages of a queue of SQS become tasks, which run."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator

import boto3
import pytest

import launcher.worker.facade as raftcron
from launcher.client.cell import Cell, Place
from launcher.client.core import Core, Settings
from launcher.client.intake import Intake, find_queue
from launcher.worker import testing
from tests.fakes.s3_server import S3Server, s3_server
from tests.style.tree import ROOT

FILE = "examples/intake/orders.py"


@pytest.fixture
def server() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


def test_orders_are_placed(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "raftcron", raftcron)
    monkeypatch.syspath_prepend((ROOT / FILE).parent)
    importlib.import_module("orders")
    sqs = boto3.session.Session().client(
        "sqs", endpoint_url=server.endpoint, region_name="us-east-1"
    )
    url = sqs.create_queue(QueueName="orders")["QueueUrl"]
    for body in ('{"number": 7, "cents": 4200}', '{"number": 8, "cents": 0}', '{"number": "9"}'):
        sqs.send_message(QueueUrl=url, MessageBody=body)
    place = find_queue(f"sqs://127.0.0.1:{server.port}/{url.split('/', 3)[3]}")
    with testing.cell() as cell:
        core = Core(Cell(Place(["127.0.0.1:1"], None, "")), Settings())
        assert Intake(place, core, "order.place", {}).turn() == (3, 0, 0)
        core.close()
        ends = sorted((task.state, task.result or task.reason) for task in cell.tasks.values())
    sqs.close()
    del sys.modules["orders"]
    assert [state for state, _ in ends] == ["failed", "failed", "succeeded"]
    assert "costs something" in str(ends[0][1])
    assert "`int`, got `str`" in str(ends[1][1])
    assert ends[2][1] == "placed order 7"
