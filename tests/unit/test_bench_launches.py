"""bench.launches: its cells, jobs and handlers, without starting a cell."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import launches, noop_tasks
from bench.launches_cell import Crew, Running, Shape, ask, free_ports, until
from bench.launches_tally import Tally, percentile, summarize
from bench.load import Load
from bench.processes import descendants
from cron.api.client import Client
from cron.config import load_replica_config
from cron.crontab.reader import read_crontab
from cron.dev.files import write_cell
from cron.dev.ports import taken
from cron.errors import Unavailable
from launcher import config
from launcher.worker.app import load
from tests.unit.dev_fakes import launch

HANDLERS = Shape(kind="handler", crews=(Crew(),))


# ---- what is launched


def test_every_handler_of_a_hundred_gets_as_many_jobs() -> None:
    reading = read_crontab(launches.crontab(Load({1: 250}), HANDLERS).encode(), file="f")
    assert not reading.problems
    used = [job.work.handler for job in reading.jobs]
    assert {used.count(name) for name in noop_tasks.HANDLERS} == {2, 3}
    assert reading.jobs[6].work.payload == b'{"n": 7}'


def test_without_handlers_the_jobs_are_commands() -> None:
    assert launches.crontab(Load({1: 1}), Shape()) == "#: name=j1\n@every 1s true 1\n"


def test_the_app_of_the_bench_serves_what_its_jobs_name() -> None:
    registry = load("bench.noop_tasks")
    assert sorted(one.name for one in registry) == sorted(noop_tasks.HANDLERS)
    registry.check()


@pytest.mark.parametrize("kind", ["none", "command", "handler"])
def test_the_options_say_which_cell_is_measured(kind: str) -> None:
    default = launches.shape_of(launches.parser().parse_args(["--kind", kind]))
    assert default.executors == (2 if kind == "handler" else 1)
    said = ["--rate", "7", "--kind", kind, "--executors", "3", "--threads", "5"]
    shape = launches.shape_of(launches.parser().parse_args(said))
    assert (shape.kind, shape.executors) == (kind, 3)
    assert shape.crews == ((Crew(threads=5),) if kind == "handler" else ())
    assert ("none" in shape.executor_text()) == (kind == "none")


# ---- the cell


def test_all_files_of_a_cell_can_be_read(tmp_path: Path) -> None:
    for name, shape in (
        ("plain", Shape()),
        ("kept", Shape(kind="handler", executors=2, buffer=7, snapshots_s=2)),
    ):
        folder = tmp_path / name
        members = write_cell(
            folder,
            free_ports(),
            executors=shape.executors,
            replica_extra=shape.replica_text(folder),
            executor_extra=shape.executor_text(),
        )
        assert len(members) == 3 + shape.executors
        assert bool(load_replica_config(folder / "r1.toml").object_storage.url) == (name == "kept")
        executor = config.load(folder / "executor-1.toml")
        assert (executor.start == "none", executor.worker_buffer == 7) == (
            name == "plain",
            name == "kept",
        )


def test_free_ports_are_free() -> None:
    assert not taken(free_ports())


def test_processes_are_told_apart_by_their_part_in_a_launch() -> None:
    with Client(["127.0.0.1:1"]) as client:
        running = Running(client, Path(), {"r1": 11, "r2": 12, "r3": 13}, [21], [31, 32])
    assert running.pids == [11, 12, 13, 21, 31, 32]
    assert running.groups("r2") == {
        "leader": [12],
        "followers": [11, 13],
        "executors": [21],
        "workers": [31, 32],
    }


def test_what_cannot_be_reached_is_asked_again() -> None:
    answers = iter([Unavailable("nobody"), Unavailable("nobody"), "yes"])

    def question() -> str:
        answer = next(answers)
        if isinstance(answer, Unavailable):
            raise answer
        return answer

    assert ask(question) == "yes"


def test_who_waits_for_what_never_comes_is_told_what(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.launches_cell.START_S", 0.0)
    with pytest.raises(TimeoutError, match="the moon: not there"):
        until(lambda: False, "the moon")
    with pytest.raises(Unavailable):
        ask(_nobody)


def _nobody() -> str:
    raise Unavailable("nobody")


def test_a_process_is_among_its_parents_descendants() -> None:
    import os
    import subprocess

    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as child:
        assert {os.getpid(), child.pid} <= set(descendants([os.getpid()]))
        assert descendants([child.pid]) == [child.pid]


# ---- the sum


def test_a_window_is_added_up_second_by_second() -> None:
    tally = Tally()
    tally.add([launch(n, lateness_ms=n) for n in range(1, 9)])
    tally.add([launch(9, state="failed", lateness_ms=5), launch(10, attempt=2, lateness_ms=1)])
    row = tally.row(due=12, seconds=2)
    assert (row["succeeded"], row["failed"], row["retried"], row["missing"]) == (9, 1, 1, 2)
    assert (row["lateness_max_ms"], row["launches_per_second"]) == (8, 4.5)


def test_a_run_of_skipped_instants_counts_as_many_and_is_neither_missing_nor_failed() -> None:
    row = summarize([launch(1, state="skipped", count=4, lateness_ms=None)], due=4, seconds=1)
    assert (row["skipped"], row["failed"], row["missing"]) == (4, 0, 0)
    assert row["lateness_p95_ms"] is None


def test_work_counts_when_it_was_done_and_not_when_it_was_due() -> None:
    tally = Tally((1_000, 2_000))
    tally.note_work([launch(1, finished_at_ms=at) for at in (999, 1_000, 1_999, 2_000)])
    tally.note_work([launch(1, finished_at_ms=1_500, state="failed")])
    assert tally.done == 2
    assert tally.row(due=0, seconds=1)["succeeded"] == 0


def test_the_last_percentile_is_the_greatest_value() -> None:
    assert percentile([1, 2, 9], 100) == 9
