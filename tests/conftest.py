"""What holds of all tests: drawn examples are the same in each run, however slow the machine is."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# Each run says the same. What nobody has seen is looked for by
# `pytest -m hypothesis --hypothesis-profile=explore tests/unit tests/model`.
settings.register_profile("explore", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile(
    "steady", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("steady")
