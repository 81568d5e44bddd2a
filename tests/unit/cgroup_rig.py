"""The kernel's cgroup v2, as far as the executor relies on it: a tree in memory with its rules."""

from __future__ import annotations

import errno
import os

ROOT = "/sys/fs/cgroup"


def refuse(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)


class Node:
    """One group: who is in it, and its files that somebody wrote."""

    def __init__(self, controllers: set[str]) -> None:
        self.controllers = controllers
        self.below: set[str] = set()
        self.pids: set[int] = set()
        self.files: dict[str, str] = {}


class FakeCgroups:
    """Files of a cgroup v2 mounted on ROOT; `me` is the process that writes, `hangs` what KILL does
    not end, `swap` and `kill` whether this kernel has these files."""

    def __init__(self, me: int = 100, controllers: str = "cpu memory pids") -> None:
        self.me = me
        self.nodes = {ROOT: Node(set(controllers.split()))}
        self.hangs: set[int] = set()
        self.killed: list[int] = []
        self.read_only = False
        self.full = False
        self.swap = self.kill = True

    def add(self, path: str, *pids: int) -> None:
        """Make a group as somebody else would, with processes; controllers of those above."""
        above = os.path.dirname(path)
        self.nodes[path] = Node(set(self.nodes[above].below))
        for pid in pids:
            self.move(pid, path)

    def move(self, pid: int, path: str) -> None:
        for node in self.nodes.values():
            node.pids.discard(pid)
        self.nodes[path].pids.add(pid)

    def delegate(self, path: str, *pids: int) -> None:
        """A group with all controllers, as a service manager makes it."""
        self.nodes[os.path.dirname(path)].below = {"cpu", "memory"}
        self.add(path, *pids)

    # ---- Files

    def read(self, path: str) -> str:
        node, name = self._file(path)
        if name == "cgroup.controllers":
            return " ".join(sorted(node.controllers)) + "\n"
        if name == "cgroup.subtree_control":
            return " ".join(sorted(node.below)) + "\n"
        if name == "cgroup.procs":
            return "".join(f"{pid}\n" for pid in sorted(node.pids))
        if name not in node.files:
            raise refuse(errno.ENOENT, path)
        return node.files[name]

    def write(self, path: str, text: str) -> None:
        node, name = self._file(path)
        if self.read_only:
            raise refuse(errno.EROFS, path)
        group = os.path.dirname(path)
        if name == "cgroup.procs":
            if node.below and group != ROOT:
                raise refuse(errno.EBUSY, path)
            self.move(int(text) or self.me, group)
        elif name == "cgroup.subtree_control":
            wanted = {word.removeprefix("+") for word in text.split()}
            if not wanted <= node.controllers:
                raise refuse(errno.ENOENT, path)
            if node.pids and group != ROOT:  # "no internal processes"
                raise refuse(errno.EBUSY, path)
            node.below |= wanted
            for child in self.groups(group):
                self.nodes[child].controllers = set(node.below)
        elif name == "cgroup.kill":
            if not self.kill or group == ROOT:
                raise refuse(errno.ENOENT, path)
            self._kill(group)
        else:
            controller = name.partition(".")[0]
            lacks_swap = name == "memory.swap.max" and not self.swap
            if controller not in node.controllers or lacks_swap:
                raise refuse(errno.ENOENT, path)
            node.files[name] = text

    def mkdir(self, path: str) -> None:
        if self.read_only:
            raise refuse(errno.EROFS, path)
        if path in self.nodes:
            raise refuse(errno.EEXIST, path)
        if self.full:
            raise refuse(errno.EAGAIN, path)  # cgroup.max.descendants
        self.add(path)

    def rmdir(self, path: str) -> None:
        if path not in self.nodes:
            raise refuse(errno.ENOENT, path)
        if self.nodes[path].pids or self.groups(path):
            raise refuse(errno.EBUSY, path)
        del self.nodes[path]

    def groups(self, path: str) -> list[str]:
        if path not in self.nodes:
            raise refuse(errno.ENOENT, path)
        return sorted(one for one in self.nodes if os.path.dirname(one) == path)

    # ----

    def _file(self, path: str) -> tuple[Node, str]:
        group, name = os.path.split(path)
        if group not in self.nodes:
            raise refuse(errno.ENOENT, path)
        return self.nodes[group], name

    def _kill(self, path: str) -> None:
        for one, node in self.nodes.items():
            if one == path or one.startswith(f"{path}/"):
                self.killed += sorted(node.pids - self.hangs)
                node.pids &= self.hangs
