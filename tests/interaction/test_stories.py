"""The stories of the design, told as scripts with recorded output."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.interaction import datadriven
from tests.interaction.cell import Cell

STORIES = sorted((Path(__file__).parent / "stories").glob("*.txt"))


@pytest.mark.parametrize("path", STORIES, ids=[path.stem for path in STORIES])
def test_story(path: Path, rewrite: bool) -> None:
    datadriven.run(path, Cell().play, rewrite=rewrite)


def test_there_are_stories() -> None:
    assert len(STORIES) >= 6


def test_a_story_with_another_end_fails(tmp_path: Path) -> None:
    script = tmp_path / "wrong.txt"
    script.write_text("leader r1\n----\n1: something else\n", encoding="utf-8")
    with pytest.raises(AssertionError, match=r"wrong\.txt"):
        datadriven.run(script, Cell().play, rewrite=False)
    datadriven.run(script, Cell().play, rewrite=True)
    assert script.read_text(encoding="utf-8") == "leader r1\n----\n1: claim accepted\n"
    datadriven.run(script, Cell().play, rewrite=False)
