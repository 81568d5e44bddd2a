"""One alert of each kind, told by mail, though leaders die between what happened and each mail."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from tests.cluster.harness import Cell, wait_until
from tests.cluster.test_alerts import CHANNEL, LEASES, NEVER, Watched, rule, subjects
from tests.cluster.worker_rig import WITHIN_S

pytestmark = pytest.mark.timeout(600)

UNTOLD: Final = ("before-alert", "after-alert")
"""Where a leader dies that raises an alert, or ends one."""
POINTS: Final = (*UNTOLD, "after-begin")
"""Where leaders die one after the other until the first mail is on its way."""


class Story(NamedTuple):
    """A condition, the job that it is about, and what the mail says."""

    when: str
    jobs: str
    says: str


STORIES: Final = {
    "late": Story(
        "late:15s",
        "#: name=it deadline=10m\n@every 5s true\n",
        "it is more than 15 seconds late",
    ),
    "missed": Story("missed", "#: name=it deadline=10s\n@every 15s true\n", "it missed a launch"),
    "no success": Story(
        "no-success:20s",
        "#: name=it deadline=10m\n@every 5s true\n",
        "it has not succeeded for 20 seconds",
    ),
}
"""Each happens to a job that has no slot, because another launch has the only one."""
BACKUP: Final = Story("backup-failing:2s", "", "backups fail for more than 2 seconds")


class Stage:
    """A cell with one rule, whose leaders die where a test says."""

    def __init__(self, watched: Watched, story: Story) -> None:
        self.watched, self.cell, self.story = watched, watched.cell, story
        self.switches = {name: watched.folder / f"{name}.off" for name in POINTS}
        for file in self.switches.values():
            file.touch()
        armed = ",".join(f"{name}=kill+file:{file}" for name, file in self.switches.items())
        self.cell.failpoints = dict.fromkeys(self.cell.replicas, armed)

    def dies(self, points: tuple[str, ...], then: Callable[[], object]) -> None:
        """Arm points, do something, and start each leader again that died at one of them."""
        for point in points:
            self.switches[point].unlink()
        then()
        for point in points:
            wait_until(self.switches[point].exists, 2 * WITHIN_S, f"a death at {point}")
            self.revive()

    def revive(self) -> None:
        """Start the replica again that died, or is about to."""
        wait_until(lambda: any(map(self.cell.is_down, self.cell.replicas)), WITHIN_S, "a death")
        self.cell.start()

    def kill_leader(self) -> None:
        """Kill the leader, whatever it does, and start it again."""
        self.cell.kill(self.cell.leader(within_s=2 * WITHIN_S))
        self.revive()

    def tell(self, happens: Callable[[], object], ends: Callable[[], object]) -> None:
        """Fire and end the alert while the leader dies at each point; expect one mail of each."""
        server = self.watched.server
        assert server is not None
        server.hurried.clear()
        self.dies(POINTS, happens)
        wait_until(lambda: server.asked, 2 * WITHIN_S, "a mail that is read")
        self.kill_leader()  # while it is being sent
        server.hurried.set()
        self.watched.received(1)
        self.dies(UNTOLD, ends)
        wait_until(lambda: not self.firing(), 2 * WITHIN_S, "the end of the alert")
        self.kill_leader()  # while its end is gathered with others
        mails = self.watched.received(2)
        wait_until(lambda: self.watched.deliveries() == ["succeeded"] * 2, WITHIN_S, "both ends")
        marks = ("", "RESOLVED: ")
        assert subjects(mails) == [f"[raftcron] {mark}{self.story.says}" for mark in marks]

    def firing(self) -> bool:
        """Whether the alert is open, as far as anybody answers."""
        done = self.cell.cli("alerts", "list", "-o", "json", expect=None)
        return done.returncode != 0 or bool(done.stdout.strip())


@pytest.mark.parametrize("kind", STORIES)
def test_what_happens_to_a_job_is_told_once_over_the_deaths_of_six_leaders(
    make_cell: Callable[..., Cell], tmp_path: Path, kind: str
) -> None:
    story, hog = STORIES[kind], tmp_path / "hog.fifo"
    os.mkfifo(hog)
    watched = Watched(make_cell, tmp_path, executor="slots = 1", replica_extra=LEASES)
    stage = Stage(watched, story)

    def happens() -> None:
        watched.apply(CHANNEL + rule("it", story.when, 'jobs = ["it"]'))

    try:
        watched.start("", f"#: name=hog\n{NEVER} cat {hog}\n{story.jobs}")
        watched.cell.cli("trigger", "hog")
        wait_until(
            lambda: watched.cell.history("hog", states=["launched"]), WITHIN_S, "the only slot"
        )
        stage.tell(happens, lambda: hog.write_text(""))
    finally:
        watched.close()


def test_a_backup_that_fails_is_told_once_over_the_deaths_of_six_leaders(
    make_cell: Callable[..., Cell], tmp_path: Path
) -> None:
    store = tmp_path / "store"
    store.write_text("a file where a folder belongs")
    storage = f'\n[object_storage]\nurl = "file://{store}"\n'
    watched = Watched(make_cell, tmp_path, replica_extra=LEASES + storage)
    stage = Stage(watched, BACKUP)

    def ends() -> None:
        store.unlink()
        store.mkdir()

    try:
        watched.start("")
        stage.tell(lambda: watched.apply(CHANNEL + rule("backup", BACKUP.when)), ends)
    finally:
        watched.close()
