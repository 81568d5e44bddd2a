"""relay and intake: what the commands show."""

from __future__ import annotations

import pytest

from cron.cli.carrying import without_password


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://shop@db/orders", "postgresql://shop@db/orders"),
        ("postgresql://shop:s3cret@db:5432/orders", "postgresql://shop:...@db:5432/orders"),
        ("postgresql://shop:s3cret:more@db/orders", "postgresql://shop:...@db/orders"),
        ("postgresql://shop:s3/cr@et@db/orders", "postgresql://shop:...@db/orders"),
        ("postgresql://db/orders?user=shop&password=s3cret", "postgresql://db/orders"),
        ("postgresql:///orders?host=/run", "postgresql:///orders"),
        ("sqlite:shop.db", "sqlite:shop.db"),
    ],
)
def test_a_relay_is_named_without_its_password(url: str, shown: str) -> None:
    assert without_password(url) == shown
