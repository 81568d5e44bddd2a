"""apply names a minute in which more jobs of a file are due than the executors have slots for."""

from __future__ import annotations

from typing import Any

import pytest

from launcher.protocol.status import Limiting
from tests.unit.test_service_limiting import warned, world

TAB = "".join(f"#: name=j{number}\n0 0 * * *  true\n" for number in range(300))
# The cell has another job already, which is due every minute.
TEXT = (
    "301 launches, 1 of them of other files, fall due in one minute, 00:00 UTC "
    "(most by `0 0 * * *`); {}; `? 0 * * *` would leave about 6 in each minute of that hour"
)
HINT = "write `?`: the cell chooses a minute for each job once, where the load is lowest"


@pytest.mark.parametrize(
    ("slots", "expected"),
    [
        ((), [(TEXT.format("no executor is connected"), HINT)]),
        ((16, 24), [(TEXT.format("the executors have 40 slots for them"), HINT)]),
        ((150, 150), [(TEXT.format("the executors have 300 slots for them"), HINT)]),
        ((150, 151), []),
    ],
)
async def test_three_hundred_jobs_at_midnight_draw_one_line(
    slots: tuple[int, ...], expected: list[tuple[str, str]]
) -> None:
    made: Any = world(*[Limiting.KERNEL] * len(slots), handlers=Limiting.NONE)
    for session, count in zip(made.seated, slots, strict=True):
        session.greeting.slots = count
    assert await warned(made, TAB) == expected


async def test_jobs_of_handlers_have_the_slots_of_their_workers() -> None:
    made = world(Limiting.KERNEL, handlers=Limiting.WATCHED)
    text = TAB.replace("#: ", "#: handler=mail.send ").replace("  true", "  {}")
    ((message, _),) = await warned(made, text)
    assert "; the executors have 4 slots for them; `? 0 * * *` would" in message
