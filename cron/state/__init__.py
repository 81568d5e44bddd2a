"""What is replicated: commands, codec, State and the machine that alone changes it."""

from __future__ import annotations
