"""The simulation sees launches for which room is put by."""

from __future__ import annotations

import pytest

from launcher.placement.earmark import Earmarks, Wanted
from tests.simulation.test_simulation import expect_sound
from tests.simulation.world import simulate


@pytest.mark.nightly
def test_room_is_kept_in_some_runs_and_launches_take_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test of the simulation: it would not see what marks do wrong if there were none."""
    taken: list[Wanted] = []
    take = Earmarks.take

    def watched(self: Earmarks, wanted: Wanted) -> tuple[int, ...]:
        numbers = take(self, wanted)
        if numbers:
            taken.append(wanted)
        return numbers

    monkeypatch.setattr(Earmarks, "take", watched)
    for seed in range(2, 82, 4):
        if len({wanted.parts > 1 for wanted in taken}) < 2:
            expect_sound(simulate(seed))
    assert {wanted.parts > 1 for wanted in taken} == {True, False}
