"""The soak itself: it passes what is right, and fails and keeps what is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.engine_processes import FaultCell, Load
from tests.conformance.cells import leader_of
from tests.soak.engine import run, turns
from tests.soak.strikes import STRIKES, Strike

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(120)]


class Forge(Strike):
    """Somebody appends who has no receipts."""

    kind = "forge"

    async def strike(self, cell: FaultCell, load: Load) -> str:
        await cell.append(await leader_of(cell), b"from nobody")
        return "forged"


class Impossible(Strike):
    kind = "impossible"

    @classmethod
    def why_not(cls, directory: Path) -> str:
        return "no such thing here"


def test_two_rounds_pass_and_leave_nothing_behind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(STRIKES, Impossible.kind, Impossible)
    assert run(["kill", "impossible"], 2, 7, tmp_path) == 0
    said = capsys.readouterr().out
    assert "skipped: impossible: no such thing here" in said
    assert "| kill | 2 |" in said
    assert list(tmp_path.iterdir()) == []


def test_a_round_that_finds_something_fails_the_soak_and_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(STRIKES, Forge.kind, Forge)
    assert run(["forge"], 3, 7, tmp_path) == 1
    said = capsys.readouterr().out
    assert "1 sent by nobody or refused: ['from nobody']" in said
    assert f"failed, kept: {tmp_path / '000-forge'}" in said
    assert (tmp_path / "000-forge" / "cell" / "receipts").exists()


def test_a_soak_that_can_do_nothing_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(STRIKES, Impossible.kind, Impossible)
    assert run(["impossible"], 3, 7, tmp_path) == 2


def test_every_kind_has_its_turns() -> None:
    assert list(turns(["a", "b", "c"], 7)) == [(0, "a", 3), (1, "b", 3), (2, "c", 1)]
    counts = {kind: 0 for kind in "ab"}
    for _, kind, count in turns(["a", "b"], 100):
        counts[kind] += count
    assert sum(counts.values()) == 100
    assert min(counts.values()) >= 40
