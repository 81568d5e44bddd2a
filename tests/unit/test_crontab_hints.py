"""Every hint of the parsers is followed: what it says is accepted, and means what was meant.

The sites of hints are read from the source, so that a new one without a case here is found.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import cron.calendar.expression
from cron.calendar import remarks
from cron.calendar.expression import parse
from cron.calendar.fields import KINDS
from cron.calendar.remarks import Warned
from cron.crontab.reader import read_crontab, read_file, read_together
from cron.crontab.reading import Problems
from cron.errors import CronError, ScheduleError
from tests.model.oracle import Spec

ROOT = Path(__file__).parents[2]
JOB = "[[job]]\nschedule = '@daily'\ncommand = 'x'\n"
TEST = "LC_ALL=C date | grep -q ^Fri &&"

LITERAL = [
    # wrong line; what the hint says to write; the line that follows it; what was meant, if a time
    ("0 0 * * 1/2 x", "1-6/2", "0 0 * * 1-6/2 x", "0 0 * * 1,3,5"),
    ("0 0 * * 1/2 x", "1-7/2", "0 0 * * 1-7/2 x", "0 0 * * 1,3,5,7"),
    ("0 0 * * 7/2 x", "0-6/2", "0 0 * * 0-6/2 x", "0 0 * * 0,2,4,6"),
    ("0 0 * * mon-sun/x x", "mon-sun/2", "0 0 * * mon-sun/2 x", "0 0 * * 1,3,5,7"),
    ("*/x * * * * x", "*/2", "*/2 * * * * x", "*/2 * * * *"),
    ("3-9/x * * * * x", "3-9/2", "3-9/2 * * * * x", "3,5,7,9 * * * *"),
    ("0 0 * * 3/x x", "3-6/2", "0 0 * * 3-6/2 x", "0 0 * * 3,5"),
    ("*/0 * * * * x", "*/1", "*/1 * * * * x", "* * * * *"),
    ("0 0 * * 3/0 x", "3-6/1", "0 0 * * 3-6/1 x", "0 0 * * 3-6"),
    ("0 1- * * * x", "1-5", "0 1-5 * * * x", "0 1-5 * * *"),
    ("-*/15 * * * * x", "*/15", "*/15 * * * * x", "*/15 * * * *"),
    ("-5 * * * * x", "5", "5 * * * * x", "5 * * * *"),
    ("0 0 * * tues x", "tue", "0 0 * * tue x", "0 0 * * 2"),
    ("0 0 * sept * x", "sep", "0 0 * sep * x", "0 0 * 9 *"),
    ("H/15 * * * * x", "?/15", "?/15 * * * * x", None),
    ("H(0-29)/10 * * * * x", "?(0-29)/10", "?(0-29)/10 * * * * x", None),
    ("R * * * * x", "?", "? * * * * x", None),
    ("@daily x &", "wait", "@daily x & wait", "0 0 * * *"),
    ("0~59 3 * * * x", "?(0-59)", "?(0-59) 3 * * * x", None),
    ("~ * * * * x", "?", "? * * * * x", None),
    ("30 ~ * * * x", "?", "30 ? * * * x", None),
    ("10~ ~4 * * * x", "?(10-59)", "?(10-59) ?(0-4) * * * x", None),
    ("10 ~4/2 * * * x", "?(0-4)/2", "10 ?(0-4)/2 * * * x", None),
    ("0 0 * * mon~fri x", "?(mon-fri)", "0 0 * * ?(mon-fri) x", None),
    ("50~10 * * * * x", "?(50-59)", "?(50-59) * * * * x", None),
    ("0 9 * * FRI#6 x", "5L", "0 9 * * 5L x", "0 9 * * 5L"),
    ("0 9 * * 5#0 x", "5#1", "0 9 * * 5#1 x", "0 9 * * 5#1"),
    ("0 9 5#2 * * x", "5#2", "0 9 * * 5#2 x", "0 9 * * 5#2"),
    ("0 9 L5 * * x", "5L", "0 9 * * 5L x", "0 9 * * 5L"),
    ("0 9 * * L5 x", "5L", "0 9 * * 5L x", "0 9 * * 5L"),
    ("0 9 * * L x", "5L", "0 9 * * 5L x", None),
    ("0 9 * * 1-2#1 x", "1#1,2#1", "0 9 * * 1#1,2#1 x", "0 9 * * 1#1,2#1"),
    ("0 9 * * 15W x", "*", "0 9 15W * * x", "0 9 15W * *"),
    ("0 9 15#2 * * x", "#", "0 9 * * 5#2 x", None),
    ("0 9 L-31 * * x", "L-30", "0 9 L-30 * * x", "0 9 L-30 * *"),
    ("0 9 * * 5#5 x", "5L", "0 9 * * 5L x", None),
    ("0 9 1 * 5L x", "*", "0 9 1 * * x", None),
    ("?(22-6) * * * * x", "?(0-6)", "?(0-6) * * * * x", None),
    ("0 ?(22-6) * * * x", "?(22-23)", "0 ?(22-23) * * * x", None),
    ("0 0 * * ?(5-2) x", "?(5-6)", "0 0 * * ?(5-6) x", None),
    ("?,5 * * * * x", "?", "? * * * * x", None),
    ("?(0-4)/0 * * * * x", "?(0-4)/1", "?(0-4)/1 * * * * x", None),
    ("@every x", "90s", "@every 90s x", "@every 90s"),
    ("@every", "@every 90s", "@every 90s x", "@every 90s"),
    ("@every 90 x", "90s", "@every 90s x", "@every 90s"),
    ("@every 90 x", "90m", "@every 90m x", "@every 5400s"),
    ("@every 5 minutes x", "@every 5m", "@every 5m x", "@every 300s"),
    ("@every minute x", "1m", "@every 1m x", "@every 60s"),
    ("@every 2weeks x", "14d", "@every 14d x", "@every 1209600s"),
    ("@every 1.5h x", "1h30m", "@every 1h30m x", "@every 5400s"),
    ("@every potatoes x", "90s", "@every 90s x", "@every 90s"),
    ("@dayly x", "@daily", "@daily x", "0 0 * * *"),
    ("@fortnightly x", "@weekly", "@weekly x", "0 0 * * 0"),
    ("* * * *", "minute hour day-of-month month day-of-week", None, None),
    ("* * * * ls | wc", "* * * * * ls | wc", "* * * * * ls | wc", "* * * * *"),
    ("0 5 /bin/ls -l x", "0 5 * * * /bin/ls -l x", "0 5 * * * /bin/ls -l x", "0 5 * * *"),
    ("0 9 * * mon, wed x", "0 9 * * mon,wed", "0 9 * * mon,wed x", "0 9 * * 1,3"),
    ("0, 30 9 * * * x", "0,30 9 * * *", "0,30 9 * * * x", "0,30 9 * * *"),
    ("0 9 * * 1 - 5 x", "0 9 * * 1-5", "0 9 * * 1-5 x", "0 9 * * 1-5"),
    ("* * * * * * x", "* * * * *", "* * * * * x", "* * * * *"),
    ("* * * * * * x", "@every 1s", "@every 1s x", "@every 1s"),
    ("* * * * * * x", "'*'", "* * * * * '*' x", "* * * * *"),
    ("*/10 * * * * * x", "@every 10s", "@every 10s x", "@every 10s"),
    ("0 0 12 ? * MON-FRI x", "0 12 * * MON-FRI", "0 12 * * MON-FRI x", "0 12 * * 1-5"),
    ("0 0 12 * * ? x", "0 12 * * *", "0 12 * * * x", "0 12 * * *"),
    ("0 0 0 1 1 * 2030 x", "0 0 1 1 *", "0 0 1 1 * x", "0 0 1 1 *"),
    ("@daily * x", "'*'", "@daily '*' x", "0 0 * * *"),
    ("*/90 * * * * x", "0", "0 * * * * x", "*/90 * * * *"),
    ("*/90 * * * * x", "@every 90m", "@every 90m x", "@every 5400s"),
    ("5/90 * * * * x", "5", "5 * * * * x", "5 * * * *"),
    ("0-59/70 * * * * x", "0", "0 * * * * x", "0 * * * *"),
    ("0 3-9/20 * * * x", "3", "0 3 * * * x", "0 3 * * *"),
    ("0 22-6/2 * * * x", "22,0-6/2", "0 22,0-6/2 * * * x", "0 22,0,2,4,6 * * *"),
    ("0 22-6 * * * x", "22-23,0-6", "0 22-23,0-6 * * * x", "0 22,23,0-6 * * *"),
    ("0 0 * feb-jan/3 * x", "2-11/3", "0 0 * 2-11/3 * x", "0 0 * 2,5,8,11 *"),
    ("0 0 * * 7-1 x", "0-1", "0 0 * * 0-1 x", "0 0 * * 0,1"),
    ("0 0 * * friday x", "5", "0 0 * * 5 x", "0 0 * * 5"),
    ("0 0 1-7 * 5 x", "5#1", "0 0 * * 5#1 x", None),
    ("0 0 1-9 * 5 x", "LC_ALL=C date | grep -q -e ^Fri &&", f"0 0 1-9 * * {TEST} x", None),
    ("0 0 30 2 1 x", "*", "0 0 * 2 1 x", "0 0 * 2 1"),
    ("A=", 'A=""', 'A=""', None),
    ("CRON_TZ=", "CRON_TZ=UTC", "CRON_TZ=UTC", None),
    ("SHELL=", "SHELL=/bin/sh", "SHELL=/bin/sh", None),
    ("SHELL=bash", "/bin/bash", "SHELL=/bin/bash", None),
    ("FOO=bar # c", "FOO=bar", "FOO=bar\n# c", None),
    ("FOO=bar # c", 'FOO="bar # c"', 'FOO="bar # c"', None),
    ("FOO='bar' # c", "FOO='bar'", "FOO='bar'\n# c", None),
    ("CRON_TZ=Europe/Berln", "Europe/Berlin", "CRON_TZ=Europe/Berlin", None),
    ("CRON_TZ=Nowhere", "Europe/Berlin", "CRON_TZ=Europe/Berlin", None),
    ("CRON_TZ=Asia/Tokyo 0 5 * * * x", "CRON_TZ=Asia/Tokyo", "CRON_TZ=Asia/Tokyo\n@daily x", None),
    ("TZ=Asia/Tokyo 0 5 * * * x", "0 5 * * * x", "CRON_TZ=UTC\nTZ=Asia/Tokyo\n0 5 * * * x", None),
    ("RANDOM_DELAY=5\n0 3 * * * x", "?", "? 3 * * * x", None),
    ("#: timeout=5\n@daily x", "5s", "#: timeout=5s\n@daily x", None),
    ("#: timeout=5min\n@daily x", "5m", "#: timeout=5m\n@daily x", None),
    ("#: nmae=a\n@daily x", "name", "#: name=a\n@daily x", None),
    ("#: name\n@daily x", "timeout=2h", "#: timeout=2h\n@daily x", None),
    ("#:\n@daily x", "name=backup", "#: name=backup\n@daily x", None),
    ("#: overlap=forbit\n@daily x", "forbid", "#: overlap=forbid\n@daily x", None),
    ("#: cwd=tmp\n@daily x", "/", "#: cwd=/tmp\n@daily x", None),
    ("#: backoff=5s\n@daily x", "retries=5", "#: backoff=5s retries=5\n@daily x", None),
    (
        "#: overlap=forbid concurrency=2\n@daily x",
        "overlap=allow",
        "#: overlap=allow concurrency=2\n@daily x",
        None,
    ),
    ("#: memory=256\n@daily x", "256M", "#: memory=256M\n@daily x", None),
    ("#: memory=lots\n@daily x", "2G", "#: memory=2G\n@daily x", None),
    ("#: cpu=.5\n@daily x", "0.5", "#: cpu=0.5\n@daily x", None),
    (r"@daily echo \\", r"\\\\", r"@daily echo \\\\", None),
    ("@daily date +%F", r"\%", r"@daily date +\%F", None),
]
CHOSEN = [
    # wrong file; a part of the hint; the file of someone who followed it
    ("61 * * * * x", "a minute from 0 to 59", "59 * * * * x"),
    ("* 24 * * * x", "an hour from 0 to 23", "* 23 * * * x"),
    ("0 0 mon * * x", "a number in 1-31", "0 0 1 * * x"),
    ('#: name=a paused=" "\n@daily x', "write why, in at most", "#: name=a paused=moves\n@daily x"),
    ("0 0 * * 9y x", "or one of sun mon", "0 0 * * sun x"),
    ("?/61 * * * * x", "a step of at most 60", "?/60 * * * * x"),
    ("?(0-9)/ * * * * x", "like ?(0-9)/2", "?(0-9)/2 * * * * x"),
    ("0 0 30 2 * x", "a day from 1 to 29", "0 0 29 2 * x"),
    ("0 0 ?(30-31) 2 * x", "a day from 1 to 29", "0 0 ?(1-29) 2 * x"),
    ("0 0 31 ? * x", "a day from 1 to 29", "0 0 29 ? * x"),
    (f"0 0 {'1,' * 200}1 * * x", "split it", "0 0 1 * * x\n0 0 2 * * x"),
    ("0\u00a00 * * * x", "with blanks or tabs between fields", "0 0 * * * x"),
    ("@every 367d x", "from 1s to 366d", "@every 366d x"),
    ("@every 0 x", "from 1s to 366d", "@every 1s x"),
    ("@every 9999999999 x", "from 1s to 366d", "@every 366d x"),
    ("@reboot x", "the machine's own init", "# in a unit of systemd"),
    ("0 0 ? * * x", "or write a value yourself", "0 0 1 * * x"),
    ("0 0 ?(29-31) * * x", "or write a value yourself", "0 0 31 * * x"),
    ("@daily", "the command after the schedule", "@daily x"),
    ("run this", "# before a comment", "# run this"),
    ("* * * * * root x", "--system", "* * * * * x"),
    ("A='b", "end the value with '", "A='b'"),
    ("A='b' c", "with the other kind of quotes", "A=\"'b' c\""),
    ("''=x", "NAME=value", "NAME=value"),
    ("LOGNAME=x", "remove the line", ""),
    ("MAILTO=a:b\n@daily x", "ops@example.com", "MAILTO=ops@example.com\n@daily x"),
    ("MAILTO=a\n@daily x", "write targets = ...", '# see docs/alerts.md\nMAILTO=""\n@daily x'),
    ("#: alert=fialed to=a\n@daily x", "did you mean failed", "#: alert=failed to=a\n@daily x"),
    ("#: alert=failed: to=a\n@daily x", "failed:2", "#: alert=failed:2 to=a\n@daily x"),
    ("#: alert=late to=a\n@daily x", "late:10m", "#: alert=late:10m to=a\n@daily x"),
    ("#: alert=dead:2 to=a\n@daily x", "write dead", "#: alert=dead to=a\n@daily x"),
    ("#: alert=failed:0 to=a\n@daily x", "failed:2", "#: alert=failed:2 to=a\n@daily x"),
    (
        "#: alert=disk-filling:0% to=a\n@daily x",
        "disk-filling:90%",
        "# disk-filling:90% in alerts.toml\n@daily x",
    ),
    (
        f"#: alert={','.join(f'late:{n}m' for n in range(1, 12))} to=a\n@daily x",
        "leave some of them out",
        "#: alert=late:1m to=a\n@daily x",
    ),
    ("#: alert=dead,dead to=a\n@daily x", "remove one", "#: alert=dead to=a\n@daily x"),
    ("#: alert=clock-off to=a\n@daily x", "in alerts.toml", "@daily x"),
    ("#: alert=dead\n@daily x", "to=ops", "#: alert=dead to=ops\n@daily x"),
    ("#: remind=1h\n@daily x", "alert=failed:2", "#: alert=failed:2 to=a remind=1h\n@daily x"),
    ("#: alert=dead to=a/b\n@daily x", "to=ops", "#: alert=dead to=ops\n@daily x"),
    (
        f"#: alert=dead to={','.join(f'c{n}' for n in range(11))}\n@daily x",
        "leave some of them out",
        "#: alert=dead to=c0\n@daily x",
    ),
    ("TZ=UTC\n@daily x", "CRON_TZ sets the time zone", "CRON_TZ=UTC\n@daily x"),
    ("RAFTCRON_JOB=x", "remove it", ""),
    ("USER=x", "the option user", "#: user=x\n@daily x"),
    ("PATH=$PATH:/x", "write it out", "PATH=/bin:/x"),
    ("HOME=~", "write it out", "HOME=/root"),
    ("#: name=a\n\n@daily x", "directly above their job", "\n#: name=a\n@daily x"),
    ("#: name=a name=b\n@daily x", "remove one of the two", "#: name=b\n@daily x"),
    ("#: name=-x\n@daily x", "A-Z a-z 0-9 _ . -", "#: name=x\n@daily x"),
    ("#: name=a\n@daily x\n#: name=a\n@daily y", "another name", "#: name=a\n@daily x\n@daily y"),
    ("#: name='x\n@daily x", "quote the whole value", "#: name='x'\n@daily x"),
    ("#: colour=red\n@daily x", "known are name", "#: name=red\n@daily x"),
    ("#: user=a:b\n@daily x", "up to 32 of", "#: user=a_b\n@daily x"),
    ("#: catchup=first\n@daily x", "known are none last all", "#: catchup=all\n@daily x"),
    (f"#: cwd=/{'x' * 256}\n@daily x", "shorten it", "#: cwd=/x\n@daily x"),
    ("#: priority=10\n@daily x", "choose one from 0 to 9", "#: priority=9\n@daily x"),
    ("#: priority=high\n@daily x", "write one from 0 to 9", "#: priority=0\n@daily x"),
    ("#: collection=a/b\n@daily x", "A-Z a-z 0-9 _ . -", "#: collection=a_b\n@daily x"),
    ("#: handler=command\n@daily 1", "leave the option out", "@daily true"),
    ("#: where=''\n@daily x", "leave it out", "@daily x"),
    ("#: where=zone=\n@daily x", "zone=eu", "#: where=zone=eu\n@daily x"),
    ("#: cpu=0\n@daily x", "leave it out", "@daily x"),
    ("#: memory=1K\n@daily x", "choose one from 1M to 1024T", "#: memory=1M\n@daily x"),
    ("#: retries=1 fatal-on=0\n@daily x", "leave it out", "#: retries=1\n@daily x"),
    (
        "#: retries=1 fatal-on=2 retry-on=2\n@daily x",
        "remove it from one of them",
        "#: retries=1 fatal-on=2 retry-on=3\n@daily x",
    ),
    ("#: each=a parts=2\n@daily x", "remove one of the two", "#: each=a\n@daily x"),
    ("#: after=a,,b\n@daily x", "with commas between", "#: after=a,b\n@daily x"),
    (
        f"#: after={','.join(f'a{n}' for n in range(21))}\n@daily x",
        "follow a job that follows them",
        "#: after=a0\n@daily x",
    ),
    ("#: after=a after-any=a\n@daily x", "name each job once", "#: after=a\n@daily x"),
    ("#: start=tomorrow\n@daily x", "a date like 2026-12-31", "#: start=2026-12-31\n@daily x"),
    ("#: start=2999-01-01\n@daily x", "leave it out", "@daily x"),
    ("#: start=2027-02-01 end=2027-01-31\n@daily x", "a later time", "#: end=2027-01-31\n@daily x"),
    ("#: calendar=hol\n@daily x", "hol:skip", "#: calendar=hol:skip\n@daily x"),
    ("#: calendar=a/b:skip\n@daily x", "A-Z a-z 0-9 _ . -", "#: calendar=a_b:skip\n@daily x"),
    ("#: calendar=a:only\n@every 90s x", "five fields", "#: calendar=a:only\n*/2 * * * * x"),
    ("#: secret=A\n@daily x", "VARIABLE:NAME", "#: secret=A:db/x\n@daily x"),
    (f"#: secret=A:{'x' * 201}\n@daily x", "shorten it", "#: secret=A:x\n@daily x"),
    ("#: secret=PATH:x\n@daily x", "another variable", "#: secret=A:x\n@daily x"),
    ("#: secret=A:x,A:y\n@daily x", "remove one of the two", "#: secret=A:x\n@daily x"),
    (
        f"#: secret={','.join(f'A{n}:x' for n in range(21))}\n@daily x",
        "several values into one secret",
        "#: secret=A:x\n@daily x",
    ),
    ("#: jitter=5m\n*/5 * * * * x", "make it shorter", "#: jitter=4m\n*/5 * * * * x"),
    (
        "#: jitter=5m deadline=5m\n@daily x",
        "longer than the jitter",
        "#: jitter=5m deadline=6m\n@daily x",
    ),
    ("TZ=UTC\n#: secret=TZ:x\n@daily x", "remove that line", "#: secret=TZ:x\n@daily x"),
    ("KEY=rc1_0123456789abcdef_\n@daily x", "secret=KEY:NAME", "#: secret=KEY:a\n@daily x"),
    ("@daily x http://a:b@c", "secret=VARIABLE:NAME", '#: secret=A:a\n@daily x "$A"'),
    ('#: handler=h\n@daily {"token": "x"}', "the handler look it up", "#: handler=h\n@daily 1"),
    ("#: metrics=true\n@daily x", "write metrics=yes", "#: metrics=yes\n@daily x"),
    ("#: handler=a user=b\n@daily 1", "the user of its worker", "#: handler=a\n@daily 1"),
    ("#: heartbeat=5s\n@daily x", "name the handler", "#: heartbeat=5s handler=a\n@daily 1"),
    (
        "#: retries=2 backoff=2m backoff-max=1m\n@daily x",
        "the longest delay",
        "#: retries=2 backoff=2m backoff-max=2m\n@daily x",
    ),
    (
        "#: handler=a timeout=5s heartbeat=9s\n@daily 1",
        "make it shorter",
        "#: handler=a timeout=5s heartbeat=4s\n@daily 1",
    ),
    (
        "#: retries=2 deadline=5s\n@daily x",
        "give it more time",
        "#: retries=2 deadline=5m\n@daily x",
    ),
    ("#: handler=a\n@daily {", "write JSON", '#: handler=a\n@daily {"month": 11}'),
    (f"#: handler=a\n@daily {'9' * 6000}", "in quotes", f'#: handler=a\n@daily "{"9" * 6000}"'),
    ("#: handler=a\n@daily NaN", "write JSON", "#: handler=a\n@daily"),
    (f"#: handler=a\n@daily {'[' * 9999}", "pass a name", "#: handler=a\n@daily 1"),
    ("@daily a\0b", "remove it", "@daily ab"),
    (b"@daily \xff", "save the file as UTF-8", "@daily x"),
    (b"# \xff\n@daily x", "save the file as UTF-8", "@daily x"),
    (b"\xff\xfe", "save the file as UTF-8", ""),
    (b"\xef\xbb\xbf@daily x", "without one", "@daily x"),
    ("@daily x\r\n", "Unix line ends", "@daily x\n"),
    (b"@daily " + b"x" * 70_000, "put a command into a script", "@daily /a/script"),
]
SYSTEM = [
    ("@daily", "the user and then the command", "@daily root x"),
    ("@daily root", "a user between schedule and command", "@daily root x"),
    ("@daily 1root x", "a user between schedule and command", "@daily root x"),
    ("#: user=a\n@daily root x", "remove the option", "@daily root x"),
    ("* * * * * * root x", "write * * * * *", "* * * * * root x"),
]
TOML = [
    ("x = 1", "known are job", ""),
    ("schedule = '@daily'", "below a line [[job]]", JOB),
    ("job = 1", "begin each with [[job]]", JOB),
    ("[[job]", "https://toml.io", JOB),
    ("a.b.c.d.e.f = 1", "write plain [[job]] tables", JOB),
    (f"{JOB}payload = {'[' * 99}{']' * 99}", "write plain [[job]] tables", JOB),
    (f"{JOB}retries = 0x{'f' * 6000}", "shorten a number", f"{JOB}retries = 0xf"),
    (b"\xff", "save the file as UTF-8", ""),
    (JOB.replace("'x'", f"'{'x' * 70_000}'"), "put it into a script", JOB),
    (f"{JOB}nmae = 'x'", "did you mean name?", f"{JOB}name = 'x'"),
    (f"{JOB}cwd = 1", 'cwd = "..."', f'{JOB}cwd = "/x"'),
    (f"{JOB}retries = 1.5", "retries = 3", f"{JOB}retries = 3"),
    (f"{JOB}cpu = true", "cpu = 0.5", f"{JOB}cpu = 0.5"),
    (
        "[[job]]\nschedule = '@daily'\nhandler = 'h'\npayload = 1\npayload-json = '1'",
        "remove one of them",
        "[[job]]\nschedule = '@daily'\nhandler = 'h'\npayload-json = '1'",
    ),
    (f"{JOB}after = 3", 'after = ["billing/import"]', f'{JOB}after = ["billing/import"]'),
    (
        f"{JOB}retries = 1\nretry-on = 1.5",
        "retry-on = [75, 111]",
        f"{JOB}retries = 1\nretry-on = [75, 111]",
    ),
    (
        "[[job]]\ncommand = 'x'",
        'schedule = "@hourly"',
        '[[job]]\ncommand = "x"\nschedule = "@hourly"',
    ),
    ("[[job]]\nschedule = '@daily'", "the command for the shell", JOB),
    ("[[job]]\nschedule = 1\ncommand = 'x'", 'schedule = "..."', JOB),
    (f"{JOB}zone = 'Europe/Berln'", "Europe/Berlin", f"{JOB}zone = 'Europe/Berlin'"),
    (f"{JOB}timeout = '1.x'", "90s", f"{JOB}timeout = '90s'"),
    (f"{JOB}env = {{ CRON_TZ = 'UTC' }}", "zone = ", f"{JOB}zone = 'UTC'"),
    (f"{JOB}env = 1", 'env = { NAME = "value" }', f'{JOB}env = {{ NAME = "value" }}'),
    (f"{JOB}env = {{ 'a=b' = 'x' }}", "A-Z a-z 0-9 _", f"{JOB}env = {{ A = 'x' }}"),
    (f"{JOB}env = {{ A = 1 }}", "in quotes", f"{JOB}env = {{ A = '1' }}"),
    (f"{JOB}secret = 1", "PGPASSWORD:db/billing", f'{JOB}secret = ["PGPASSWORD:db/billing"]'),
    (f"{JOB}secret = ['A:x,B:y']", "each as an item", f"{JOB}secret = ['A:x', 'B:y']"),
    (
        f"{JOB}payload = 1",
        "the handler's name",
        JOB.replace("command = 'x'", "handler = 'a'\npayload = 1"),
    ),
    (f"{JOB}handler = 'a'", "remove the command", JOB.replace("command = 'x'", "handler = 'a'")),
    (
        "[[job]]\nschedule = '@daily'\nhandler = 'a'\npayload = 2026-01-01",
        "write texts, numbers",
        "[[job]]\nschedule = '@daily'\nhandler = 'a'\npayload = '2026-01-01'",
    ),
    (f'{JOB}name = "a\\u0000"', "remove it", f"{JOB}name = 'a'"),
    (f'{JOB}env = {{ A = "a\\u0000" }}', "remove it", f"{JOB}env = {{ A = 'a' }}"),
    ("[[job]]\nschedule = '@reboot'\ncommand = 'x'", "own init", ""),
    (
        "[[job]]\nschedule = 'CRON_TZ=Asia/Tokyo 0 5 * * *'\ncommand = 'x'",
        'zone = "Asia/Tokyo"',
        '[[job]]\nschedule = "0 5 * * *"\nzone = "Asia/Tokyo"\ncommand = "x"',
    ),
    ("[[job]]\nschedule = '@daily x'\ncommand = 'x'", "remove what follows @daily", JOB),
    (
        "[[job]]\nschedule = '@every 5s x'\ncommand = 'x'",
        "@every 5s",
        "[[job]]\nschedule = '@every 5s'\ncommand = 'x'",
    ),
    (
        "[[job]]\nschedule = '0 5 * * * x'\ncommand = 'x'",
        "'0 5 * * *'",
        "[[job]]\nschedule = '0 5 * * *'\ncommand = 'x'",
    ),
    (
        "[[job]]\nschedule = ' '\ncommand = 'x'",
        "@hourly",
        "[[job]]\nschedule = '@hourly'\ncommand = 'x'",
    ),
]

EXPRESSIONS = [
    ("", "write five fields", "0 0 * * *"),
    ("@reboot", "a systemd unit", "@daily"),
    ("0 5 * * * cmd", "write '0 5 * * *' alone", "0 5 * * *"),
]

UNREACHED = {
    # The largest files: their limits have tests of their own, with smaller limits.
    ("jobs.py", "_has_room"),
    ("reading.py", "is_readable"),
    ("jobfile.py", "_check_texts"),
    ("environment.py", "set"),
    ("payload.py", "_bounded"),
    # Calendars have tests of their own, in test_calendar_bounds.py.
    ("calendar_file.py", "read_days"),
    ("calendar_file.py", "_dates"),
    ("calendar_file.py", "_ics"),
    ("calendar_file.py", "_events"),
    ("calendar_file.py", "_all_days"),
    # Not a person's: a schedule without a place, and a second opinion that always agreed so far.
    ("schedule.py", "_unbounded"),
    ("schedule.py", "check"),
}


def read(text, *, system=False, name="tab"):
    content = text if isinstance(text, bytes) else text.encode()
    return read_file(name, content, system=system)


def hints(reading):
    return [problem.hint for problem in reading.problems]


def follow(wrong, said, right, **how):
    reading = read(wrong, **how)
    assert reading.problems
    assert any(said in hint for hint in hints(reading)), hints(reading)
    if right is None:
        return None
    followed = read(right, **how)
    assert followed.errors == [], right
    return followed


def meaning(schedule):
    if schedule.startswith("@every"):
        return parse(schedule).every_s
    spec = Spec(schedule)
    return spec.sets, spec.is_both_days, spec.specials


@pytest.mark.parametrize(("wrong", "said", "right", "meant"), LITERAL)
def test_what_a_hint_says_to_write_is_accepted_and_means_what_was_meant(wrong, said, right, meant):
    reading = follow(wrong, said, right)
    if right is None:
        return
    # The option -e of grep says the same without it where there is one weekday.
    assert said.replace("-e ", "") in right or said in right
    messages = {problem.message for problem in read(wrong).problems}
    if "\\" not in right:
        assert not messages & {problem.message for problem in reading.problems}
    if meant is not None:
        (job,) = reading.jobs
        found = job.schedule.every_s or meaning(job.schedule.resolved)
        assert found == meaning(meant)


@pytest.mark.parametrize(("wrong", "said", "right"), CHOSEN)
def test_a_choice_that_a_hint_offers_is_accepted(wrong, said, right):
    follow(wrong, said, right)


@pytest.mark.parametrize(("wrong", "said", "right"), SYSTEM)
def test_a_hint_for_a_system_crontab_is_accepted_there(wrong, said, right):
    follow(wrong, said, right, system=True)


@pytest.mark.parametrize(("wrong", "said", "right"), TOML)
def test_a_hint_for_a_job_file_is_accepted_there(wrong, said, right):
    follow(wrong, said, right, name="jobs.toml")


@pytest.mark.parametrize(("wrong", "said", "right"), EXPRESSIONS)
def test_a_hint_for_an_expression_is_accepted(wrong, said, right):
    with pytest.raises(ScheduleError) as caught:
        parse(wrong)
    assert said in caught.value.hint
    parse(right)


def test_what_two_files_cannot_both_declare_is_accepted_after_the_hint():
    named = ("a", b"#: name=x\n@daily x")
    (_, first), (_, second) = read_together(
        [named, ("b", named[1])], system=False, zone="UTC", tenant="default"
    )
    assert "give one of them another name" in hints(second)[0]
    (_, first), (_, second) = read_together(
        [named, ("b", b"#: name=y\n@daily x")], system=False, zone="UTC", tenant="default"
    )
    assert first.problems == second.problems == []
    cycle = [("a", b"#: name=x after=y\n@daily x"), ("b", b"#: name=y after=x\n@daily x")]
    (_, first), (_, second) = read_together(cycle, system=False, zone="UTC", tenant="default")
    assert "take one of them out of after" in hints(second)[0]
    twice = read_together([named, named], system=False, zone="UTC", tenant="default")
    assert hints(twice[1][1]) == ["give it once"]


# Every site


def sites():
    """Return the calls in the source that give a hint of their own: file, function, lines."""
    found = {}
    for path in sorted(
        [*(ROOT / "cron/calendar").glob("*.py"), *(ROOT / "cron/crontab").glob("*.py")]
    ):
        if path.name.startswith("import") or path.name in OF_IMPORTERS:
            continue  # files of other schedulers have tests of their own, in test_import*.py
        for function in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not isinstance(function, ast.FunctionDef):
                continue
            for node in ast.walk(function):
                if (
                    isinstance(node, ast.Call)
                    and _name(node.func) in _GIVERS
                    and not _passes_on(node)
                ):
                    found[(str(path), node.lineno, node.end_lineno)] = (path.name, function.name)
    return found


OF_IMPORTERS = ("kubernetes_forms.py", "located.py", "robfig.py")
_GIVERS = ("ScheduleError", "InvalidInput", "Warned", "error", "warn", "note")


def _name(function):
    return getattr(function, "id", getattr(function, "attr", ""))


def _passes_on(call):
    """Whether the hint is that of another error."""
    return any(isinstance(one, ast.Attribute) and one.attr == "hint" for one in ast.walk(call))


def test_every_site_of_a_hint_has_a_case_here(monkeypatch):
    reached = set()

    def watch(kind, method):
        original = getattr(kind, method)

        def watched(*arguments, **named):
            frame = sys._getframe(1)
            for _ in range(4):  # through constructors of errors, and functions that call this one
                reached.add((frame.f_code.co_filename, frame.f_lineno))
                frame = frame.f_back
            return original(*arguments, **named)

        monkeypatch.setattr(kind, method, watched)

    def noted(column, message, hint):
        reached.add((sys._getframe(1).f_code.co_filename, sys._getframe(1).f_lineno))
        return Warned(column, message, hint)

    for module in (remarks, cron.calendar.expression):
        monkeypatch.setattr(module, "Warned", noted)
    watch(CronError, "__init__")
    watch(ScheduleError, "__init__")
    for method in ("error", "warn", "note"):
        watch(Problems, method)
    parse.cache_clear()
    for wrong, *_ in [*LITERAL, *CHOSEN]:
        read(wrong)
    for wrong, *_ in EXPRESSIONS:
        with pytest.raises(ScheduleError):
            parse(wrong)
    for wrong, *_ in SYSTEM:
        read(wrong, system=True)
    for wrong, *_ in TOML:
        read(wrong, name="jobs.toml")
    read_together([("a", b""), ("a", b"")], system=False, zone="UTC", tenant="default")
    named = b"#: name=x\n@daily x"
    read_together([("a", named), ("b", named)], system=False, zone="UTC", tenant="default")
    cycle = b"#: name=x after=x\n@daily x"
    read_together([("a", cycle)], system=False, zone="UTC", tenant="default")
    missing = [
        (path, line, where)
        for (path, line, end), where in sites().items()
        if where not in UNREACHED
        and not any(path == file and line <= at <= end for file, at in reached)
    ]
    assert not missing, "\n".join(map(str, missing))


# Wrong fields, drawn


@st.composite
def fields(draw):
    """Return a place and what somebody might write there: often wrong, and in several ways."""
    place = draw(st.integers(0, 4))
    kind = KINDS[place]
    number = st.integers(kind.lowest, kind.highest).map(str)
    name = st.sampled_from([*kind.names, *kind.full_names, "mond", "x"]) if kind.names else number
    other = st.sampled_from(["", "99", "-1", "L", "5L", "15W", "99W", "H", "fri#3", "L-3", "60"])
    end = st.one_of(number, name, other)
    step = st.sampled_from(["", "", "/2", "/0", "/x", "/", "/7", "/99"])
    body = st.one_of(end, st.tuples(end, end).map("-".join), st.sampled_from(["*", "-*", "?"]))
    return place, draw(st.tuples(body, step).map("".join))


def followed(place, part, error):
    """Return the field after the hint of an error was followed."""
    kind, message, hint = KINDS[place], str(error), error.hint
    near = re.match(r"did you mean ([a-z]+)\?", hint)
    wrong = re.search(rf"{kind.name} '?([^' ]+)'? is not (?:a number|in )", message)
    literal = re.match(r"write (?:a step (?:of at least 1, )?like )?([-0-9a-zA-Z*?,/()]+)", hint)
    if "number missing" in message:
        return "1-5"
    if hint.endswith(", and * here"):
        return "*"
    if near:
        return part.replace(wrong[1], near[1], 1)
    if wrong and hint.startswith(("write a number in", "write a ", "write an ")):
        return re.sub(rf"(?<![0-9]){re.escape(wrong[1])}", str(kind.lowest), part, count=1)
    if "step of at most" in hint:
        return re.sub(r"/[0-9]+", f"/{hint.split()[-1]}", part)
    assert literal, (part, message, hint)
    return literal[1].rstrip(",")


@given(fields())
@example((1, "22-6/x"))
@example((4, "7/2"))
@example((4, "5-sun/0"))
@example((2, "99W"))
@example((2, "5L"))
@example((2, "fri#3/2"))
def test_a_drawn_field_is_accepted_after_its_hints_were_followed_one_by_one(drawn):
    place, part = drawn
    for _ in range(5):
        words = ["0", "0", "*", "*", "*"]
        words[place] = part
        try:
            parse(" ".join(words))
        except ScheduleError as error:
            part = followed(place, part, error)
        else:
            return
    raise AssertionError(f"{drawn} is refused in turn, at last as {part}")


@given(st.integers(0, 4), st.integers(0, 59), st.integers(0, 59), st.integers(1, 9))
@example(1, 22, 6, 2)
@example(4, 7, 1, 1)
def test_a_range_that_wraps_means_what_its_note_says_to_write(place, low, high, step):
    kind = KINDS[place]
    low, high = (kind.lowest + one % (kind.highest - kind.lowest + 1) for one in (low, high))
    words = ["0", "0", "*", "*", "*"]
    words[place] = f"{low}-{high}/{step}"
    if place == 2:
        words[3] = "1"  # every day comes
    expression = parse(" ".join(words))
    assert [set(one) for one in Spec(" ".join(words)).sets][place] == values(expression, place)
    for note in expression.notes:
        words[place] = note.hint.rpartition("write ")[2]
        plain = parse(" ".join(words))
        assert plain.notes == ()
        assert plain.fields[place].mask == expression.fields[place].mask


def values(expression, place):
    mask = expression.fields[place].mask
    return {value for value in range(60) if mask >> value & 1}


@pytest.mark.parametrize("line", ["0 0 1-9 * 5 x", "0 0 1-8 * 1 x"])
def test_a_command_that_a_hint_has_ask_for_the_day_asks_in_the_zone_of_the_schedule(
    line: str,
) -> None:
    reading = read_crontab(f"CRON_TZ=Asia/Tokyo\n{line}\n".encode(), file="f")
    assert [one.hint for one in reading.problems if "TZ=Asia/Tokyo LC_ALL=C date" in one.hint]
    assert not [
        one.hint
        for one in reading.problems
        if " LC_ALL=C date" in one.hint.replace("TZ=Asia/Tokyo LC_ALL=C date", "")
    ]
