"""Data-driven tests: a script of commands, each followed by the output that it must print.

After cockroachdb/datadriven, as etcd's raft uses it. `--rewrite` records what is printed in place
of what was expected; read that diff before committing it.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Step:
    """One command and the output that it must print.

    `preamble` are the comments and blank lines above it, kept as they are; `expected` is what
    stands between ---- and the next blank line.
    """

    preamble: str
    command: str
    expected: str

    def parse(self) -> tuple[str, list[str], dict[str, str]]:
        """Return the command's name, its positional and its key=value arguments."""
        name, *rest = shlex.split(self.command.splitlines()[0])
        return (
            name,
            [argument for argument in rest if "=" not in argument],
            dict(argument.split("=", 1) for argument in rest if "=" in argument),
        )


def read(path: Path) -> Iterator[Step]:
    """Yield the steps of the script at `path`."""
    lines = iter(path.read_text(encoding="utf-8").splitlines(keepends=True))
    preamble = ""
    for line in lines:
        if line.isspace() or line.startswith("#"):
            preamble += line
            continue
        command = line + "".join(iter(lambda: next(lines, "----\n"), "----\n"))
        expected = ""
        for printed in lines:
            if printed.isspace():
                break
            expected += printed
        yield Step(preamble, command, expected)
        preamble = ""


def run(path: Path, play: Callable[[Step], str], *, rewrite: bool) -> None:
    """Play the script; compare what it prints, or with `rewrite` record it."""
    steps = list(read(path))
    assert steps, f"{path.name} has no steps"
    printed = [(play(step).rstrip("\n") or "ok") + "\n" for step in steps]
    if rewrite:
        texts = [
            f"{step.preamble}{step.command}----\n{output}"
            for step, output in zip(steps, printed, strict=True)
        ]
        path.write_text("\n".join(texts), encoding="utf-8")
        return
    for step, output in zip(steps, printed, strict=True):
        assert output == step.expected, f"{path.name}: {step.command}"
