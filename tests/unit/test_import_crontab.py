"""Crontabs, imported: those of a machine as Debian's cron reads them, and a file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cron.cli.host_crontabs import Machine, host_crontabs, host_zone
from cron.crontab.debian_cron import LINES_MAX, Opened, is_read, refusal
from cron.crontab.import_crontab import Tab, import_crontabs
from cron.crontab.imported import Imported
from cron.crontab.jobfile import read_jobs_toml

LINE = b"0 1 * * * root /opt/x\n"
SPOOL = "var/spool/cron/crontabs"


def said(imported: Imported) -> str:
    return "\n".join(map(str, imported.left))


def of_host(content: bytes, user: str = "") -> Imported:
    return import_crontabs([Tab("/etc/crontab", content, user, "UTC", is_of_host=True)])


def machine(top: Path, files: dict[str, bytes | Path]) -> Machine:
    """Return a machine with these files, all of them ours; ada is the user who runs this."""
    for name, content in files.items():
        path = top / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, Path):
            path.symlink_to(content)
        else:
            path.write_bytes(content)
            path.chmod(0o600)
    return Machine(top, os.getuid(), dict.fromkeys(("root", "ada", "a.b"), os.getuid()).get)


@pytest.mark.parametrize(
    ("name", "is_known", "is_known_lsb"),
    [
        ("backup", True, True), ("Backup_1-a", True, False), ("backup~", False, False),
        ("#backup#", False, False), ("backup.sh", False, False), ("x.dpkg-old", False, False),
        ("a-b", True, True), ("_a.org-b", False, True), ("a.dpkg-dist", False, False),
        (".a", False, False), ("", False, False), ("b\n", False, False), ("bäckup", False, False),
    ],
)  # fmt: skip
def test_a_name_in_the_folder_of_crontabs_is_read_as_run_parts_reads_it(
    name: str, is_known: bool, is_known_lsb: bool
) -> None:
    assert is_read(name, is_lsb=False) == is_known
    assert is_read(name, is_lsb=True) == is_known_lsb


@pytest.mark.parametrize(
    ("file", "owner", "why"),
    [
        (Opened(True, 0o100644, 0, 1), None, ""),
        (Opened(True, 0o100644, 0, 1, 0), None, ""),
        (Opened(True, 0o100644, 0, 1, 7), None, "it is a link that is not root's"),
        (Opened(True, 0o100644, 7, 1), None, "it is not root's own"),
        (Opened(True, 0o100664, 0, 1), None, "its group or others may write it"),
        (Opened(True, 0o100646, 0, 1), None, "its group or others may write it"),
        (Opened(False, 0o010644, 0, 1), None, "it is no regular file"),
        (Opened(True, 0o100644, 0, 2), None, "it has several names (hard links)"),
        (Opened(True, 0o100600, 7, 1), 7, ""),
        (Opened(True, 0o100600, 0, 1), 7, ""),
        (Opened(True, 0o100600, 8, 1), 7, "it is not the user's own"),
        (Opened(True, 0o100644, 7, 1), 7, "its mode is 0644, and not 0600"),
        (Opened(True, 0o100600, 7, 1, 7), 7, "it is a link, and a user's crontab is none"),
    ],
)
def test_a_file_is_read_with_the_owner_and_mode_that_cron_wants(
    file: Opened, owner: int | None, why: str
) -> None:
    assert refusal(file, owner=owner) == why


def test_the_crontabs_of_a_machine_are_those_that_cron_reads(tmp_path: Path) -> None:
    ours = machine(
        tmp_path,
        {
            "etc/crontab": LINE,
            "etc/cron.d/backup": LINE,
            "etc/cron.d/backup~": LINE,
            "etc/cron.d/#backup#": LINE,
            "etc/cron.d/.placeholder": b"# no\n",
            "etc/cron.d/linked": tmp_path / "etc/crontab",
            "etc/cron.d/gone": tmp_path / "nowhere",
            "etc/anacrontab": b"START_HOURS_RANGE=3\n1 5 cron.daily run-parts /etc/cron.daily\n",
            "etc/timezone": b"Europe/Berlin\n",
            f"{SPOOL}/ada": b"0 2 * * * y\n",
            f"{SPOOL}/a.b": b"0 3 * * * z\n",
            f"{SPOOL}/tmp.X1": b"0 4 * * * z\n",
        },
    )
    tabs, left = host_crontabs(ours)
    found = [(tab.name.removeprefix(f"{tmp_path}/"), tab.user, tab.zone) for tab in tabs]
    assert found == [
        ("etc/crontab", "", "Europe/Berlin"), ("etc/cron.d/backup", "", "Europe/Berlin"),
        ("etc/cron.d/linked", "", "Europe/Berlin"), (f"{SPOOL}/a.b", "a.b", "Europe/Berlin"),
        (f"{SPOOL}/ada", "ada", "Europe/Berlin"),
    ]  # fmt: skip
    assert [str(one).removeprefix(f"{tmp_path}/") for one in left] == [
        "etc/cron.d/#backup#: left out: cron reads no file that is called so",
        "etc/cron.d/backup~: left out: cron reads no file that is called so",
        "etc/cron.d/gone: left out: no such file or directory",
        f"{SPOOL}/tmp.X1: left out: it is called as no user",
        "etc/anacrontab:2: cron.daily: left out: it is a job of anacron, which has a period of "
        "days and no time of its own",
    ]
    imported = import_crontabs(tabs)
    assert {one["zone"] for one in imported.tables} == {"Europe/Berlin"}
    assert [one["user"] for one in imported.tables] == ["root", "root", "root", "a.b", "ada"]
    assert read_jobs_toml(imported.text.encode(), file="f").errors == []


def test_a_folder_or_a_queue_among_the_crontabs_is_left_out_and_the_others_are_read(
    tmp_path: Path,
) -> None:
    ours = machine(tmp_path, {"etc/cron.d/z": LINE, "etc/cron.d/old/x": LINE})
    (tmp_path / "var/spool/cron/crontabs/ada").mkdir(parents=True)
    (tmp_path / "etc/crontab").mkdir()
    os.mkfifo(tmp_path / "etc/cron.d/queue", 0o600)
    tabs, left = host_crontabs(ours)
    assert [Path(tab.name).name for tab in tabs] == ["z"]
    names = [str(one).removeprefix(f"{tmp_path}/").split(":")[0] for one in left]
    assert names == ["etc/crontab", "etc/cron.d/old", "etc/cron.d/queue", f"{SPOOL}/ada"]
    assert {one.what for one in left} == {"cron does not read it: it is no regular file"}


def test_names_are_those_of_lsb_where_the_machine_says_so(tmp_path: Path) -> None:
    ours = machine(tmp_path, {"etc/cron.d/BIG": LINE, "etc/cron.d/_a.org-b": LINE,
                              "etc/default/cron": b"# -l\nEXTRA_OPTS='-L 5 -l'\n"})  # fmt: skip
    tabs, _ = host_crontabs(ours)
    assert [Path(tab.name).name for tab in tabs] == ["_a.org-b"]


def test_a_file_that_others_may_write_is_left_out(tmp_path: Path) -> None:
    ours = machine(tmp_path, {"etc/crontab": LINE, "var/spool/cron/crontabs/ada": LINE})
    (tmp_path / "etc/crontab").chmod(0o666)
    (tmp_path / "var/spool/cron/crontabs/ada").chmod(0o644)
    tabs, left = host_crontabs(ours)
    assert tabs == []
    assert "its group or others may write it" in left[0].what
    assert "its mode is 0644, and not 0600" in left[1].what


def test_the_zone_of_a_machine_is_that_of_its_link_or_none(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    assert host_zone(tmp_path) is None
    (tmp_path / "etc/localtime").symlink_to("/usr/share/zoneinfo/Asia/Kolkata")
    assert host_zone(tmp_path) == "Asia/Kolkata"
    (tmp_path / "etc/timezone").write_text("Mars/Base\n")
    assert host_zone(tmp_path) is None


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (LINE + b"61 * * * * root y\n", "/etc/crontab:2: left out: Debian's cron reads no line"),
        (LINE + b"0 1 * * * root z", "/etc/crontab:2: left out: Debian's cron reads no line"),
        (LINE + b"? 1 * * * root z\n", "is no line of it"),
        (LINE + b"0 1 * * friday root z\n", "is no line of it"),
        (LINE + b"0 1 L * * root z\n", "is no line of it"),
        (LINE + b"@every 90s root z\n", "is no line of it"),
        (LINE + b"*/0 1 * * * root z\n", "is no line of it"),
        (LINE + b"what is this\n", "is no line of it"),
        (b"CRON_TZ=Asia/Tokyo\n" + LINE, "left out: CRON_TZ sets a zone for cronie"),
        (LINE + b"10/20 * * * * root /x\n", "is no line of it"),
        (LINE + b"0 2 * * mon/2 root /x\n", "is no line of it"),
        (LINE + b"0 0 1 jan/2 * root /x\n", "is no line of it"),
        (LINE + b"*/5x * * * * root /x\n", "is no line of it"),
        (LINE + b"7-100 * * * * root /x\n", "is no line of it"),
        (LINE + b"\f0 1 * * * root /x\n", "is no line of it"),
        (LINE + b"A=\n", "'A=' is no line of it"),
        (LINE + b"A='x' y\n", "is no line of it"),
        (LINE + b'A="x\n', "is no line of it"),
        (LINE + b"A=1\0\n", "it has a NUL"),
        (LINE + b"* * * * * * root /x\n", "has six fields"),
        (LINE + b"0 1 * * * root " + b"x" * 999 + b"\n", "a command of more than 998 bytes"),
        (LINE * (LINES_MAX + 1), f"it has more than {LINES_MAX} lines"),
    ],
)
def test_a_file_of_which_cron_reads_nothing_is_left_out(content: bytes, why: str) -> None:
    imported = of_host(content)
    assert imported.tables == []
    assert why in said(imported)


@pytest.mark.parametrize(
    "line",
    [
        b"0-30/5,45 */2 1,15 jan-Mar,DEC mon-5", b"@daily", b"00 24 * * *"[:2] + b" 3 * * 7",
        b"*/15\t*  * * sun",
    ],
)  # fmt: skip
def test_a_line_of_debians_cron_is_read(line: bytes) -> None:
    imported = of_host(b"# x\n\nA = 1\n  " + line + b" root /x\n")
    assert len(imported.tables) == 1, said(imported)


@pytest.mark.parametrize(
    "line",
    [
        b"1A=2", b"=2", b"@x=2", b"* = 2", b"A'=2", b"* * * * mon-sun root x",
        b"* * * * 5-0 root x", b"59-0 * * * * root x", b"1-3-5 * * * * root x",
        b"** * * * * root x", b"*5 * * * * root x", b"5.5 * * * * root x", b"0 0 * * 1#1 root x",
        b"0 1 * * fri-mon root z", b"5-1 1 * * * root z", b"*/5-7 * * * * root x",
        b"4294967297 * * * * root x",
    ],
)  # fmt: skip
def test_a_line_that_cron_reads_and_that_is_none_here_is_left_out_alone(line: bytes) -> None:
    imported = of_host(LINE + line + b"\n" + LINE)
    assert [one["schedule"] for one in imported.tables] == ["0 1 * * *"] * 2
    (left,) = imported.left
    assert str(left).startswith("/etc/crontab:2: left out: ")
    assert "is not understood here" in left.what


@pytest.mark.parametrize("line", [b"@daily", b"@daily ", b"0 2 * * *"])
def test_a_line_without_a_command_is_left_out_alone(line: bytes) -> None:
    imported = of_host(b"0 1 * * * x\n" + line + b"\n", user="ada")
    assert len(imported.tables) == 1
    assert "/etc/crontab:2: left out" in said(imported)
    assert "is not understood here" in said(imported)


def test_a_crontab_with_a_user_whom_the_machine_does_not_have_is_left_out(tmp_path: Path) -> None:
    ours = machine(
        tmp_path,
        {
            "etc/crontab": b"0 2 * * * ghost /x\n" + LINE,
            "etc/cron.d/a": b"0 2 * * *\tada\t/x\n@daily ada /x\n",
            f"{SPOOL}/ada": b"0 2 * * * ghost\n",
        },
    )
    imported = import_crontabs(host_crontabs(ours)[0])
    assert [one["user"] for one in imported.tables] == ["ada", "ada", "ada"]
    (left,) = [one for one in imported.left if one.is_whole]
    assert (Path(left.place.file).name, left.place.line) == ("crontab", 1)
    assert "'ghost', which this machine does not have" in left.what


def test_a_line_that_cron_reads_and_raftcron_does_not_leaves_out_what_it_is_a_part_of() -> None:
    imported = of_host(LINE + b"@reboot root z\nSHELL=bash\n" + LINE)
    assert len(imported.tables) == 1
    assert "/etc/crontab:2: not carried over: @reboot has no instant" in said(imported)
    assert "/etc/crontab:3: left out: SHELL 'bash' is not an absolute path" in said(imported)
    assert "left out: line 3 is a part of it, and has an error" in said(imported)


def test_a_job_whose_options_have_an_error_is_left_out() -> None:
    imported = import_crontabs([Tab("f", b"#: timout=5m\n0 1 * * * x\n0 2 * * * y\n", None, "UTC")])
    assert [one["command"] for one in imported.tables] == ["y"]


def test_options_of_ours_are_comments_in_a_crontab_of_cron() -> None:
    imported = of_host(b" #: name=mine overlap=forbid\n#: any comment\n" + LINE)
    assert len(imported.tables) == 1
    assert "overlap" not in imported.tables[0]
    ours = import_crontabs([Tab("f", b"#: name=mine overlap=forbid\n0 1 * * * x\n", None)])
    assert ours.tables[0]["name"] == "default/mine"


def test_the_same_line_of_two_crontabs_is_two_jobs() -> None:
    tabs = [Tab(name, LINE, "", "UTC", is_of_host=True) for name in ("/etc/crontab", "/etc/x")]
    names = [one["name"] for one in import_crontabs(tabs).tables]
    assert len(set(names)) == 2
    assert names[1] == f"{names[0]}-2"


def test_a_file_without_a_zone_is_said_to_be_in_utc() -> None:
    imported = import_crontabs([Tab("f", b"0 1 * * * x\n", None)])
    assert "zone" not in imported.tables[0]
    assert "f:1: default/x-" in said(imported)
    assert "0 1 * * * is in UTC here, if no zone is written" in said(imported)
    zoned = import_crontabs([Tab("f", b"0 1 * * * x\n", None, "Europe/Berlin")])
    assert (zoned.tables[0]["zone"], zoned.left) == ("Europe/Berlin", [])
    named = import_crontabs([Tab("f", b"CRON_TZ=Asia/Tokyo\n0 1 * * * x\n", None)])
    assert (named.tables[0]["zone"], named.left) == ("Asia/Tokyo", [])
