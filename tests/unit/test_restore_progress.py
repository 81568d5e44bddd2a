"""cron.storage.restoring: few lines, the last one among them."""

from __future__ import annotations

import pytest

from cron.storage.restoring import reported


class Steps:
    """A clock that goes on by so much at each look."""

    def __init__(self, step_ms: int) -> None:
        self._step_ms = step_ms
        self._now_ms = 5_000_000

    def wall_ms(self) -> int:
        raise NotImplementedError

    def mono_ms(self) -> int:
        self._now_ms += self._step_ms
        return self._now_ms


@pytest.mark.parametrize(
    ("total", "step_ms", "numbers"),
    [
        (10_000, 0, [1, 10_000]),
        (7, 400, [1, 4, 7]),
        (8, 400, [1, 4, 7, 8]),
        (3, 2_000, [1, 2, 3]),
        (1, 0, [1]),
        (0, 0, []),
    ],
)
def test_it_tells_at_most_once_a_second_and_of_the_last_step(
    total: int, step_ms: int, numbers: list[int]
) -> None:
    said: list[str] = []
    items, text = range(total), "copies history: {} segments"
    assert list(reported(items, said.append, text, Steps(step_ms))) == list(items)
    assert said == [f"copies history: {number} of {total} segments" for number in numbers]
