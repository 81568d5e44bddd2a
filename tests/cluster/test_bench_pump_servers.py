"""bench: the real PostgreSQL and Redis do what the bench says of them; skipped where absent."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import pytest

from bench.pump import postgres, redis
from bench.pump.run import Absent, Run
from bench.pump.workload import Backlog, Workload

BACKLOG = Workload(tasks=120, tenants=4).backlog()
"""20 tasks of each priority are the huge tenant's; each of the others has 6 or 7."""
LONG_S = 20.0


def has_postgres() -> bool:
    try:
        postgres.programs()
    except Absent:
        return False
    return True


needs_postgres = pytest.mark.skipif(not has_postgres(), reason="postgresql is not installed")
needs_redis = pytest.mark.skipif(
    shutil.which("redis-server") is None, reason="redis-server is not installed"
)


def turns(measure: Callable[[], Run], monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Priority and tenant of all tasks in the order in which the bench saw them served."""
    seen: list[tuple[int, int]] = []
    for module in (postgres, redis):
        real = module.summarize

        def noted(served, backlog, end_s, real=real):  # type: ignore[no-untyped-def]
            seen.extend((row.priority, row.tenant) for row in served)
            return real(served, backlog, end_s)

        monkeypatch.setattr(module, "summarize", noted)
    run = measure()
    assert run.tasks == len(seen)
    assert run.seconds > 0
    return seen


def one_client(monkeypatch: pytest.MonkeyPatch) -> None:
    for case in postgres.CLIENTS:
        monkeypatch.setitem(postgres.CLIENTS, case, 1)


def by_age(backlog: Backlog) -> list[tuple[int, int]]:
    """First in, first out within a priority."""
    return [
        key for wanted in range(3) for key, n in backlog.items() for _ in range(n)
        if key[0] == wanted
    ]  # fmt: skip


@needs_postgres
@pytest.mark.parametrize("batch", [1, 100])
def test_postgresql_first_in_first_out(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    one_client(monkeypatch)
    seen = turns(lambda: postgres.measure(BACKLOG, "FIFO", batch, LONG_S), monkeypatch)
    if batch == 1:
        assert seen == by_age(BACKLOG)
    assert sorted(seen) == sorted(by_age(BACKLOG))


@needs_postgres
def test_postgresql_fair_takes_tenants_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    one_client(monkeypatch)
    seen = turns(lambda: postgres.measure(BACKLOG, "fair", 1, LONG_S), monkeypatch)
    assert [priority for priority, _ in seen] == sorted(priority for priority, _ in seen)
    for at in range(0, 24, 4):
        assert {tenant for _, tenant in seen[at : at + 4]} == {0, 1, 2, 3}
    assert sorted(seen) == sorted(by_age(BACKLOG))


@needs_postgres
def test_postgresql_fair_in_batches_takes_all(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = turns(lambda: postgres.measure(BACKLOG, "fair", 100, LONG_S), monkeypatch)
    assert sorted(seen) == sorted(by_age(BACKLOG))


@needs_postgres
def test_many_clients_take_no_task_twice_and_leave_none(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = turns(lambda: postgres.measure(BACKLOG, "FIFO", 1, LONG_S), monkeypatch)
    assert sorted(seen) == sorted(by_age(BACKLOG))


@needs_redis
@pytest.mark.parametrize("fsync", redis.FSYNCS)
def test_redis_takes_tenants_in_turns(fsync: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis, "WORKERS", 1)
    seen = turns(lambda: redis.measure(BACKLOG, fsync, 1, LONG_S), monkeypatch)
    assert [priority for priority, _ in seen] == sorted(priority for priority, _ in seen)
    for at in range(0, 24, 4):
        assert {tenant for _, tenant in seen[at : at + 4]} == {0, 1, 2, 3}
    assert sorted(seen) == sorted(by_age(BACKLOG))


@needs_redis
@pytest.mark.parametrize("batch", [1, 100])
def test_many_workers_take_no_task_twice(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = turns(lambda: redis.measure(BACKLOG, "always", batch, LONG_S), monkeypatch)
    assert sorted(seen) == sorted(by_age(BACKLOG))
