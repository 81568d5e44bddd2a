"""Object storage in memory, for tests. It can be unreachable, refuse calls and run a hook."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from snapshots.errors import ObjectDamaged, ObjectMissing, StoreAway, StoreRefused
from snapshots.store import ObjectEntry, Tell, check_name


class MemoryStore:
    """Objects in a dict. If `away` or `refused` is not empty, every call raises that error.

    `hook` is called with the operation and the name before each operation, and may raise. Tests may
    change `objects` directly.
    """

    def __init__(self, url: str = "memory://test") -> None:
        self.url = url
        self.objects: dict[str, bytes] = {}
        self.calls: list[tuple[str, str]] = []
        self.away = ""
        self.refused = ""
        self.conditions = True
        self.now_ms = 0
        self.hook: Callable[[str, str], None] = lambda operation, name: None
        self._modified: dict[str, int] = {}

    def _call(self, operation: str, name: str) -> None:
        self.calls.append((operation, name))
        self.hook(operation, name)
        if self.refused:
            raise StoreRefused(self.url, self.refused)
        if self.away:
            raise StoreAway(self.url, self.away)

    def conditional(self) -> bool:
        """Return whether this store honours conditional writes."""
        self._call("conditional", "")
        return self.conditions

    def put(self, name: str, content: bytes, *, if_absent: bool = False) -> bool:
        """Put an object."""
        self._call("put", check_name(name))
        if if_absent and self.conditions and name in self.objects:
            return False
        self.objects[name] = bytes(content)
        self._modified[name] = self.now_ms
        return True

    def sign_put(self, name: str, size: int, sha256: bytes, valid_s: int) -> None:
        """Return None: only this process can write here."""

    def put_file(
        self, name: str, path: Path, *, if_absent: bool = False, progress: Tell | None = None
    ) -> bool:
        """Put a file."""
        content = path.read_bytes()
        done = self.put(name, content, if_absent=if_absent)
        if progress is not None:
            progress(len(content))
        return done

    def get(self, name: str, bytes_max: int) -> bytes:
        """Return an object."""
        self._call("get", check_name(name))
        content = self.objects.get(name)
        if content is None:
            raise ObjectMissing(self.url, name)
        if len(content) > bytes_max:
            raise ObjectDamaged(self.url, name, f"{len(content)} bytes are more than {bytes_max}")
        return content

    def get_file(self, name: str, path: Path) -> int:
        """Write an object to a file."""
        content = self.get(name, 1 << 62)
        path.write_bytes(content)
        return len(content)

    def head(self, name: str) -> ObjectEntry | None:
        """Return an object's entry."""
        self._call("head", check_name(name))
        content = self.objects.get(name)
        if content is None:
            return None
        return ObjectEntry(name, len(content), self._modified.get(name, 0))

    def list(self, prefix: str) -> Iterator[ObjectEntry]:
        """Yield entries by name."""
        self._call("list", prefix)
        for name in sorted(self.objects):
            if name.startswith(prefix):
                yield ObjectEntry(name, len(self.objects[name]), self._modified.get(name, 0))

    def delete(self, names: Sequence[str]) -> None:
        """Delete objects."""
        for name in names:
            self._call("delete", check_name(name))
            self.objects.pop(name, None)

    def close(self) -> None:
        """Do nothing: nothing is open."""
