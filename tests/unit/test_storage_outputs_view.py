"""The uploader of outputs as a replica runs it: what status says, and what it costs the backup."""

from __future__ import annotations

from pathlib import Path

import msgspec

from cron.keeping_config import StorageConfig
from tests.unit.test_storage import kept


async def test_status_says_that_none_wait_only_where_outputs_are_stored(tmp_path: Path) -> None:
    async with kept(tmp_path / "without") as one:
        assert one.view.outputs_waiting is None
    url = (tmp_path / "store").as_uri()
    async with kept(tmp_path / "with", url) as one:
        assert one.view.outputs_waiting == 0
        off = StorageConfig(url, output=False)
        one.storage._config = msgspec.structs.replace(one.storage._config, object_storage=off)
        assert one.view.outputs_waiting is None


async def test_status_of_who_does_not_lead_says_nothing_of_outputs(tmp_path: Path) -> None:
    async with kept(tmp_path, (tmp_path / "store").as_uri()) as one:
        await one.rig.elect("r2")
        assert one.view.outputs_waiting is None


async def test_reading_outputs_needs_a_store(tmp_path: Path) -> None:
    async with kept(tmp_path / "without") as one:
        assert one.saving.outputs is None
    url = (tmp_path / "store").as_uri()
    async with kept(tmp_path / "with", url) as one:
        assert one.saving.outputs is not None
        assert one.saving.outputs.url == url
