"""Every example of Debian's crontab(5), old and new: accepted, and due when the manual says."""

from __future__ import annotations

import pytest

from cron.calendar.schedule import compile
from cron.crontab.reader import read_crontab
from launcher.protocol.names import format_time, parse_time

NOON_S = parse_time("2026-11-20T12:00:00Z")  # a Friday

EXAMPLE = rb"""
# use /bin/bash to run commands, instead of the default /bin/sh
SHELL=/bin/bash
# mail any output to `paul', no matter whose crontab this is
MAILTO=paul
#
# run five minutes after midnight, every day
5 0 * * *       $HOME/bin/daily.job >> $HOME/tmp/out 2>&1
# run at 2:15pm on the first of every month -- output mailed to paul
15 14 1 * *     $HOME/bin/monthly
# run at 10 pm on weekdays, annoy Joe
0 22 * * 1-5	mail -s "It's 10pm" joe%Joe,%%Where are your kids?%
23 0-23/2 * * * echo "run 23 minutes after midn, 2am, 4am ..., everyday"
5 4 * * sun     echo "run at 5 after 4 every sunday"
0 */4 1 * mon   echo "run every 4th hour on the 1st and on every Monday"
0 0 */2 * sun   echo "run at midn on every Sunday that's an uneven date"
# Run on every second Saturday of the month
0 4 8-14 * *    test $(date +\%u) -eq 6 && echo "2nd Saturday"
# Execute a program and run a notification every second Sunday
0 4 * * Sun     expr `date +\%W` \% 2 > /dev/null || /scripts/fortnightly
# Run once every 9th day, even across week, month, and year boundaries:
33 22 * * *     expr $(date +\%s) / 60 / 60 / 24 \% 9 > /dev/null || echo Wax the floor.
"""
DUE = [
    "2026-11-21T00:05:00Z",
    "2026-12-01T14:15:00Z",
    "2026-11-20T22:00:00Z",
    "2026-11-20T12:23:00Z",
    "2026-11-22T04:05:00Z",
    "2026-11-23T00:00:00Z",
    "2026-11-29T00:00:00Z",
    "2026-12-08T04:00:00Z",
    "2026-11-22T04:00:00Z",
    "2026-11-20T22:33:00Z",
]

SYSTEM = rb"""
SHELL=/bin/sh
PATH=/usr/local/sbin:/usr/local/bin:/sbin:/bin:/usr/sbin:/usr/bin
# m h dom mon dow user	command
17 *	* * *	root    cd / && run-parts --report /etc/cron.hourly
25 6	* * *	root	test -x /usr/sbin/anacron || ( cd / && run-parts --report /etc/cron.daily )
47 6	* * 7	root	test -x /usr/sbin/anacron || ( cd / && run-parts --report /etc/cron.weekly )
52 6	1 * *	root test -x /usr/sbin/anacron || ( cd / && run-parts --report /etc/cron.monthly )
#
"""
SYSTEM_DUE = [
    "2026-11-20T12:17:00Z",
    "2026-11-21T06:25:00Z",
    "2026-11-22T06:47:00Z",
    "2026-12-01T06:52:00Z",
]


def due(reading):
    assert reading.errors == []
    return [format_time(compile(job.schedule).next(NOON_S)) for job in reading.jobs]


def test_the_example_crontab_of_the_manual_is_due_when_its_comments_say():
    reading = read_crontab(EXAMPLE, file="tab")
    assert due(reading) == DUE
    joe = reading.jobs[2].work
    assert joe.argv == ("/bin/bash", "-c", 'mail -s "It\'s 10pm" joe')
    assert joe.stdin == "Joe,\n\nWhere are your kids?\n"


def test_the_system_crontab_of_the_manual_is_due_when_debian_runs_it():
    reading = read_crontab(SYSTEM, file="crontab", system=True)
    assert due(reading) == SYSTEM_DUE
    assert {job.work.user for job in reading.jobs} == {"root"}
    assert reading.warnings == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # 4:30 am on the 1st and 15th of each month, plus every Friday
        ("30 4 1,15 * 5", ["2026-11-27T04:30:00Z", "2026-12-01T04:30:00Z"]),
        ("0 8-11 * * *", ["2026-11-21T08:00:00Z", "2026-11-21T09:00:00Z"]),
        ("0 1,2,5,9 * * *", ["2026-11-21T01:00:00Z", "2026-11-21T02:00:00Z"]),
        ("0 0-4,8-12 * * *", ["2026-11-21T00:00:00Z", "2026-11-21T01:00:00Z"]),
        ("0 0-23/2 * * *", ["2026-11-20T14:00:00Z", "2026-11-20T16:00:00Z"]),
        (
            "0 0,2,4,6,8,10,12,14,16,18,20,22 * * *",
            ["2026-11-20T14:00:00Z", "2026-11-20T16:00:00Z"],
        ),
        ("0 */2 * * *", ["2026-11-20T14:00:00Z", "2026-11-20T16:00:00Z"]),
        ("0-59 0-23 1-31 1-12 0-7", ["2026-11-20T12:01:00Z", "2026-11-20T12:02:00Z"]),
        ("@yearly", ["2027-01-01T00:00:00Z", "2028-01-01T00:00:00Z"]),
        ("@annually", ["2027-01-01T00:00:00Z", "2028-01-01T00:00:00Z"]),
        ("@monthly", ["2026-12-01T00:00:00Z", "2027-01-01T00:00:00Z"]),
        ("@weekly", ["2026-11-22T00:00:00Z", "2026-11-29T00:00:00Z"]),
        ("@daily", ["2026-11-21T00:00:00Z", "2026-11-22T00:00:00Z"]),
        ("@midnight", ["2026-11-21T00:00:00Z", "2026-11-22T00:00:00Z"]),
        ("@hourly", ["2026-11-20T13:00:00Z", "2026-11-20T14:00:00Z"]),
    ],
)
def test_what_the_manual_says_of_fields_holds(text, expected):
    reading = read_crontab(f"{text} true\n".encode(), file="tab")
    assert reading.errors == []
    ticks = compile(reading.jobs[0].schedule)
    first_s = ticks.next(NOON_S)
    assert [format_time(first_s), format_time(ticks.next(first_s))] == expected
