"""Secrets of jobs in a real cell: the command has them, and nothing that the cell keeps or says."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest
from backports import zstd

from tests.cluster.harness import SHORT_TIMES, Cell, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

VALUE = "correct-horse-battery-staple"
NAME = "db/billing"
MAGIC = b"\x28\xb5\x2f\xfd"
CRONTAB = """
#: name=works secret=PGPASSWORD:db/billing
@every 1s echo "$PGPASSWORD" > {out}
#: name=missing secret=PGPASSWORD:db/none
@every 1s touch {started}
#: name=large secret=PGPASSWORD:db/large retries=1 backoff=1s
@every 1s touch {started}
#: name=elsewhere secret=PGPASSWORD:db/elsewhere
@every 1s touch {started}
"""


def texts(data: bytes) -> list[bytes]:
    """A file's bytes, and those of each compressed frame in it."""
    found, at = [data], data.find(MAGIC)
    while at >= 0:
        # Four bytes by chance, or a frame that is not whole yet, are none.
        with contextlib.suppress(zstd.ZstdError):
            found.append(zstd.ZstdDecompressor().decompress(data[at:]))
        at = data.find(MAGIC, at + 1)
    return found


def files_with(word: str, *folders: Path) -> list[Path]:
    """The files below these folders that have a word, compressed or not."""
    paths = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    return [path for path in paths if any(word.encode() in one for one in texts(path.read_bytes()))]


def secrets_of(folder: Path) -> Path:
    """A directory of secrets: one that is good, one too large, and one that is a link elsewhere."""
    (folder / "secrets/db").mkdir(parents=True)
    for name, text in (("secrets/db/billing", VALUE), ("secrets/db/large", VALUE * 4_000)):
        (folder / name).write_text(f"{text}\n")
    (folder / "elsewhere").write_text(VALUE)
    (folder / "secrets/db/elsewhere").symlink_to(folder / "elsewhere")
    for path in folder.rglob("*"):
        path.chmod(0o700 if path.is_dir() else 0o600, follow_symlinks=True)
    return folder / "secrets"


def test_a_secret_is_in_the_command_and_in_nothing_that_the_cell_keeps_or_says(
    make_cell: Callable[..., Cell], tmp_path: Path
) -> None:
    secrets, store = secrets_of(tmp_path / "host"), tmp_path / "store"
    extra = (
        f'{SHORT_TIMES}\n[object_storage]\nurl = "{store.as_uri()}"\noutput = true\n'
        "[snapshots]\ninterval_s = 1\n[history]\nsegment_rows = 10\nsegment_age_s = 3\n"
    )
    cell = make_cell(replica_extra=extra, executor_extra=f'secrets = "{secrets}"\n')
    cell.start()
    cell.wait_connected()
    out, started = tmp_path / "out", tmp_path / "started"
    cell.apply(CRONTAB.format(out=out, started=started))
    cell.wait_launches(5, "works")
    assert out.read_text() == f"{VALUE}\n"
    refused = {
        "missing": f"secret db/none: no such file in {secrets}",
        "large": "secret db/large: is larger than 65536 bytes",
        "elsewhere": f"secret db/elsewhere: leads out of {secrets}",
    }
    for job, detail in refused.items():
        cell.wait_launches(1, job, "failed")
        row = cell.history(job, states=["failed"])[-1]
        assert (row.reason, row.detail) == ("secret", detail)
    assert not started.exists()
    assert max(row.attempt for row in cell.history("large")) == 2, "a failure like others"
    cell.cli("snapshot", "save")
    wait_until(lambda: files_with(NAME, store), what="a snapshot or segment with the job")
    newest = cell.history("works", states=["succeeded"])[0].launch
    said = [
        cell.cli(*command.split(), expect=None).stdout
        for command in (
            "jobs -o json", "jobs --long", "jobs show works", "jobs export", f"show {newest}",
            f"why {newest}", f"logs {newest}", "history -o json", "changes -o json", "executors",
            "status -o json", "audit",
        )
    ]  # fmt: skip
    assert any(NAME in text for text in said)
    assert [text for text in said if VALUE in text] == []
    assert files_with(NAME, *(cell.folder / one for one in (*cell.replicas, "executor-1")))
    assert files_with(VALUE, cell.folder, store) == []


def test_a_job_waits_for_an_executor_that_can_read_secrets(
    make_cell: Callable[..., Cell], tmp_path: Path
) -> None:
    cell = make_cell().start()
    cell.wait_connected()
    out = tmp_path / "out"
    cell.apply(f"#: name=works secret=A:db/billing\n@every 1s echo $A > {out}\n")
    wait_until(lambda: cell.history("works"), what="a launch that waits")
    launch = cell.history("works")[-1].launch
    assert "set secrets or secret_command" in cell.cli("why", launch).stdout
    member = cell.members["executor-1"]
    config = Path(member.argv[member.argv.index("--config") + 1])
    text = config.read_text()
    program = 'secret_command = ["/bin/sh", "-c", "echo value of $0"]\n'
    config.write_text(program + text)
    cell.restart("executor-1")
    cell.wait_launches(1, "works")
    assert out.read_text() == "value of db/billing\n"
