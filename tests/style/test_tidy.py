"""Is the code what was agreed? Sizes, names, and what may be used where (house rules).

An exception stands in a table here with its reason, and is removed when it is no longer needed.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from typing import Final

import pytest

from tests.style.tree import body_lines, code, files, functions, imported, sources

FILE_LINES_MAX: Final = 700
FUNCTION_LINES_MAX: Final = 70
PARAMETERS_MAX: Final = 7
COLUMNS_MAX: Final = 100

LONG_FILES: Final[dict[str, str]] = {}
"""Files over 700 lines, each with the reason."""
LONG_FUNCTIONS: Final[dict[str, str]] = {}
"""`path:function` over 70 lines, each with the reason."""
MANY_PARAMETERS: Final[dict[str, str]] = {}
"""`path:function` with more than seven parameters, each with the reason."""

PICKLE_DOOR: Final = "consensus/engine/guard.py"
"""The engine pickles; this file decides what may be unpickled."""

CLOCKS_AND_CHANCE: Final = ("time", "random", "uuid", "secrets")
PURE: Final = (
    "cron/calendar/", "cron/crontab/", "cron/state/", "cron/history/", "cron/job.py",
    "cron/scheduler/", "cron/scopes.py", "cron/access.py", "cron/where.py",
    "launcher/worker/outcome.py",
    "launcher/worker/wire.py",
    "cron/leader/clocks.py",
    "consensus/leadership.py", "consensus/engine/envelope.py",
    "consensus/engine/network/wire.py", "consensus/engine/membership.py", "cron/launch_state.py",
    "launcher/protocol/", "launcher/pool/events.py", "launcher/pool/lease.py",
    "launcher/executor/lease.py",
    "launcher/executor/rows.py", "launcher/executor/rules.py", "cron/storage/retention_planner.py",
    "cron/leader/recovery.py", "cron/storage/new_generation.py", "cron/keeping_config.py",
    "snapshots/format.py", "snapshots/layout.py", "snapshots/manifest.py",
    "snapshots/retention.py",
)  # fmt: skip
"""Values in, values out: what time it is and what is drawn comes in from outside."""

DOORS: Final[dict[str, tuple[str, ...]]] = {
    "boto3": (
        *("launcher/client/intake.py", "launcher/payloads_s3.py", "launcher/targets/sqs.py"),
        "snapshots/s3.py",
    ),
    "botocore": (
        *("launcher/client/intake.py", "launcher/payloads_s3.py", "launcher/targets/sqs.py"),
        "snapshots/s3.py",
    ),
    "backports": ("snapshots/zstd.py", "launcher/executor/uploads.py"),
    "click": ("cron/cli/", "cron/dev/", "cron/restore.py"),
    "croniter": ("cron/calendar/schedule.py",),
    "cryptography": ("cron/certs/", "snapshots/encrypted.py", "snapshots/signed.py"),
    "grpc": (
        "bench/etcd.py",
        "cron/api/",
        "cron/daemon.py",
        "cron/storage/history_backfill.py",
        "launcher/pool/",
        "launcher/executor/channel.py",
        "launcher/executor/connector.py",
        "launcher/executor/stream.py",
    ),
    "icalendar": ("cron/crontab/calendar_file.py",),
    "recurring_ical_events": ("cron/crontab/calendar_file.py",),
    "opentelemetry": ("cron/service/spans.py",),
    "psycopg": ("launcher/client/relay.py", "bench/peer_postgres.py"),
    "pyarrow": ("cron/cli/export.py",),
    "pysyncobj": ("consensus/engine/",),
    "rich": ("cron/cli/render.py",),
    "starlette": ("cron/web/",),
    "uvicorn": ("cron/web/",),
}
"""Each thing from outside and the only places that import it themselves."""

VAGUE: Final = {
    "manager", "helper", "helpers", "util", "utils", "common", "base", "data", "info", "master",
    "execution", "misc", "stuff",
}  # fmt: skip
VAGUE_VERBS: Final = {"handle", "process", "do", "perform"}
"""As the first word of a function's name; an OS process is a noun and stands elsewhere."""
EXCUSED_NAMES: Final[dict[str, str]] = {
    "cron/web/connection.py:data_received": "asyncio's name of a protocol's method",
    "consensus/engine/storage/journal.py:set_base": "Raft's word for where a compacted log begins",
    "consensus/errors.py:DataInUse": "`data` is the configuration's field",
    "consensus/errors.py:NoData": "`data` is the configuration's field",
}
"""`path:name` of names that say enough for a reason."""

FUTURE: Final = "from __future__ import annotations"

MACHINE_PATHS: Final = re.compile("/" + "work/|/" + r"Users/\w|\.\./" + "shared")


def expect_none(rows: list[str]) -> None:
    """Fail with all of `rows`, one a line."""
    assert not rows, "\n" + "\n".join(rows)


def overlong(lengths: dict[str, int], most: int, excused: dict[str, str]) -> list[str]:
    """What is over the limit and not excused, and what is excused without need."""
    over = {name: length for name, length in lengths.items() if length > most}
    rows = [f"{name} has {n}, at most {most}" for name, n in over.items() if name not in excused]
    return rows + [f"{name} needs no exception any more" for name in excused if name not in over]


def test_no_file_is_longer_than_700_lines() -> None:
    lengths = {source.path: len(source.lines) for source in sources()}
    assert len(lengths) > 50, "the tree was not found"
    expect_none(overlong(lengths, FILE_LINES_MAX, LONG_FILES))


def test_no_function_is_longer_than_70_lines() -> None:
    lengths = {
        f"{source.path}:{function.name}": body_lines(function)
        for source in sources()
        for function in functions(source)
    }
    expect_none(overlong(lengths, FUNCTION_LINES_MAX, LONG_FUNCTIONS))


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    spec = function.args
    named = [*spec.posonlyargs, *spec.args, *spec.kwonlyargs]
    return len([one for one in named if one.arg not in ("self", "cls")])


def test_no_function_has_more_than_seven_parameters() -> None:
    numbers = {
        f"{source.path}:{function.name}": parameters(function)
        for source in code()
        for function in functions(source)
    }
    expect_none(overlong(numbers, PARAMETERS_MAX, MANY_PARAMETERS))


def test_pickle_has_one_door() -> None:
    users = {source.path for source in code() if imported(source) & {"pickle", "cPickle"}}
    assert users <= {PICKLE_DOOR}


def reads_the_clock(nodes: Iterable[ast.AST]) -> bool:
    """Whether `datetime.now()` and its like are called."""
    return any(
        isinstance(node, ast.Attribute)
        and node.attr in ("now", "utcnow", "today")
        and isinstance(node.value, ast.Name | ast.Attribute)
        and ast.unparse(node.value).split(".")[-1] in ("datetime", "date")
        for node in nodes
    )


def test_the_core_knows_neither_clock_nor_chance() -> None:
    core = [source for source in code() if source.path.startswith(PURE)]
    assert len(core) > 15, "the pure modules were not found"
    guilty = [
        f"{source.path} uses {', '.join(sorted(used)) or 'datetime.now'}"
        for source in core
        if (used := imported(source) & set(CLOCKS_AND_CHANCE)) or reads_the_clock(source.nodes)
    ]
    expect_none(guilty)


def test_what_comes_from_outside_has_its_doors() -> None:
    users: dict[str, list[str]] = {name: [] for name in DOORS}
    for source in code():
        for name in {module.split(".")[0] for module in imported(source)} & set(DOORS):
            users[name].append(source.path)
    wrong = [
        f"{path} imports {name}"
        for name, paths in users.items()
        for path in paths
        if not path.startswith(DOORS[name])
    ]
    expect_none(wrong)
    unused = [
        f"{door} does not import {name}"
        for name, doors in DOORS.items()
        for door in doors
        if not any(path.startswith(door) for path in users[name])
    ]
    expect_none(unused)


def test_every_module_begins_with_future_annotations() -> None:
    missing = []
    for source in sources():
        body = source.tree.body[1:] if ast.get_docstring(source.tree) else source.tree.body
        if body and not (isinstance(body[0], ast.ImportFrom) and body[0].module == "__future__"):
            missing.append(source.path)
    expect_none(missing)


def test_a_package_file_holds_only_a_docstring() -> None:
    # A face in it would drag grpc into the pure parts and into the command line.
    packages = [source for source in sources() if source.path.endswith("__init__.py")]
    wrong = [
        source.path
        for source in packages
        if not ast.get_docstring(source.tree)
        or [one for one in source.tree.body[1:] if ast.unparse(one) != FUTURE]
    ]
    expect_none(wrong)


def test_invariants_are_not_written_with_assert() -> None:
    # `python -O` removes assert; `invariant(condition, message)` of errors.py stays.
    wrong = [
        f"{source.path}:{node.lineno}"
        for source in code()
        for node in source.nodes
        if isinstance(node, ast.Assert)
    ]
    expect_none(wrong)


def words(name: str) -> list[str]:
    """`RpcDataBase` and `rpc_data_base` are both rpc, data, base."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    return [word for word in spaced.lower().split("_") if word]


def vague_names() -> dict[str, str]:
    """`path:name` of everything whose name says nothing, with the word."""
    found = {}
    for source in code():
        stem = source.path.rsplit("/", 1)[-1].removesuffix(".py")
        named = [(stem, words(stem), True)]
        named += [
            (node.name, words(node.name), isinstance(node, ast.ClassDef))
            for node in source.nodes
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        ]
        for name, parts, is_noun in named:
            vague = VAGUE & set(parts) or (not is_noun and VAGUE_VERBS & set(parts[:1]))
            if vague:
                found[f"{source.path}:{name}"] = ", ".join(sorted(vague))
    return found


def test_names_are_nouns_of_the_field() -> None:
    found = vague_names()
    assert {name: word for name, word in found.items() if name not in EXCUSED_NAMES} == {}
    assert [name for name in EXCUSED_NAMES if name not in found] == []


def prose(text: str) -> list[str]:
    """The lines of a Markdown text outside its code blocks."""
    lines, is_code = [], False
    for line in text.splitlines():
        if line.lstrip().startswith("```"):
            is_code = not is_code
        elif not is_code:
            lines.append(line)
    return lines


def test_every_markdown_file_has_one_title() -> None:
    titles = {
        name: [line for line in prose(text) if line.startswith("# ")]
        for name, text in files().items()
        if name.endswith(".md")
    }
    assert titles, "no Markdown was found"
    assert {name: lines for name, lines in titles.items() if len(lines) != 1} == {}


def test_no_line_is_wider_than_100_columns() -> None:
    wide = []
    for name, text in files().items():
        if not name.endswith((".py", ".md")):
            continue
        for number, line in enumerate(text.splitlines(), 1):
            is_table = name.endswith(".md") and line.lstrip().startswith("|")
            if len(line) > COLUMNS_MAX and not is_table and "://" not in line:
                wide.append(f"{name}:{number} has {len(line)}")
    expect_none(wide)


def test_nothing_names_a_place_on_a_developers_machine() -> None:
    found = [
        f"{name}:{number}"
        for name, text in files().items()
        for number, line in enumerate(text.splitlines(), 1)
        if MACHINE_PATHS.search(line)
    ]
    expect_none(found)


@pytest.mark.parametrize("word", ["TODO", "FIXME", "XXX"])
def test_nothing_is_left_for_later_in_the_code(word: str) -> None:
    left = [
        f"{source.path}:{number}"
        for source in code()
        for number, line in enumerate(source.lines, 1)
        if re.search(rf"\b{word}\b", line)
    ]
    expect_none(left)


def test_nothing_waits_in_a_way_that_loses_a_cancel() -> None:
    """`asyncio.wait_for` of Python 3.11 returns as if nothing were when what it waits for comes in
    the same moment as a cancel (python/cpython#86296); `asyncio.timeout` does not."""
    guilty = [
        f"{source.path}:{number}"
        for source in code()
        for number, line in enumerate(source.lines, 1)
        if "asyncio.wait_for(" in line
    ]
    expect_none(guilty)


def test_everything_in_examples_is_read_by_a_test() -> None:
    examples = [name for name in files() if name.startswith("examples/")]
    tests = "\n".join(source.text for source in sources() if source.is_test)
    unread = []
    for name in examples:
        stem = name.removeprefix("examples/")
        if name not in tests and not re.search(rf'"examples"[^\n]*"{re.escape(stem)}"', tests):
            unread.append(name)
    assert examples, "no examples were found"
    expect_none(unread)


# ---- the checks themselves can fail


def test_an_exception_that_is_not_needed_is_reported() -> None:
    assert overlong({"a": 3, "b": 5}, 4, {}) == ["b has 5, at most 4"]
    assert overlong({"a": 3, "b": 5}, 4, {"b": "why"}) == []
    assert overlong({"a": 3}, 4, {"a": "why"}) == ["a needs no exception any more"]


def test_the_clock_is_recognised_in_every_spelling() -> None:
    for text in ("datetime.now(UTC)", "datetime.datetime.utcnow()", "date.today()"):
        assert reads_the_clock(ast.walk(ast.parse(text)))
    for text in ("self.now", "datetime(2026, 1, 1)", "clock.now()"):
        assert not reads_the_clock(ast.walk(ast.parse(text)))


def test_the_length_of_a_function_does_not_count_its_docstring() -> None:
    (function,) = ast.parse('def f():\n    """One.\n\n    Two.\n    """\n    return 1\n').body
    assert isinstance(function, ast.FunctionDef)
    assert body_lines(function) == 2


def test_titles_in_code_blocks_do_not_count() -> None:
    assert prose("# A\n```\n# not a title\n```\ntext") == ["# A", "text"]


def test_names_are_split_into_words() -> None:
    assert words("BaseModel2Data") == ["base", "model2", "data"]
    assert words("_run_once") == ["run", "once"]
