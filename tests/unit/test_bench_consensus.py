"""bench: workloads, what stands behind the log, failover and the tables."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bench import consensus_table, failover, log_memory
from bench.consensus_client import OursTarget, Refused
from bench.consensus_state import Dictionary, Gaps
from bench.consensus_table import Report
from bench.processes import cpu_us, resident_bytes
from bench.section import write_section
from bench.workloads import (
    KEYS,
    WORKLOADS,
    Measured,
    Workload,
    batches,
    drive,
    percentile,
    summarize,
    together,
)
from consensus.leadership import Position


class Answering(asyncio.Protocol):
    """Answers each entry with its first byte, in pieces of one byte."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.rest = b""

    def data_received(self, received: bytes) -> None:
        self.rest += received
        while len(self.rest) >= 8:
            size = int.from_bytes(self.rest[4:8], "big")
            number, entry = self.rest[:4], self.rest[8 : 8 + size]
            self.rest = self.rest[8 + size :]
            if entry == b"bye":
                self.transport.close()
            for byte in number + entry[:1]:
                self.transport.write(bytes((byte,)))


async def test_our_client_tells_done_from_refused_and_from_gone() -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Answering, "127.0.0.1", 0)
    target = await OursTarget.open(server.sockets[0].getsockname()[1])
    outcomes = await asyncio.gather(
        *(target.put(one) for one in (b"\1", b"\0", b"\1")), return_exceptions=True
    )
    assert [type(one) for one in outcomes] == [type(None), Refused, type(None)]
    with pytest.raises(Refused, match="ended"):
        await target.put(b"bye")
    with pytest.raises(Refused):
        await target.put(b"\1")
    server.close()
    await server.wait_closed()


# ---- workloads


def test_every_key_is_in_one_put_of_a_workload() -> None:
    for workload in WORKLOADS:
        puts = batches(workload)
        assert {len(items) for items in puts} == {workload.items}
        keys = [key for items in puts for key, _ in items]
        assert len(set(keys)) == len(keys) == KEYS
        assert {len(value) for items in puts for _, value in items} == {workload.value_bytes}


class Counting:
    """Acknowledges at the next turn of the loop, and knows how many waited at once."""

    def __init__(self) -> None:
        self.waiting = self.most = self.prepared = 0

    def prepare(self, items: list[tuple[bytes, bytes]]) -> int:
        self.prepared += 1
        return len(items)

    async def put(self, prepared: int) -> None:
        self.waiting += 1
        self.most = max(self.most, self.waiting)
        await asyncio.sleep(0)
        self.waiting -= 1


async def test_as_many_puts_are_under_way_as_the_workload_says() -> None:
    target = Counting()
    measured = await drive(target, Workload("w", 10, 10, 7), 0.02)
    assert target.most == 7
    assert target.prepared == 100
    assert measured.items_per_second == pytest.approx(measured.puts_per_second * 10, rel=0.01)


async def test_a_put_that_fails_ends_the_measurement() -> None:
    class Failing(Counting):
        async def put(self, prepared: int) -> None:
            raise Refused("no")

    with pytest.raises(Refused):
        await drive(Failing(), WORKLOADS[0], 0.01)


def test_figures_of_known_latencies() -> None:
    took = [number / 1000 for number in range(1, 101)]
    told = summarize(took, Workload("w", 1, 1_000, 1), 2.0, 0.5)
    assert told == Measured(50.0, 50_000.0, 50.0, 99.0, 25.0)


def test_a_percentile_is_one_of_the_values() -> None:
    assert percentile([1.0], 99) == 1.0
    assert percentile([1.0, 2.0], 50) == 1.0
    assert percentile([1.0, 2.0], 51) == 2.0
    assert math.isnan(percentile([], 50))


def test_clients_together_add_rates_and_show_the_worst_latency() -> None:
    parts = [Measured(10, 10, 1, 5, 30), Measured(20, 20, 2, 4, 20)]
    assert together(parts) == Measured(30, 30, 2, 5, 30)


# ---- the node


def test_a_dictionary_comes_back_from_pieces_cut_anywhere() -> None:
    state = Dictionary()
    items = [(b"k%d" % number, b"v" * number) for number in range(250)]
    assert state.apply(Position(1, 1), msgspec.msgpack.encode(items)) == 250
    taken = state.take()
    state.apply(Position(1, 2), msgspec.msgpack.encode([(b"later", b"x")]))
    whole = b"".join(taken)
    other = Dictionary()
    other.values = {b"old": b""}
    other.restore(Position(1, 1), [whole[at : at + 999] for at in range(0, len(whole), 999)])
    assert other.values == dict(items)


def test_the_longest_gap_is_told_once() -> None:
    gaps = Gaps()
    gaps._last -= 5
    gaps.note()
    assert 5_000 <= gaps.take() < 6_000
    assert gaps.take() < 1_000


def test_a_process_uses_cpu_and_memory() -> None:
    pid = int(Path("/proc/self").resolve().name)
    assert resident_bytes(pid) > 1_000_000
    assert cpu_us(pid) > 0
    with pytest.raises(FileNotFoundError):
        resident_bytes(2**30)


# ---- failover


async def test_the_first_success_ends_the_wait_whatever_the_others_do() -> None:
    class Later(Counting):
        def __init__(self, fails: int, *, hangs: bool) -> None:
            super().__init__()
            self.fails, self.hangs = fails, hangs

        async def put(self, prepared: int) -> None:
            self.fails -= 1
            if self.hangs:
                await asyncio.Event().wait()
            if self.fails >= 0:
                raise Refused("no leader")

    hanging, leading = Later(0, hangs=True), Later(3, hangs=False)
    await failover.first_success([hanging, leading])  # type: ignore[list-item]
    assert leading.fails == -1
    assert hanging.fails <= -4


def test_failovers_are_told_by_median_p90_and_worst() -> None:
    told = failover.summarize([float(number) for number in range(1, 21)])
    assert told == {"times": 20, "median_ms": 10, "p90_ms": 18, "max_ms": 20}


# ---- tables


def report(**more: Any) -> Report:
    def each(rate: float) -> dict[str, Measured]:
        return {w.name: Measured(rate, rate * w.items, 1.5, 9.5, 40.0, 7.0) for w in WORKLOADS}

    crowded = {w.name: Measured(500, 500, 2, 3, 99) for w in WORKLOADS if w.in_flight == 50}
    rounds = [
        {"inside": each(1_000 * n), "outside": each(100 * n), "etcd": each(200)}
        | ({"etcd_two_clients": crowded} if n == 3 else {})
        for n in (1, 2, 3)
    ]
    physics = [{"fdatasync_100": 2_000, "fdatasync_2048": 1_000, "loops": 5}] * 3
    return Report(etcd="3.4.23", seconds=2.0, rounds=3, physics=physics, rates=rounds, **more)


def test_ratios_are_medians_of_those_within_a_round() -> None:
    found = report(
        failovers_ms={"kill -9": {"ours": [100.0, 200.0, 900.0], "etcd": [400.0, 400.0]}},
        idle={"ours": {"cpu_percent_mean": 0.5}, "etcd": {"cpu_percent_mean": 1.0}},
    ).ratios()
    assert found["one by one, 100 B, client in the leader"] == 10.0
    assert found["one by one, 100 B, client apart"] == 1.0
    assert (found["failover time, kill -9"], found["idle CPU"]) == (0.5, 0.5)


def test_etcd_is_compared_with_its_best_client() -> None:
    rated = report()
    crowded = next(w for w in WORKLOADS if w.in_flight == 50)
    assert consensus_table.best_of_etcd(rated.rates[2], crowded) == 500
    assert rated.ratio("inside", crowded) == 6.0  # of 5, 10 and 3000/500


def test_without_etcd_there_are_rates_and_no_ratios() -> None:
    alone = report()
    alone.etcd = None
    for row in alone.rates:
        row.pop("etcd")
        row.pop("etcd_two_clients", None)
    assert set(alone.ratios().values()) == {None}
    text = consensus_table.section(alone)
    assert "etcd is not installed" in text
    assert (
        "| one by one, 100 B | 2,000 | 1.5 | 9.5 | 200 | 1.5 | 9.5 | - | - | - | - | - | 1 |"
        in text
    )


def test_the_section_has_a_table_of_everything_that_was_measured() -> None:
    text = consensus_table.section(
        report(
            failovers_ms={"silence": {"ours": [1.0] * 20, "etcd": [2.0] * 20}},
            idle={"ours": {"cpu_percent": 0.5, "cpu_percent_mean": 0.4, "rss_mb": 35.6}},
            catching_up=[{"behind": "log", "megabytes": 100, "level_ms": 1234, "elections": 0}],
        )
    )
    assert "| silence, ours | 20 | 1 | 1 | 1 |" in text
    assert "| ours | 0.5 | 0.4 | 35.6 |" in text
    assert "| log | 100 | 1,234 | 0 | - |" in text
    assert "2,000 of 100 B and 1,000 of 2 KB" in text
    for table in text.split("\n\n"):
        if table.startswith("|"):
            assert len({line.count("|") for line in table.splitlines()}) == 1
            assert len(table.splitlines()) > 2


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (0.123456, "0.123"), (12345.6, "12,346"), (7, "7"), (7.0, "7"), (99.94, "99.9")],
)
def test_figures_have_three_digits_or_all(value: float | None, text: str) -> None:
    assert consensus_table.figure(value) == text


def test_a_section_is_replaced_and_the_prose_around_it_stays(tmp_path: Path) -> None:
    path = tmp_path / "README.md"
    path.write_text("before\n<!-- a -->\nold\n<!-- z -->\nafter\n")
    write_section(path, "<!-- a -->", "<!-- z -->", "new")
    assert path.read_text() == "before\n<!-- a -->\n\nnew\n\n<!-- z -->\nafter\n"
    write_section(path, "<!-- a -->", "<!-- z -->", "newer")
    assert path.read_text() == "before\n<!-- a -->\n\nnewer\n\n<!-- z -->\nafter\n"


def test_a_file_without_the_marks_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "README.md"
    path.write_text("before\n<!-- z -->\nafter\n")
    with pytest.raises(ValueError, match="no section"):
        write_section(path, "<!-- a -->", "<!-- z -->", "new")
    assert path.read_text() == "before\n<!-- z -->\nafter\n"


def test_the_readme_has_the_sections_that_are_written() -> None:
    text = consensus_table.README.read_text(encoding="utf-8")
    assert text.count(consensus_table.BEGIN) == text.count(consensus_table.END) == 1


async def test_the_memory_of_a_log_is_measured_in_steps_of_its_journal() -> None:
    row = await log_memory.measure(size=1_000, journal_mb=1.0, steps=2)
    assert row["entry_bytes"] == 1_000
    assert 0.9 < row["journal_mb"] < 1.3
    assert len(row["rss_mb"]) == 3
    assert all(mb > 5 for mb in row["rss_mb"])
