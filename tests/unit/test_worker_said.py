"""What a worker writes for people begins with the command that they started."""

from __future__ import annotations

import pytest

from launcher.targets.app import KIND_VARIABLE
from launcher.worker.options import say


@pytest.mark.parametrize(
    ("kind", "said"),
    [("", "raftcron worker: stops\n"), ("http", "raftcron target http: stops\n")],
)
def test_a_line_names_the_command(
    kind: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(KIND_VARIABLE, kind)
    say("stops")
    assert capsys.readouterr().err == said
