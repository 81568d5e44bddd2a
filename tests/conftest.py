"""What holds of all tests: how many examples are drawn, and that collections pass over old objects.

Each run says the same, however slow the machine is: `steady` draws the same few examples in each.
`make nightly` draws ten times as many of them (`many`). What nobody has seen is looked for by
`pytest -m hypothesis --hypothesis-profile=explore tests/unit tests/model`.
"""

from __future__ import annotations

import gc
import os

from hypothesis import HealthCheck, settings

from launcher.grpc_settings import EXPERIMENTS

# Before a test imports gRPC: as replicas and executors do.
os.environ.setdefault("GRPC_EXPERIMENTS", EXPERIMENTS)

SLOW = [HealthCheck.too_slow]
settings.register_profile(
    "steady", max_examples=40, deadline=None, derandomize=True, suppress_health_check=SLOW
)
settings.register_profile("many", settings.get_profile("steady"), max_examples=400)
settings.register_profile("explore", max_examples=400, deadline=None, suppress_health_check=SLOW)
settings.load_profile("steady")


def pytest_collection_finish() -> None:
    """What the tests are made of stays: no collection has to look at it."""
    gc.collect()
    gc.freeze()
