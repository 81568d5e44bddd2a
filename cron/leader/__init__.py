"""What only the leader does: plan, settle, launch, record."""

from __future__ import annotations
