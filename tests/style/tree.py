"""The repository's texts, read once for all style tests."""

from __future__ import annotations

import ast
import functools
import gc
from pathlib import Path
from typing import Final

import msgspec

ROOT: Final = Path(__file__).resolve().parents[2]
PACKAGES: Final = ("cron", "consensus", "launcher", "snapshots")
FOLDERS: Final = (*PACKAGES, "bench", "docs", "examples", "tests")
GENERATED: Final = ("_pb2.py", "_pb2_grpc.py", "_pb2.pyi")


class Source(msgspec.Struct, frozen=True):
    """One Python file: its path from the root, its text and all nodes of its syntax tree."""

    path: str
    text: str
    nodes: tuple[ast.AST, ...]

    @property
    def tree(self) -> ast.Module:
        module = self.nodes[0]
        assert isinstance(module, ast.Module)
        return module

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()

    @property
    def is_test(self) -> bool:
        return self.path.startswith("tests/")


Function = ast.FunctionDef | ast.AsyncFunctionDef


@functools.cache
def files() -> dict[str, str]:
    """All texts that people wrote: Python, Markdown, and what has no Python in it."""
    found = {}
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts and "results" not in path.parts:
                found[str(path.relative_to(ROOT))] = path
    for path in sorted([*ROOT.glob("*"), ROOT / ".ci" / "run"]):
        if path.is_file() and path.name != ".git":  # the mark of a git worktree
            found[str(path.relative_to(ROOT))] = path
    texts = {}
    for name, path in found.items():
        if name.endswith(GENERATED) or name.startswith("tests/data/"):
            continue
        try:
            texts[name] = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # an example of a wrong encoding is not a text
    return texts


@functools.cache
def sources() -> list[Source]:
    """All Python files that people wrote; stubs apart."""
    gc.disable()  # or it looks at the trees again and again while they grow
    try:
        return [
            Source(name, text, tuple(ast.walk(ast.parse(text, name))))
            for name, text in files().items()
            if name.endswith(".py")
        ]
    finally:
        gc.enable()


def code() -> list[Source]:
    """Python that is not a test."""
    return [source for source in sources() if not source.is_test]


def functions(source: Source) -> list[Function]:
    """All functions of a file, nested ones included."""
    return [node for node in source.nodes if isinstance(node, Function)]


def body_lines(function: Function) -> int:
    """How long a function is from its `def`, without its docstring."""
    assert function.end_lineno is not None
    length = function.end_lineno - function.lineno + 1
    if ast.get_docstring(function, clean=False) is not None:
        docstring = function.body[0]
        assert docstring.end_lineno is not None
        length -= docstring.end_lineno - docstring.lineno + 1
    return length


def imported(source: Source) -> set[str]:
    """Every module that a file imports, and what it takes from it: `os`, `os.path`."""
    names: set[str] = set()
    for node in source.nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names.add(node.module)
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names
