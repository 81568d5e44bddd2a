"""Messages and connections between replicas; only `net.py` and its implementation use sockets."""

from __future__ import annotations
