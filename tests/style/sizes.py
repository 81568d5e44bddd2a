"""`python -m tests.style.sizes`: write the section "Sizes" of `cron/DESIGN.md` from the tree.

It compares the tree with the commit FIRST, which it reads from git.
"""

from __future__ import annotations

import ast
import re
import statistics
import subprocess
import sys
from collections.abc import Iterable, Iterator
from typing import Final

from tests.style.tree import GENERATED, PACKAGES, ROOT, body_lines

FIRST: Final = "a8027c6"
"""The last commit before the rooms, words and files were put in order."""
DESIGN: Final = ROOT / "cron" / "DESIGN.md"
SECTION: Final = re.compile(r"^## Sizes\n.*?(?=^## )", re.M | re.S)
LAUNCH_PATH: Final = (
    "cron/history/", "cron/leader/", "cron/scheduler/", "cron/state/", "launcher/executor/",
    "launcher/fairness/", "launcher/placement/", "launcher/pool/",
)  # fmt: skip
"""The folders that launches pass through; two of them were there at FIRST alone."""
MOVED: Final = re.compile(
    "cron/leader/(archives|backfill|catalog|dead|differences|hosts|hosted|limiting|lines|logs"
    "|membership|pool_service|questions|removing|replacing|roster|saving|service|shown"
    "|stored_outputs|transfer|unheard)|cron/history/(chores|outputs)"
)
"""Files at FIRST whose work is elsewhere now: they answered requests, or kept backups."""
ADDED: Final = re.compile(
    "cron/.*(task|alert|access|granting|chains|definitions|follow|known_ends|spill|watching"
    "|deliver|predecessors)|cron/state/groups|launcher/executor/(uploads|target_)"
)
"""Files of what cells could not do at FIRST: tasks, alerts, roles, chains, targets, uploads."""
LARGEST: Final[dict[str, str]] = {
    "cron/api/tasks.py": "All that a program can ask of tasks: messages and their checks.",
    "cron/cli/tasks.py": "All that a person can ask of tasks: one command each, with its options.",
    "cron/daemon.py": "One replica: it makes all its parts, and starts and stops them in order.",
    "cron/leader/leader.py": "One leadership term: the turn that plans, appends and dispatches.",
    "cron/scheduler/fair_queue.py": "Which launch is next: one order over all flows and limits.",
    "cron/scheduler/plan.py": "The plan of one turn: every step reads the same indexes.",
    "cron/scheduler/queues.py": "Launches that wait, with the counts by which each is let in.",
    "cron/service/catalog.py": "Changes of a cell's jobs: apply, set, remove, and their plans.",
    "cron/state/state.py": "State: all that is replicated, and the indexes of it.",
    "cron/state/tasking.py": "What each command does to tasks; one table of verdicts.",
    "launcher/client/client.py": "A program's client: its calls, and their repetition elsewhere.",
    "launcher/executor/ledger.py": "An executor's journal: its rows, its file, its replay.",
    "launcher/executor/loop.py": "An executor's turn: it takes orders, writes, starts, reports.",
}
"""Why each of the largest files is one thing."""


def git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout


def is_counted(path: str) -> bool:
    return path.endswith(".py") and not path.endswith(GENERATED) and "/stubs/" not in path


def now() -> Iterator[tuple[str, str]]:
    """Yield path and text of each Python file that git knows, as it is in the tree."""
    for path in filter(is_counted, git("ls-files", *PACKAGES, "tests").splitlines()):
        if (ROOT / path).exists():
            yield path, (ROOT / path).read_text()


def at(commit: str) -> Iterator[tuple[str, str]]:
    """Yield path and text of each Python file of a commit."""
    names = git("ls-tree", "-r", "--name-only", commit, *PACKAGES, "tests").splitlines()
    for path in filter(is_counted, names):
        yield path, git("show", f"{commit}:{path}")


def folder(path: str) -> str:
    return path.partition("/")[0]


def median_lines(texts: Iterable[str]) -> float:
    """Return the median length of their functions, without docstrings."""
    return statistics.median(
        body_lines(node)
        for text in texts
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )


def section() -> str:
    """Return the section with its title.

    Raises:
        KeyError: one of the ten largest files has no sentence in LARGEST.
    """
    before, today = dict(at(FIRST)), dict(now())
    rows = [
        f"| folder | files at {FIRST} | lines | median function | files now | lines | median |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    groups = {f"`{name}/`": {name} for name in PACKAGES}
    groups |= {"product": {*PACKAGES}, "`tests/`": {"tests"}}
    for name, folders in groups.items():
        cells = []
        for tree in (before, today):
            texts = [text for path, text in tree.items() if folder(path) in folders]
            lines = sum(text.count("\n") for text in texts)
            cells += [f"{len(texts):,}", f"{lines:,}", f"{median_lines(texts):g}"]
        rows.append(f"| {name} | {' | '.join(cells)} |")
    for name, left_out in (
        ("launch path", re.compile("(?!)")),
        ("launch path, what both had", re.compile(f"{MOVED.pattern}|{ADDED.pattern}")),
    ):
        cells = []
        for tree in (before, today):
            texts = [
                text
                for path, text in tree.items()
                if path.startswith(LAUNCH_PATH) and not left_out.match(path)
            ]
            lines = sum(text.count("\n") for text in texts)
            cells += [f"{len(texts):,}", f"{lines:,}", f"{median_lines(texts):g}"]
        rows.append(f"| {name} | {' | '.join(cells)} |")
    lengths = {path: text.count("\n") for path, text in today.items() if folder(path) in PACKAGES}
    largest = sorted(lengths, key=lambda path: -lengths[path])[:10]
    rows += ["", "The ten largest files:", "", "| file | lines | why it is one thing |"]
    rows += ["| --- | ---: | --- |"]
    rows += [f"| `{path}` | {lengths[path]} | {LARGEST[path]} |" for path in largest]
    intro = (
        "`make sizes` writes this section. Generated code is not counted, and the length of a\n"
        "function is without its docstring. `tests/style/test_tidy.py` has the limits. The launch\n"
        "path is the folders `history`, `leader`, `scheduler`, `state`, `executor` and `pool`;\n"
        "`tests/style/sizes.py` lists which files only one of the two commits has the work of.\n"
    )
    return f"## Sizes\n\n{intro}\n" + "\n".join(rows) + "\n\n"


def main() -> int:
    """Write the section; return 0."""
    text = DESIGN.read_text()
    new = section()
    if SECTION.search(text):
        text = SECTION.sub(lambda _: new, text)
    else:
        text = text.replace("## Known limits\n", f"{new}## Known limits\n")
    DESIGN.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
