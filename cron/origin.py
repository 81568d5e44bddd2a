"""Where the call comes from that is being answered: how its caller is known, and its address.

`cron.api.admission` says it once for a call, and the leader writes it into the log beside the
changes that the call asks for. It follows the call through its tasks (a context variable), so that
no function in between has to pass it on.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Final

CURRENT: Final[ContextVar[str]] = ContextVar("origin", default="")
"""Such as `certificate, ipv4:10.0.0.7:4711` or `token rc1_0a1b2c3d4e5f, http 10.0.0.7`; "" outside
of any call."""
