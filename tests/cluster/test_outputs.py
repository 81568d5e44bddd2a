"""What launches wrote outlives the executor that ran them, and the leader that stored it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from cron.api import table
from cron.api.launches import LaunchView
from snapshots.directory import DirectoryStore
from snapshots.layout import output_object, outputs_prefix
from snapshots.store import ObjectStore
from tests.cluster.harness import SHORT_TIMES, Cell, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

CRONTAB = "".join(
    f"#: name=tells-{n}\n@every 1s echo I am $RAFTCRON_LAUNCH\n" for n in range(4)
) + ("#: name=floods overlap=forbid\n@every 2s head -c 3000000 /dev/zero | tr '\\0' x\n")


class OutputStory:
    """A cell with a store, whose launches write something; segments of three seconds."""

    def __init__(
        self, make_cell: Callable[..., Cell], folder: Path, store: ObjectStore | None = None
    ) -> None:
        self.store = store or DirectoryStore(folder / "store")
        extra = (
            f'{SHORT_TIMES}\n[object_storage]\nurl = "{self.store.url}"\n'
            "[snapshots]\ninterval_s = 1\n[history]\nsegment_rows = 30\nsegment_age_s = 3\n"
        )
        self.cell = make_cell(replica_extra=extra)
        self.once = folder / "once"

    def begin(self) -> Cell:
        self.cell.start()
        self.cell.wait_connected()
        self.cell.apply(CRONTAB)
        return self.cell

    def ended(self) -> list[LaunchView]:
        """The launches that are over; each of them has written something."""
        return [one for one in self.cell.history() if not one.is_open and one.attempt]

    def missing(self, views: list[LaunchView]) -> list[str]:
        """The launches whose output is not in the store."""
        stored = {entry.name for entry in self.store.list(outputs_prefix("default"))}
        return [
            one.launch
            for one in views
            if output_object("default", one.ended_at_ms, one.launch, one.attempt) not in stored
        ]

    def waiting(self) -> int | None:
        """How many outputs are to be stored, as the leader says."""
        rows = [row.keeping for row in self.cell.status() if row.role == "leader"]
        return rows[0].outputs_waiting if len(rows) == 1 and rows[0] is not None else None


@pytest.fixture
def told(make_cell: Callable[..., Cell], tmp_path: Path) -> OutputStory:
    """A cell that is not started."""
    return OutputStory(make_cell, tmp_path)


def test_output_is_shown_when_its_executor_is_gone_for_good(told: OutputStory) -> None:
    cell = told.begin()
    cell.wait_launches(12)
    cell.apply("", "--prune", "--yes", "--source", "crontab")
    wait_until(lambda: not any(one.is_open for one in cell.history()), what="all ends")
    ended = told.ended()
    assert {one.state for one in ended} == {"succeeded"}
    assert all(one.output_bytes for one in ended)
    wait_until(lambda: not told.missing(ended), what="all outputs in the store")
    wait_until(lambda: told.waiting() == 0, what="none that waits")
    newest, *_, oldest = [one for one in ended if "tells" in one.launch]
    flood = next(one for one in ended if "floods" in one.launch)
    assert cell.cli("logs", newest.launch).stderr == ""

    cell.kill("executor-1")
    shutil.rmtree(cell.folder / "executor-1")
    for view in [newest, oldest, flood]:
        said = cell.cli("logs", view.launch)
        assert f"raftcron: from {told.store.url}: executor executor-1" in said.stderr
        if view is flood:
            assert len(said.stdout) == view.output_bytes
            assert set(said.stdout) == {"x"}
            assert f"{3_000_000 - view.output_bytes} bytes over" in said.stderr
        else:
            assert said.stdout == f"I am {view.launch}\n"
    shown = cell.cli("show", newest.launch).stdout
    assert "output, the last" in shown

    cell.start("executor-1")
    cell.wait_connected()
    said = cell.cli("logs", oldest.launch)
    assert said.stdout == f"I am {oldest.launch}\n"
    assert "does not have the output any more" in said.stderr


def test_a_leader_killed_between_the_store_and_the_log_loses_no_output(told: OutputStory) -> None:
    cell = told.cell
    for name in cell.replicas:
        cell.failpoints[name] = f"output-stored=kill@7+file:{told.once}"
    told.begin()
    wait_until(lambda: any(map(cell.is_down, cell.replicas)), what="a death")
    (dead,) = [name for name in cell.replicas if cell.is_down(name)]
    cell.leader(but=dead)
    cell.wait_connected()
    cell.wait_launches(20)
    cell.start(dead)
    cell.restart(cell.leader())
    cell.leader()
    cell.wait_connected()
    cell.wait_launches(30)
    ended = told.ended()
    wait_until(lambda: not told.missing(ended), what="all outputs in the store")
    assert [one.message for one in cell.client.ask(table.AUDIT).violations] == []
    assert not any("Traceback" in cell.log(name) for name in cell.replicas)
