"""The process on each worker host: ledger, spawner, leases, stream."""

from __future__ import annotations
