"""The ground that simulations stand on: time that jumps, tasks in order, pipes that are late."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Coroutine
from typing import Any

import pytest

from tests.simulation.loop import START_S, SimLoop, Stuck
from tests.simulation.network import Network, Pipe


def run(main: Coroutine[Any, Any, Any]) -> Any:
    """Run on a simulated loop."""
    loop = SimLoop()
    try:
        return loop.run_until_complete(main)
    finally:
        loop.close()


class Slow:
    def delay_s(self) -> float:
        return 5.0


def test_a_day_is_over_at_once() -> None:
    async def main() -> float:
        await asyncio.sleep(86_400)
        return asyncio.get_running_loop().time()

    before = time.monotonic()
    assert run(main()) == pytest.approx(START_S + 86_400)
    assert time.monotonic() - before < 50


def test_who_waits_for_nothing_is_told() -> None:
    async def main() -> None:
        await asyncio.Event().wait()

    with pytest.raises(Stuck):
        run(main())


def test_tasks_in_a_set_come_in_the_order_in_which_they_were_made() -> None:
    async def main() -> list[str]:
        tasks = {asyncio.create_task(asyncio.sleep(0), name=str(n)) for n in range(50)}
        await asyncio.gather(*tasks)
        return [task.get_name() for task in sorted(tasks, key=hash)]

    assert run(main()) == [str(n) for n in range(50)]


def test_what_a_disk_is_given_is_done_at_once_and_answered_later() -> None:
    async def main() -> tuple[list[int], float]:
        done: list[int] = []
        loop = asyncio.get_running_loop()
        answer = loop.run_in_executor(Slow(), done.append, 1)  # type: ignore[arg-type]
        seen = list(done)
        await answer
        return seen, loop.time() - START_S

    seen, took_s = run(main())
    assert seen == [1]
    assert took_s == pytest.approx(5.0)


def test_an_error_in_a_thread_reaches_who_waits() -> None:
    async def main() -> None:
        await asyncio.to_thread(int, "x")

    with pytest.raises(ValueError, match="invalid literal"):
        run(main())


def test_a_pipe_keeps_its_order_when_it_stalls() -> None:
    async def main() -> list[tuple[int, float]]:
        got: list[tuple[int, float]] = []
        loop = asyncio.get_running_loop()
        pipe = Pipe(random.Random(1), lambda item: got.append((item, loop.time() - START_S)))
        pipe.send(1)
        pipe.stall(7.0)
        pipe.send(2)
        pipe.send(3)
        await asyncio.sleep(20)
        return got

    got = run(main())
    assert [item for item, _ in got] == [1, 2, 3]
    assert got[0][1] < 0.1
    assert 7.0 <= got[1][1] <= got[2][1] < 7.1


@pytest.mark.parametrize(("loses_all", "arrived"), [(True, []), (False, [1])])
def test_a_cut_pipe_loses_what_is_sent_and_perhaps_what_is_under_way(
    *, loses_all: bool, arrived: list[int]
) -> None:
    async def main() -> list[int]:
        got: list[int] = []
        pipe = Pipe(random.Random(1), got.append)
        pipe.send(1)
        pipe.cut(loses_all=loses_all)
        pipe.send(2)
        await asyncio.sleep(1)
        return got

    assert run(main()) == arrived


def test_parted_hosts_meet_again_when_every_partition_is_over() -> None:
    async def main() -> list[int]:
        network = Network(random.Random(1))
        network.part("e1", "r1")
        network.part("e1", "r1")
        network.join("e1", "r1")
        between = [network.parted[("e1", "r1")]]
        network.join("e1", "r1")
        return [*between, network.parted[("e1", "r1")]]

    assert run(main()) == [1, 0]
