"""Redis's protocol (RESP2), as much of it as the bench speaks: commands out, replies in."""

from __future__ import annotations

import socket

Reply = int | str | bytes | list["Reply"] | None


class RedisError(Exception):
    """What Redis answered to a command that it would not do."""


def encode(*words: bytes | str | int) -> bytes:
    """Return a command with its arguments."""
    parts = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    body = b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts)
    return b"*%d\r\n%b" % (len(parts), body)


class Replies:
    """Bytes as they come in, replies as they are whole."""

    def __init__(self) -> None:
        self._received = b""

    def feed(self, received: bytes) -> list[Reply]:
        """Return the replies that are whole now.

        Raises:
            RedisError: one of them is an error.
            ValueError: these bytes are no replies.
        """
        self._received += received
        whole, at = [], 0
        while (found := _read(self._received, at)) is not None:
            reply, at = found
            whole.append(reply)
        self._received = self._received[at:]
        return whole


def _read(content: bytes, at: int) -> tuple[Reply, int] | None:
    """The reply that begins at `at` and where it ends, or None if it is not whole."""
    end = content.find(b"\r\n", at)
    if end < 0:
        return None
    kind, line, at = content[at : at + 1], content[at + 1 : end], end + 2
    if kind == b"+":
        return line.decode(), at
    if kind == b"-":
        raise RedisError(line.decode())
    if kind == b":":
        return int(line), at
    if kind == b"$":
        return _read_bulk(content, at, int(line))
    if kind == b"*":
        return _read_array(content, at, int(line))
    raise ValueError(f"a reply cannot begin with {kind!r}")


def _read_bulk(content: bytes, at: int, size: int) -> tuple[bytes | None, int] | None:
    if size < 0:
        return None, at
    end = at + size
    return (content[at:end], end + 2) if len(content) >= end + 2 else None


def _read_array(content: bytes, at: int, count: int) -> tuple[list[Reply] | None, int] | None:
    if count < 0:
        return None, at
    items: list[Reply] = []
    for _ in range(count):
        if (found := _read(content, at)) is None:
            return None
        items.append(found[0])
        at = found[1]
    return items, at


class Connection:
    """One connection; one command at a time. `ask` waits, `send` and `receive` do not."""

    def __init__(self, host: str, port: int) -> None:
        self.socket = socket.create_connection((host, port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._replies = Replies()

    def send(self, command: bytes) -> None:
        """Send an encoded command."""
        self.socket.sendall(command)

    def receive(self) -> list[Reply]:
        """Return what has come in, which may be no whole reply yet.

        Raises:
            RedisError: an error came in.
            ConnectionError: Redis is gone.
        """
        received = self.socket.recv(1 << 16)
        if not received:
            raise ConnectionError("redis has closed the connection")
        return self._replies.feed(received)

    def ask(self, *words: bytes | str | int) -> Reply:
        """Return the reply to a command. Raises RedisError, ConnectionError."""
        self.send(encode(*words))
        while not (replies := self.receive()):
            pass
        return replies[0]

    def close(self) -> None:
        """End the connection."""
        self.socket.close()
