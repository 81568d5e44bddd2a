"""A replica whose history is gone gets it back from the others, however often it is killed on the
way."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cron.api import table
from cron.api.client import Client
from cron.api.launches import HistoryQuery
from cron.api.snapshots import KeepingView
from cron.errors import Unavailable
from tests.cluster.harness import SHORT_TIMES, Cell, wait_until

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(180)]

CRONTAB = "".join(f"#: name=tick-{n}\n@every 1s true\n" for n in range(6))
FEW = SHORT_TIMES.replace("[limits]\n", "[limits]\nsnapshot_entries = 60\n")
"""The log is short, so that a segment does not come again from the log alone."""
EXTRA = f"{FEW}\n[history]\nsegment_rows = 12\nsegment_age_s = 2\n"
SEGMENTS = 12
LIVES = 3


def kept(cell: Cell, name: str) -> KeepingView:
    """What a replica says that it keeps."""

    def found() -> KeepingView | None:
        return next((row.keeping for row in cell.status() if row.id == name), None)

    view = wait_until(found, 60, f"{name} to answer")
    assert isinstance(view, KeepingView)
    return view


def shown_by(cell: Cell, name: str) -> set[str]:
    """The launches that succeeded, from the history of one replica alone; none while it finds a
    segment damaged, which it gets anew."""
    server = cell.ports.servers[int(name[1:]) - 1]
    query = HistoryQuery(limit=10_000, is_all=True, states=["succeeded"])
    with Client([server], 20_000, on_behind=lambda _: None) as client:
        try:
            return {row.launch for row in client.ask(table.HISTORY, query)}
        except Unavailable:
            return set()


def spoil(folder: Path) -> None:
    """Delete most segments of a replica, and cut the others."""
    for number, path in enumerate(sorted(folder.rglob("*.seg"))):
        if number % 3:
            path.unlink()
        else:
            path.write_bytes(path.read_bytes()[:-7])


def test_a_rebuild_of_history_that_is_killed_again_and_again_is_whole_in_the_end(
    make_cell: Callable[..., Cell],
) -> None:
    cell = make_cell(replica_extra=EXTRA)
    cell.start()
    cell.wait_connected()
    cell.apply(CRONTAB)
    name = cell.follower()
    wait_until(lambda: kept(cell, name).segments >= SEGMENTS, 90, "segments")
    cell.kill(name)
    folder = cell.members[name].config.with_name(name)
    cell.failpoints[name] = "segment-fetched=kill@2"
    for _ in range(LIVES):
        spoil(folder)
        cell.start(name)
        cell.wait_down(name, 60)
        assert "Traceback" not in cell.log(name)
    del cell.failpoints[name]
    cell.start(name)
    wait_until(lambda: not kept(cell, name).segments_missing, 90, "the whole history")
    cell.terminate("executor-1")  # from now on nothing ends
    cell.wait_down("executor-1")
    others = {row.launch for row in cell.history(states=["succeeded"])}
    wait_until(lambda: shown_by(cell, name) == others, 60, "each row of what others have")
    mine = shown_by(cell, name)
    assert len(mine) > SEGMENTS * 6
    assert mine == others
    assert cell.client.ask(table.AUDIT).violations == []
