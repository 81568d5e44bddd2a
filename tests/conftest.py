"""What holds of all tests: drawn examples are the same in each run, however slow the machine is."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# `make fuzz` and `make soak` look for what nobody has seen; here each run says the same.
settings.register_profile(
    "steady", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("steady")
