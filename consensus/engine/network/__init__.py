"""What replicas say to each other: messages, connections, and the one door to sockets."""

from __future__ import annotations
