"""Makes the virtual environment that raftcron is installed in: `make install` and the packages.

The environment is made at one path (`--target`) and used at another (`--at`): a package is built in
a folder of its own, and DESTDIR is one. So what pip wrote into it about the first path is mended.
The same inputs give the same bytes: compiled modules name their sources by the final path and hold
no times, and neither the order of pip's work nor the builder's folder leaves a trace.
"""

from __future__ import annotations

import argparse
import csv
import io
import os
import re
import subprocess
import sys
from pathlib import Path

KEPT = re.compile(r"raftcron|python[0-9.]*")
"""What stays in bin/: commands of libraries and scripts for shells are of no use to a service."""


def main() -> None:
    """Make an environment with the packages of a lock and one wheel."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--wheel", type=Path, required=True, help="the wheel of raftcron")
    parser.add_argument("--lock", type=Path, required=True, help="requirements with hashes")
    parser.add_argument("--target", type=Path, required=True, help="where it is made")
    parser.add_argument("--at", type=Path, help="where it is used (default: where it is made)")
    said = parser.parse_args()
    target = said.target.absolute()
    at = said.at or target
    install(target, said.wheel.absolute(), said.lock.absolute())
    relocate(target, at)
    forget_builder(target)
    compile_modules(target, at)


def install(target: Path, wheel: Path, lock: Path) -> None:
    """Make an environment at `target` and install into it; one that is there is replaced."""
    run(sys.executable, "-m", "venv", "--clear", "--without-pip", str(target))
    pip = [sys.executable, "-m", "pip", "--python", str(target / "bin" / "python")]
    pip += ["--disable-pip-version-check", "install", "--quiet", "--no-compile", "--no-deps"]
    pip += ["--use-pep517"]  # one library has no wheel
    run(*pip, "--require-hashes", "-r", str(lock))
    # By name, or pip would record the path of the wheel.
    name, version = wheel.name.split("-")[:2]
    run(*pip, "--no-index", "--find-links", str(wheel.parent), f"{name}=={version}")


def run(*command: str) -> None:
    """Run a program; the end of this one, if it fails."""
    fixed = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": "0"}
    status = subprocess.run(command, check=False, env=fixed).returncode
    if status:
        sys.exit(f"{' '.join(command[:6])} ...: exit status {status}")


def relocate(target: Path, at: Path) -> None:
    """Let the scripts of `target` start the Python at `at`; remove all others than `KEPT`."""
    for script in sorted((target / "bin").iterdir()):
        if not KEPT.fullmatch(script.name):
            script.unlink()
        elif not script.is_symlink():
            lines = script.read_text().splitlines(keepends=True)
            script.write_text("".join([f"#!{at}/bin/python\n", *lines[1:]]))
    settings = (target / "pyvenv.cfg").read_text().splitlines(keepends=True)
    kept = [line for line in settings if not line.startswith(("command", "executable"))]
    (target / "pyvenv.cfg").write_text("".join(kept))


def forget_builder(target: Path) -> None:
    """Remove from pip's records what depends on the builder: hashes of scripts, compiled files."""
    for record in sorted(target.glob("lib/python3*/site-packages/*.dist-info/RECORD")):
        rows = []
        for name, digest, size in csv.reader(io.StringIO(record.read_text())):
            if name.endswith(".pyc"):
                continue
            is_script = "/bin/" in name
            if is_script and not KEPT.fullmatch(Path(name).name):
                continue
            rows.append([name, "", ""] if is_script else [name, digest, size])
        with record.open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(sorted(rows))


def compile_modules(target: Path, at: Path) -> None:
    """Compile all modules: a service may not write beside them, and would compile at each start.

    One process compiles everything in one order. The files of compiled modules are not checked
    against their sources, which the package manager keeps together.
    """
    [packages] = target.glob("lib/python3*/site-packages")
    options = ["-q", "-f", "-j", "1", "--invalidation-mode", "unchecked-hash"]
    paths = ["-s", str(target), "-p", str(at)]
    run(str(target / "bin" / "python"), "-m", "compileall", *options, *paths, str(packages))


if __name__ == "__main__":
    main()
