"""`python -m tests.fuzz [NAME ...] --seconds 60`: any bytes by coverage, for one parser after the
other.

Each fuzzer runs in a process of its own, so that a hang or a crash ends that one alone. What it
finds is written to `.cache/fuzz`, and `--replay FILE` shows it again. Inputs that reached something
new are kept there, too, and the next run begins with them.
"""

from __future__ import annotations

import argparse
import importlib
import re
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from tests.fuzz.subject import Subject

FOLDER: Final = Path(__file__).parents[2] / ".cache" / "fuzz"
HANG_S: Final = 120
"""By the clock, of one input: far above the processor time that it may take on a busy machine."""
SPACE_BYTES: Final = 4 << 30
"""Of addresses: what asks for more gets a MemoryError, and the machine stays well."""


class Fuzzer(NamedTuple):
    """The module of a subject, and the packages whose branches tell what is new."""

    module: str
    covers: tuple[str, ...]
    bytes_max: int = 4_096


FUZZERS: Final = {
    "journal": Fuzzer("storage_bytes", ("consensus",), 512),
    "frames": Fuzzer("frame_bytes", ("consensus",), 512),
    "crontab": Fuzzer("crontab_bytes", ("cron",)),
    "toml": Fuzzer("toml_bytes", ("cron", "launcher")),
    "pool": Fuzzer("pool_bytes", ("launcher",)),
    "worker": Fuzzer("worker_bytes", ("launcher",)),
    "ledger": Fuzzer("ledger_bytes", ("launcher",)),
    "http": Fuzzer("http_bytes", ("cron", "launcher", "h11")),
    "files": Fuzzer("storage_files_bytes", ("snapshots",)),
    "state": Fuzzer("state_bytes", ("cron",)),
    "calendars": Fuzzer("calendar_bytes", ("cron",)),
    "imports": Fuzzer("import_bytes", ("cron",)),
}


def subject_of(name: str) -> Subject | None:
    """Return the subject of a fuzzer; None for those that have only `feed`."""
    found = getattr(importlib.import_module(f"tests.fuzz.{FUZZERS[name].module}"), "SUBJECT", None)
    return found if isinstance(found, Subject) else None


def feed_of(name: str) -> Callable[[bytes], object]:
    """Return what an input is given to."""
    subject = subject_of(name)
    module = importlib.import_module(f"tests.fuzz.{FUZZERS[name].module}")
    feed: Callable[[bytes], object] = module.feed if subject is None else subject.feed
    return feed


def fuzz(name: str, seconds: int) -> None:
    """Run one fuzzer in this process until its time is over, or something was found."""
    try:
        import atheris
    except ImportError:
        sys.exit("atheris is not installed: pip install atheris (Linux, Python 3.11)")
    fuzzer = FUZZERS[name]
    resource.setrlimit(resource.RLIMIT_AS, (SPACE_BYTES, SPACE_BYTES))
    with atheris.instrument_imports(include=[*fuzzer.covers, "tests.fuzz"]):
        feed, subject = feed_of(name), subject_of(name)
    corpus = FOLDER / name
    corpus.mkdir(parents=True, exist_ok=True)
    for number, content in enumerate(subject.inputs() if subject is not None else ()):
        (corpus / f"seed-{number}").write_bytes(content)
    arguments = [
        f"-max_total_time={seconds}",
        f"-max_len={fuzzer.bytes_max}",
        f"-timeout={HANG_S}",
        f"-artifact_prefix={FOLDER / name}-",
        "-print_final_stats=1",
        str(corpus),
    ]
    atheris.Setup([sys.argv[0], *arguments], feed)
    atheris.Fuzz()


def run(name: str, seconds: int) -> bool:
    """Run one fuzzer in a process of its own; print what came of it, and return whether nothing
    was found."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    log = FOLDER / f"{name}.log"
    command = [sys.executable, "-m", "tests.fuzz", name, "--here", "--seconds", str(seconds)]
    with log.open("wb") as said:
        code = subprocess.run(command, stdout=said, stderr=said, check=False).returncode
    text = log.read_text(errors="replace")
    found = re.findall(r"number_of_executed_units: *(\d+)", text)
    runs = int(found[-1]) if found else 0
    covered = re.findall(r" cov: (\d+)", text)
    what = "nothing found" if code == 0 else f"FOUND, see {log}"
    print(f"{name:10} {runs:>10,} inputs, {covered[-1] if covered else 0:>5} branches: {what}")
    if code:
        print(text[-3_000:])
    return code == 0


def main() -> None:
    """Run what the command line names."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(FUZZERS))
    parser.add_argument("--seconds", type=int, default=60, help="for each fuzzer")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="give one input to NAME")
    parser.add_argument("--here", action="store_true", help="run NAME in this process")
    said = parser.parse_args()
    names = said.names or list(FUZZERS)
    if unknown := [name for name in names if name not in FUZZERS]:
        parser.error(f"{unknown[0]} is not one of {', '.join(FUZZERS)}")
    if said.replay is not None:
        print(feed_of(names[0])(said.replay.read_bytes()))
    elif said.here:
        fuzz(names[0], said.seconds)
    else:
        good = [run(name, said.seconds) for name in names]
        sys.exit(0 if all(good) else 1)


if __name__ == "__main__":
    main()
