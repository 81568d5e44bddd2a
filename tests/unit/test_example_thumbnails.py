"""examples/thumbnails: a group of pictures, and a page that is made when all of them are over."""

from __future__ import annotations

import importlib
import struct
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import launcher.worker.facade as raftcron
from launcher.client.client import Client
from launcher.worker import testing
from tests.style.tree import ROOT
from tests.unit.service_cell import ServiceCell

FILES = ("examples/thumbnails/pictures.py", "examples/thumbnails/make_thumbnails.py")
MODULES = ("pictures", "make_thumbnails")


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, ModuleType]]:
    """The modules of the example, with a folder of their own."""
    monkeypatch.setenv("THUMBNAILS", str(tmp_path / "thumbnails"))
    monkeypatch.setitem(sys.modules, "raftcron", raftcron)
    monkeypatch.syspath_prepend(ROOT / "examples" / "thumbnails")
    yield {name: importlib.import_module(name) for name in MODULES}
    for name in MODULES:
        del sys.modules[name]


def test_a_thumbnail_is_a_small_picture_with_the_means_of_the_large_one(modules):
    pictures = modules["pictures"]
    large = pictures.draw(3)
    assert testing.run(pictures.make, 3).succeeded
    content = (pictures.FOLDER / "3.png").read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">II", content[16:24]) == (12, 12)
    begin = content.index(b"IDAT") + 4
    pixels = zlib.decompress(content[begin : content.index(b"IEND") - 8])
    assert len(pixels) == 12 * 13
    assert pixels[1] == sum(sum(row[:4]) for row in large[:4]) // 16


def test_the_page_shows_all_thumbnails_or_says_how_many_are_missing(modules):
    pictures = modules["pictures"]
    for number in (0, 1):
        testing.run(pictures.make, number)
    ran = testing.run(pictures.index, 2)
    assert (ran.succeeded, ran.detail) == (True, "2 thumbnails")
    assert (pictures.FOLDER / "index.html").read_text().count("<img") == 2
    ran = testing.run(pictures.index, 5)
    assert ran.outcome is testing.Result.FATAL
    assert "3 of 5 thumbnails are missing" in str(ran.error)


def test_all_thumbnails_are_one_group_which_the_page_follows(modules):
    cell = ServiceCell()
    cell.world.serve("thumbnails.make", "thumbnails.index")
    with Client(cell=cell, timeout=60) as client:
        last = modules["make_thumbnails"].submit(client, "album", 1_500)
        group = client.group_status("album")
        page = client.get(last)
    assert (group.state, group.waiting, group.on_complete) == ("closed", 1_500, last)
    assert (page.after_any, page.payload) == (["default/album"], 1_500)
