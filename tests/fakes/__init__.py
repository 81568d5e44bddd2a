"""Stand-ins for what is outside, which can be told to fail."""

from __future__ import annotations
