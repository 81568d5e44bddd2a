"""The simulation sees launches for which room is put by."""

from __future__ import annotations

import pytest

from cron.scheduler.placement import Placement
from cron.scheduler.places import Wanted
from tests.simulation.test_simulation import expect_sound
from tests.simulation.world import simulate


@pytest.mark.nightly
def test_room_is_kept_in_some_runs_and_launches_take_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test of the simulation: it would not see what reservations do wrong if there were none."""
    taken: list[Wanted] = []
    is_kept = Placement._is_kept

    def watched(self: Placement, wanted: Wanted) -> bool:
        if is_kept(self, wanted):
            taken.append(wanted)
        return is_kept(self, wanted)

    monkeypatch.setattr(Placement, "_is_kept", watched)
    for seed in range(2, 82, 4):
        if len({wanted.parts > 1 for wanted in taken}) < 2:
            expect_sound(simulate(seed))
    assert {wanted.parts > 1 for wanted in taken} == {True, False}
