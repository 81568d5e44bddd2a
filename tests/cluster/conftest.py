"""Fixtures of the tests with real processes."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.executor_host import ExecutorHost, FakeLeader
from tests.cluster.harness import Cell
from tests.cluster.smokes import SMOKES

# Children are started while the client's threads run; gRPC must not act on that.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this folder is marked `cluster`, and `nightly` unless it is one of the smokes.
    It may take long on a busy machine."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker("cluster")
            if f"{item.path.name}::{item.name}" not in SMOKES.values():
                item.add_marker("nightly")
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(180))


@pytest.fixture
def cell(tmp_path: Path) -> Iterator[Cell]:
    """Three replicas and an executor with short times, started; a leader is not awaited."""
    with Cell(tmp_path) as one:
        yield one.start()


@pytest.fixture
def make_cell(tmp_path: Path) -> Iterator[Callable[..., Cell]]:
    """A function that makes cells, not started; they end with the test."""
    cells: list[Cell] = []

    def make(**options: Any) -> Cell:
        cells.append(Cell(tmp_path / f"cell-{len(cells)}", **options))
        return cells[-1]

    yield make
    for one in cells:
        one.close()


@pytest.fixture
async def leader() -> AsyncIterator[FakeLeader]:
    """A leader that speaks pool.proto and does what a test tells it."""
    async with FakeLeader() as leader:
        yield leader


@pytest.fixture
def host(tmp_path: Path, leader: FakeLeader) -> Iterator[ExecutorHost]:
    """An executor process of that leader, not started; it ends with the test."""
    host = ExecutorHost(tmp_path, [leader.address])
    yield host
    host.close()
