"""What only the leader does: plan, append, dispatch, settle, record."""

from __future__ import annotations
