"""A clean Debian machine in a container: systemd is its init, and loopback is its only network.

Its root file system is made once by mmdebstrap, with what the package depends on, and kept in
.cache. Each machine gets a copy of it in a folder of its own, and leaves no mount and no process.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Final, TypeVar

T = TypeVar("T")

ROOT: Final = Path(__file__).parents[2]
ARCHIVE: Final = ROOT / ".cache" / "debian-bookworm.tar"
NEEDED: Final = "systemd,systemd-sysv,dbus,adduser,python3.11,libstdc++6,procps"
PROGRAMS: Final = ("mmdebstrap", "systemd-nspawn", "nsenter")
WAIT_S: Final = 120.0
_POWER_OFF: Final = signal.SIGRTMIN + 4
"""What systemd as init takes for `systemctl poweroff` (systemd(1))."""
_UNSEEN: Final = ("dev", "proc", "run", "sys", "tmp", "var/cache", "var/log", "var/tmp")
"""Below these a purge may leave anything."""
_ALWAYS_CHANGING: Final = (
    *("var/lib/dpkg", "var/lib/systemd", "var/lib/apt", "etc/machine-id", "etc/.pwd.lock"),
    *("etc/passwd-", "etc/group-", "etc/shadow-", "etc/gshadow-", "etc/ld.so.cache"),
)


def missing() -> str:
    """Return why there can be no machine here, "" if there can."""
    absent = [program for program in PROGRAMS if shutil.which(program) is None]
    if absent:
        return f"{', '.join(absent)}: not installed (apt-get install mmdebstrap systemd-container)"
    return "" if os.getuid() == 0 else "root is needed"


def make_archive(archive: Path = ARCHIVE, packages: str = NEEDED) -> None:
    """Make a root file system of Debian 12 with these packages, once."""
    if archive.exists():
        return
    archive.parent.mkdir(exist_ok=True)
    half = archive.with_suffix(".half.tar")
    options = ["--variant=minbase", f"--include={packages}", "--quiet"]
    subprocess.run(["mmdebstrap", *options, "bookworm", str(half)], check=True)
    half.rename(archive)


class Machine:
    """A machine that runs while its `with` does. `root` is its file system as the host sees it."""

    def __init__(self) -> None:
        make_archive()
        self._folder = Path(tempfile.mkdtemp(prefix="raftcron-machine-"))
        self.root = self._folder / "root"
        self.root.mkdir()
        subprocess.run(["tar", "xf", str(ARCHIVE), "-C", str(self.root)], check=True)
        self._outer: subprocess.Popen[bytes] | None = None
        self._init = 0

    def __enter__(self) -> Machine:
        try:
            self._boot()
        except BaseException:
            self.close()
            raise
        return self

    def _boot(self) -> None:
        options = ["--quiet", "--register=no", "--keep-unit", "--private-network", "--boot"]
        options += ["--console=pipe", "--resolv-conf=off", f"--machine={self._folder.name}"]
        with (self._folder / "console").open("wb") as console:
            self._outer = subprocess.Popen(
                ["systemd-nspawn", *options, "-D", str(self.root)],
                stdin=subprocess.DEVNULL, stdout=console, stderr=console,
            )  # fmt: skip
        self._init = int(self.wait(self._children, "the machine's init").split()[0])
        self.wait(self._is_up, "the machine to be up")

    def _children(self) -> str:
        assert self._outer is not None
        over = self._outer.poll()
        assert over is None, f"systemd-nspawn ended: {self._console()}"
        with contextlib.suppress(OSError):
            return Path(f"/proc/{self._outer.pid}/task/{self._outer.pid}/children").read_text()
        return ""

    def _is_up(self) -> bool:
        state = self.run("systemctl is-system-running", expect=None)
        assert "degraded" not in state, self.run("systemctl --failed --no-pager", expect=None)
        return state.strip() == "running"

    def _console(self) -> str:
        return (self._folder / "console").read_text(errors="replace")[-2_000:]

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            print(self.run("journalctl --no-pager -n 150 | cut -c 1-300", expect=None))
        self.close()

    def close(self) -> None:
        """Power the machine off and remove its file system."""
        if self._outer is not None and self._outer.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._init or self._outer.pid, _POWER_OFF if self._init else signal.SIGTERM)
            try:
                self._outer.wait(WAIT_S)
            except subprocess.TimeoutExpired:
                self._outer.kill()  # the kernel kills all of a pid namespace with its init
                self._outer.wait()
        shutil.rmtree(self._folder)

    def run(self, script: str, *, expect: int | None = 0, user: str = "root") -> str:
        """Run a shell script in the machine; return what it printed."""
        command = ["nsenter", "-t", str(self._init), "-a", "-r", "-w", "env", "-i"]
        command += ["PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LC_ALL=C.UTF-8"]
        shell = ["sh", "-c", script] if user == "root" else ["runuser", "-u", user, "--"]
        shell += [] if user == "root" else ["sh", "-c", script]
        done = subprocess.run(
            [*command, *shell], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, check=False,
        )  # fmt: skip
        assert expect is None or done.returncode == expect, (
            f"{script}: exit status {done.returncode}\n{done.stdout}"
        )
        return done.stdout

    def wait(self, condition: Callable[[], T], what: str, within_s: float = WAIT_S) -> T:
        """Return what `condition` returns once it is true."""
        deadline = time.monotonic() + within_s
        while not (value := condition()):
            assert time.monotonic() < deadline, f"waited {within_s} s for {what}"
            time.sleep(0.2)
        return value

    def files(self) -> dict[str, str]:
        """Return the files of the machine with what they are: kind, mode, owner and content."""
        found = {}
        for folder, names, leaves in os.walk(self.root):
            place = Path(folder).relative_to(self.root)
            names[:] = sorted(one for one in names if not _is_left_out(place / one))
            for name in (*names, *leaves):
                if not _is_left_out(place / name):
                    found[str(place / name)] = _described(Path(folder) / name)
        return found


def _is_left_out(path: Path) -> bool:
    return str(path) in (*_UNSEEN, *_ALWAYS_CHANGING)


def _described(path: Path) -> str:
    status = path.lstat()
    what = f"{stat.filemode(status.st_mode)} {status.st_uid}:{status.st_gid}"
    if path.is_symlink():
        return f"{what} -> {path.readlink()}"
    if stat.S_ISREG(status.st_mode):
        return f"{what} {hashlib.sha256(path.read_bytes()).hexdigest()[:16]}"
    return what
