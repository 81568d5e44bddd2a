"""bench: how it speaks to Redis, what it reads of PostgreSQL, and how a cell gets its tasks."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec
import pytest

from bench.pump import cell, postgres, redis
from bench.pump.fairness import Served, Wait
from bench.pump.resp import Connection, RedisError, Replies, encode
from bench.pump.run import Absent
from bench.pump.workload import WORKERS, Workload
from cron.api.views import LaunchView
from cron.limits import HISTORY_ROWS_MAX

# ---- Redis's protocol


def test_a_command_is_an_array_of_its_words() -> None:
    assert encode("SET", b"k\r\n", 12) == b"*3\r\n$3\r\nSET\r\n$3\r\nk\r\n\r\n$2\r\n12\r\n"


REPLIES: Final[tuple[tuple[bytes, object], ...]] = (
    (b"+OK\r\n", "OK"),
    (b":-7\r\n", -7),
    (b"$5\r\na\r\nbc\r\n", b"a\r\nbc"),
    (b"$0\r\n\r\n", b""),
    (b"$-1\r\n", None),
    (b"*-1\r\n", None),
    (b"*0\r\n", []),
    (b"*2\r\n:1\r\n*1\r\n$1\r\nx\r\n", [1, [b"x"]]),
)


@pytest.mark.parametrize(("content", "reply"), REPLIES)
def test_every_kind_of_reply_is_read_whole_or_byte_by_byte(content: bytes, reply: object) -> None:
    assert Replies().feed(content) == [reply]
    slowly = Replies()
    found = [one for byte in content for one in slowly.feed(bytes([byte]))]
    assert found == [reply]


def test_replies_that_come_together_are_told_apart() -> None:
    replies = Replies()
    assert replies.feed(b":1\r\n:2\r\n$3\r\na") == [1, 2]
    assert replies.feed(b"bc\r\n") == [b"abc"]


def test_an_error_of_redis_is_raised() -> None:
    with pytest.raises(RedisError, match="NOSCRIPT"):
        Replies().feed(b"-NOSCRIPT No matching script\r\n")


def test_what_is_no_reply_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot begin"):
        Replies().feed(b"HTTP/1.1 200 OK\r\n")


# ---- a fake of Redis that knows the two scripts

Answer = Callable[[list[bytes]], bytes]


@contextmanager
def fake(answer: Answer, connections: int = 1) -> Iterator[int]:
    """A server that answers each command of so many clients; its port."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        threads = []

        def serve(client: socket.socket) -> None:
            words = Replies()
            with client:
                while received := client.recv(1 << 16):
                    for command in words.feed(received):  # a command looks like a reply
                        assert isinstance(command, list)
                        client.sendall(answer([w for w in command if isinstance(w, bytes)]))

        def accept() -> None:
            for _ in range(connections):
                thread = threading.Thread(target=serve, args=(server.accept()[0],))
                thread.start()
                threads.append(thread)

        accepting = threading.Thread(target=accept)
        accepting.start()
        yield server.getsockname()[1]
        accepting.join()
        for thread in threads:
            thread.join()


def bulks(words: list[bytes]) -> bytes:
    return encode(*words)


def test_a_connection_asks_and_is_told_when_the_server_is_gone() -> None:
    with fake(lambda words: b"+PONG\r\n" if words == [b"PING"] else b"-ERR\r\n") as port:
        connection = Connection("127.0.0.1", port)
        assert connection.ask("PING") == "PONG"
        with pytest.raises(RedisError):
            connection.ask("QUIT")
        connection.close()
    ours, theirs = socket.socketpair()
    theirs.close()
    connection.socket = ours
    with ours, pytest.raises(ConnectionError, match="closed"):
        connection.receive()


def test_all_tasks_are_put_in_some_thousand_at_once() -> None:
    asked: list[list[bytes]] = []

    def answer(words: list[bytes]) -> bytes:
        asked.append(words)
        return b"$3\r\nsha\r\n" if words[0] == b"SCRIPT" else b"$-1\r\n"

    with fake(answer) as port:
        connection = Connection("127.0.0.1", port)
        redis.fill(connection, {(0, 7): 2_500, (1, 7): 0, (2, 8): 1})
        connection.close()
    assert [words[3:] for words in asked[1:]] == [
        [b"0", b"7", b"0", b"999"],
        [b"0", b"7", b"1000", b"1999"],
        [b"0", b"7", b"2000", b"2499"],
        [b"2", b"8", b"0", b"0"],
    ]


def test_workers_complete_what_they_took_until_nothing_is_left() -> None:
    left = [b"0:%d:%d" % (n % 3, n) for n in range(10)]
    done: list[bytes] = []

    def answer(words: list[bytes]) -> bytes:
        wanted = int(words[3])
        done.extend(words[5:])
        got, left[:] = left[:wanted], left[wanted:]
        return bulks(got)

    served: list[Served] = []
    with fake(answer) as port:
        worker = redis.Worker(port, "sha", 4, served)
        assert redis.drain([worker], 60.0) > 0
        worker.connection.close()
    assert [row.tenant for row in served] == [n % 3 for n in range(10)]
    assert len(done) == 10
    assert [row.at_s for row in served] == sorted(row.at_s for row in served)


def test_when_the_time_is_over_what_was_taken_is_completed_and_no_more_is_taken() -> None:
    wanted: list[tuple[int, int]] = []

    def answer(words: list[bytes]) -> bytes:
        wanted.append((int(words[3]), len(words[5:])))
        return bulks([b"0:1:1"] * int(words[3]))

    served: list[Served] = []
    with fake(answer, connections=2) as port:
        workers = [redis.Worker(port, "sha", 2, served) for _ in range(2)]
        redis.drain(workers, 0.0)
        for worker in workers:
            worker.connection.close()
    assert sorted(wanted) == [(0, 2), (0, 2), (2, 0), (2, 0)]
    assert len(served) == 4


def test_an_answer_that_is_no_list_of_tasks_is_refused() -> None:
    with pytest.raises(RedisError, match="no list"):
        redis.names_in(None)
    with pytest.raises(RedisError, match="no text"):
        redis.str_of(1)


def test_redis_keeps_nothing_but_its_append_only_file() -> None:
    argv = redis.command_line(Path("/x"), 7, "always")
    assert argv[argv.index("--appendfsync") + 1] == "always"
    assert argv[argv.index("--save") + 1] == ""


# ---- PostgreSQL

PGBENCH: Final = """\
pgbench (15.18 (Debian 15.18-0+deb12u1))
transaction type: take.sql
scaling factor: 1
query mode: prepared
number of clients: 32
number of threads: 2
maximum number of tries: 1
duration: 4 s
number of transactions actually processed: 19663
number of failed transactions: 0 (0.000%)
latency average = 6.425 ms
initial connection time = 32.815 ms
tps = 4980.273194 (without initial connection time)
"""


def test_what_pgbench_says_is_read() -> None:
    assert postgres.parse_pgbench(PGBENCH) == postgres.Told(19_663, 0, 6.425, 4_980.273194)


def test_a_pgbench_that_says_less_is_not_believed() -> None:
    with pytest.raises(ValueError, match="per_second"):
        postgres.parse_pgbench(PGBENCH.replace("tps = 4980.273194", "tps = nan"))


def test_rows_of_psql_are_read_in_their_order() -> None:
    text = "0|7|0.000000\n2|0|3.989906\n"
    assert postgres.parse_served(text) == [Served(0, 7, 0.0), Served(2, 0, 3.989906)]


def test_the_tables_are_filled_in_the_order_of_the_backlog() -> None:
    script = postgres.fill_script("fair", {(0, 0): 3, (1, 0): 2, (0, 1): 1})
    series = [line.split("FROM ")[1] for line in script.splitlines() if "generate_series" in line]
    assert series == [
        "generate_series(1, 3) AS id;",
        "generate_series(4, 5) AS id;",
        "generate_series(6, 6) AS id;",
    ]
    assert "VALUES (0, 0, 3), (1, 0, 2), (0, 1, 1);" in script
    assert postgres.INDEXES["fair"] in script
    assert postgres.INDEXES["FIFO"] not in script


def test_every_kind_and_batch_has_a_number_of_clients() -> None:
    assert set(postgres.CLIENTS) == {(kind, batch) for kind in postgres.TAKE for batch in (1, 100)}


def test_the_newest_postgresql_is_taken() -> None:
    paths = [Path(f"/usr/lib/postgresql/{version}/bin/initdb") for version in (9, 15, 13)]
    assert max(paths, key=postgres._version) == paths[1]


def test_root_becomes_another_user_and_others_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert postgres.other_user() == (None, [])
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    login, words = postgres.other_user()
    assert login == "postgres"
    assert words[0] == "setpriv"


def test_what_is_not_installed_is_said_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(Absent, match="apt install redis-server"):
        redis.measure({(0, 0): 1}, "always", 1, 1.0)
    with pytest.raises(Absent, match="apt install postgresql"):
        postgres.measure({(0, 0): 1}, "fair", 1, 1.0)


# ---- our cell


def test_a_period_has_its_instant_and_no_other_for_an_hour() -> None:
    for at_s in range(1_800_000_000, 1_800_000_200):
        period_s = cell.period_of(at_s)
        if period_s is not None:
            assert at_s % period_s == 0
            assert cell.PERIOD_S_MIN <= period_s <= cell.PERIOD_S_MAX
    assert cell.period_of(1_800_000_000) == 10_000_000
    assert cell.period_of(2_147_483_647) is None, "a prime"


def test_instants_are_successive_seconds() -> None:
    due = cell.moments(2_147_483_645)
    assert [one.at_s for one in due] == list(range(due[0].at_s, due[0].at_s + cell.INSTANTS))
    assert due[0].at_s > 2_147_483_647, "the prime second is left out"
    assert all(one.at_s % one.period_s == 0 for one in due)


def test_the_cell_has_a_slot_for_each_worker() -> None:
    assert cell.EXECUTORS * cell.SLOTS == WORKERS


def test_every_task_is_a_job_and_no_second_has_more_than_the_history_answers() -> None:
    due = [cell.Moment(100, 10), cell.Moment(101, 101), cell.Moment(102, 51)]
    backlog = {(0, 0): 3, (2, 5): 1}
    assert cell.crontab(backlog, due).splitlines() == [
        *("#: name=t0/p0-0 priority=0", "@every 10s true"),
        *("#: name=t0/p0-1 priority=0", "@every 101s true"),
        *("#: name=t0/p0-2 priority=0", "@every 51s true"),
        *("#: name=t5/p2-0 priority=2", "@every 10s true"),
    ]
    most = sum(-(-count // cell.INSTANTS) for count in Workload().backlog().values())
    assert most < HISTORY_ROWS_MAX


def launch(tenant: int, priority: int, begun_ms: int, **fields: object) -> LaunchView:
    view = LaunchView(
        launch="", job=f"p{priority}-3", tenant=f"t{tenant}", scheduled_s=100, state="succeeded",
        begun_at_ms=begun_ms, started_at_ms=begun_ms + 5, finished_at_ms=begun_ms + 9,
    )  # fmt: skip
    return msgspec.structs.replace(view, **fields)


def test_launches_are_served_in_the_order_in_which_they_were_begun() -> None:
    rows = [
        launch(0, 1, 100_020),
        launch(7, 0, 100_010, begun_index=9),
        launch(8, 0, 100_010, begun_index=8),
        launch(9, 0, 100_000, started_at_ms=0),
    ]
    found = cell.served_of(rows, 100)
    assert [(row.priority, row.tenant) for row in found] == [(0, 8), (0, 7), (1, 0)]
    assert [row.at_s for row in found] == pytest.approx([0.015, 0.015, 0.025])


def test_a_cell_that_got_its_jobs_too_late_is_begun_anew_with_more_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[int] = []

    def measure_after(lead_s: int, backlog: object) -> str:
        tried.append(lead_s)
        if len(tried) < enough:
            raise cell.TooLate
        return "run"

    monkeypatch.setattr(cell, "measure_after", measure_after)
    enough = 2
    cell.measure({})
    assert tried == list(cell.LEADS_S[:2])
    tried.clear()
    enough = 99
    with pytest.raises(TimeoutError):
        cell.measure({})
    assert tried == list(cell.LEADS_S)


PERIOD = (100, 110_000)


def test_a_run_of_a_cell_is_summed_up() -> None:
    rows = [launch(1, 0, 100_000 + 100 * n) for n in range(4)]
    run = cell.summary(rows, {(0, 1): 4}, PERIOD, 800)
    assert (run.tasks, run.server_us, run.client_us) == (4, 200.0, None)
    assert run.seconds == pytest.approx(0.309)


def test_what_ends_when_the_time_is_over_does_not_count() -> None:
    rows = [
        *(launch(1, 0, 100_000), launch(0, 0, 107_900)),
        launch(1, 0, 110_001),
        launch(1, 0, 0, state="due", started_at_ms=0, finished_at_ms=0, is_open=True),
    ]
    run = cell.summary(rows, {(0, 0): 1, (0, 1): 3}, PERIOD, 800)
    assert (run.tasks, run.server_us) == (2, 400.0)
    assert run.seconds == pytest.approx(7.909)
    assert run.fairness.longest_wait.is_open


def test_shares_are_counted_once_all_tasks_wait() -> None:
    late = cell.SETTLED_S
    early = [Served(0, 1, 0.5), Served(0, 1, 0.6), Served(0, 0, 0.7)]
    then = [Served(0, 0, late + 1.0), Served(0, 1, late + 2.0), Served(0, 0, late + 3.0)]
    found = cell.settled([*early, *then], {(0, 0): 3, (0, 1): 3}, late + 3.0)
    assert found.longest_wait == Wait(2.0, 1)
    found = cell.settled(early, {(0, 0): 3, (0, 1): 3}, 0.7)
    assert (found.windows, found.longest_wait) == (0, Wait())


def test_a_launch_that_is_not_there_or_failed_spoils_the_run() -> None:
    rows = [launch(1, 0, 100_000), launch(1, 0, 100_000, state="skipped")]
    with pytest.raises(RuntimeError, match="1 of 2 succeeded, 0 are open"):
        cell.summary(rows, {(0, 1): 2}, PERIOD, 800)
    with pytest.raises(RuntimeError, match="1 of 2"):
        cell.summary(rows[:1], {(0, 1): 2}, PERIOD, 800)
    with pytest.raises(RuntimeError, match="no launch ended in 10 s"):
        cell.summary([launch(1, 0, 0, state="due", is_open=True)], {(0, 1): 1}, PERIOD, 800)


def test_a_journal_that_grows_no_more_is_quiet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cell, "QUIET_S", 0.05)
    monkeypatch.setattr(cell, "POLL_S", 0.01)
    (tmp_path / "1.log").write_bytes(b"x")
    cell._until_quiet(tmp_path, 0)
    grown = iter(range(10_000))
    monkeypatch.setattr(cell, "RUN_S_MAX", 1.0)
    monkeypatch.setattr(cell, "journal_bytes", lambda folder: next(grown) * 10_000)
    cell._until_quiet(tmp_path, 0)
    assert next(grown) > 2, "it was looked at until the time was over"
