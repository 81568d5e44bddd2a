"""Crontabs written from known jobs are read back as those jobs; `%` is what crontab(5) says."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from cron.calendar.duration import format_duration
from cron.crontab.reader import read_crontab, split_percent
from cron.job import Catchup, Overlap

BLANKS = st.sampled_from([" ", "\t", "  ", " \t"])
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0\n\r"), max_size=20)
SCHEDULES = st.sampled_from(
    ["* * * * *", "*/5 1-5 * * mon", "@daily", "@every 90s", "? ?(2-6) * * *", "0 0 1,15 * 5"]
)


class Wanted(NamedTuple):
    """One job as a person might want it, and the lines between it and the one before."""

    schedule: str
    command: str
    overlap: Overlap
    catchup: Catchup
    timeout_s: int
    is_in_two_lines: bool
    comment: str
    variable: str
    zone: str


WANTED = st.builds(
    Wanted,
    SCHEDULES,
    TEXT.map(lambda text: "run " + text.replace("%", "").replace("\\", "")),
    st.sampled_from(Overlap),
    st.sampled_from(Catchup),
    st.integers(1, 31 * 86_400),
    st.booleans(),
    TEXT.filter(lambda text: not text.startswith(":")),
    TEXT.map(lambda text: text.replace('"', "")),
    st.sampled_from(["", "UTC", "Asia/Tokyo", "America/New_York"]),
)


def written(jobs, blank):
    """Return the jobs as a crontab, in the way of somebody who likes `blank` between words."""
    lines = []
    for number, job in enumerate(jobs):
        lines += ["", f"{blank}#{job.comment}", f'V{number % 3}{blank}={blank}"{job.variable}"']
        if job.zone:
            lines.append(f"CRON_TZ={job.zone}")
        lines.append(f"{blank}#:{blank}name=j{number}{blank}overlap={job.overlap.name.lower()}")
        rest = f"catchup='{job.catchup.name.lower()}' timeout={format_duration(job.timeout_s)}"
        if job.is_in_two_lines:
            lines.append(f"#: {rest}")
        else:
            lines[-1] += blank + rest
        lines.append(blank + job.schedule.replace(" ", blank) + blank + job.command)
    return "\n".join(lines).encode()


@given(st.lists(WANTED, max_size=6), BLANKS)
def test_what_is_written_is_what_is_read(jobs, blank):
    reading = read_crontab(written(jobs, blank), file="tab")
    assert reading.errors == []
    assert [job.name for job in reading.jobs] == [f"default/j{n}" for n in range(len(jobs))]
    zone, variables = "UTC", {}
    for number, (wanted, job) in enumerate(zip(jobs, reading.jobs, strict=True)):
        zone = wanted.zone or zone
        variables[f"V{number % 3}"] = wanted.variable
        assert job.schedule.text == wanted.schedule
        assert job.schedule.zone == zone
        assert job.work.argv == ("/bin/sh", "-c", wanted.command)
        assert job.work.env == tuple(variables.items())
        assert job.work.timeout_ms == wanted.timeout_s * 1000
        assert (job.overlap, job.catchup) == (wanted.overlap, wanted.catchup)


@given(st.lists(WANTED, max_size=4), BLANKS)
def test_reading_twice_gives_the_same(jobs, blank):
    content = written(jobs, blank)
    assert read_crontab(content, file="tab") == read_crontab(content, file="tab")


def character_by_character(text):
    """Read `%` as the manual says, one character after the other: the slow way."""
    script, stdin, in_input = "", "", False
    at = 0
    while at < len(text):
        pair = text[at : at + 2]
        if pair == "\\%":
            script, stdin = (script, stdin + "%") if in_input else (script + "%", stdin)
            at += 2
        elif in_input:
            stdin += "\n" if text[at] == "%" else text[at]
            at += 1
        elif text[at] == "\\" and len(pair) == 2:
            script += "\\" if pair == "\\\\" else pair  # it belongs to what follows it
            at += 2
        elif text[at] == "%":
            in_input = True
            at += 1
        else:
            script += text[at]
            at += 1
    return script, stdin + "\n" if stdin and not stdin.endswith("\n") else stdin


@given(st.text("ab%\\ \u00fc", max_size=12))
def test_percent_signs_are_read_as_character_by_character(text):
    assert split_percent(text) == character_by_character(text)


def test_what_a_shell_needs_of_backslashes_is_left_to_it_but_for_pairs():
    line = rb"@daily sed 's/\\n/\t/' \"$x\" 50\% \\\\"
    (job,) = read_crontab(line, file="tab").jobs
    assert job.work.argv[2] == r"sed 's/\n/\t/' \"$x\" 50% \\"
