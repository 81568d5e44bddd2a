"""What the cell says of alerts and launches, word for word."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from launcher.targets.alert_text import (
    OF_CELL,
    STATES,
    Alerted,
    Launched,
    lasting,
    of_alert,
    of_launch,
    sentence,
    spelled,
)
from launcher.targets.incidents import apart

CONSOLE = "https://cron.example.com/"
SINCE = "2026-11-20T15:00:00Z"
LATER = "2026-11-20T17:10:05Z"


def alert(**fields: Any) -> Alerted:
    said = {
        "number": 17, "state": "firing", "kind": "failed", "when": "failed:2", "rule": "backups",
        "subjects": ["acme/backup"], "since": SINCE, "at": LATER, "cell": "prod",
    }  # fmt: skip
    return Alerted(**said | fields)


def test_an_alert_says_what_happened_to_which_job_since_when_and_how_to_look() -> None:
    launches = ["acme/backup@2026-11-20T14:00:00Z", "acme/backup@2026-11-20T15:00:00Z"]
    evidence = {"launches": launches, "failures": 2, "since": SINCE, "odd_key": 7}
    note = of_alert(alert(evidence=evidence), CONSOLE)
    assert note.title == "[raftcron prod] acme/backup failed 2 times in a row"
    assert note.link == "https://cron.example.com/jobs/acme/backup"
    assert note.text == (
        "acme/backup failed 2 times in a row.\n"
        "\n"
        "Cell:            prod\n"
        "Rule:            backups (failed:2)\n"
        "Since:           2026-11-20 15:00:00 UTC\n"
        "Noticed:         2026-11-20 17:10:05 UTC\n"
        "Failures:        2\n"
        "Newest launches: acme/backup@2026-11-20T14:00:00Z, acme/backup@2026-11-20T15:00:00Z\n"
        "Odd key:         7\n"
        "\n"
        "How to look:\n"
        "  raftcron why acme/backup\n"
        "  raftcron logs acme/backup@2026-11-20T15:00:00Z\n"
        "  raftcron alerts list\n"
        "  https://cron.example.com/jobs/acme/backup\n"
    )


def test_the_default_tenant_is_left_out() -> None:
    launches = ["default/one@2026-11-20T15:00:00Z"]
    note = of_alert(alert(subjects=["default/one"], evidence={"launches": launches}), CONSOLE)
    assert note.title == "[raftcron prod] one failed 2 times in a row"
    assert note.text.startswith("one failed 2 times in a row.\n")
    assert "default" not in note.text.replace(f"{CONSOLE}jobs/default/one", "")
    one = launch(job="default/b", name="default/b@2026-11-20T15:00:00Z")
    assert of_launch(one).title == "[raftcron] b succeeded"


def test_the_end_of_an_alert_says_how_long_it_lasted() -> None:
    note = of_alert(alert(state="resolved"))
    assert note.title == "[raftcron prod] RESOLVED: acme/backup failed 2 times in a row"
    first = "This is over: acme/backup failed 2 times in a row. It lasted 2h 10m.\n"
    assert note.text.startswith(first)
    assert note.thread == of_alert(alert()).thread, "mail programs show them together"
    assert of_alert(alert(number=18)).thread != note.thread
    more = of_alert(alert(state="resolved", open=3))
    assert "3 other alerts of this rule still fire." in more.text
    assert (
        "1 other alert of this rule still fires." in of_alert(alert(open=1, state="resolved")).text
    )


def test_an_alert_that_is_over_because_its_job_was_removed_says_so() -> None:
    one = of_alert(alert(state="resolved", removed=["acme/backup"]))
    assert "It lasted 2h 10m. The job was removed.\n" in one.text
    some = alert(state="resolved", count=3, subjects=["a/x", "a/y", "default/z"])
    assert "Removed jobs" not in of_alert(some).text
    some = msgspec.structs.replace(some, removed=["a/y", "default/z"])
    assert "Removed jobs: a/y, z.\n" in of_alert(some).text
    assert [one.removed for one in apart(some)] == [[], ["a/y"], ["default/z"]]


def test_many_alerts_are_one_message_with_the_first_names() -> None:
    names = [f"acme/job-{n}" for n in range(20)]
    note = of_alert(alert(count=10_000, subjects=names), CONSOLE)
    assert note.title == "[raftcron prod] 10,000 jobs failed 2 times in a row"
    assert "Jobs:\n  acme/job-0\n" in note.text
    assert "  acme/job-19\n  and 9,980 more\n" in note.text
    assert note.link == "https://cron.example.com/jobs"
    assert len(note.text) < 2_000


@pytest.mark.parametrize(
    ("kind", "when", "subjects", "said"),
    [
        ("failed", "failed:1", ["a/b"], "a/b failed"),
        ("failed", "failed:3/10", ["a/b"], "a/b failed in 3 of its newest 10 launches"),
        ("missed", "missed", ["a/b"], "a/b missed a launch"),
        ("late", "late:10m", ["a/b"], "a/b is more than 10 minutes late"),
        ("running", "running:1h30m", ["a/b"], "a/b runs for more than 1 hour 30 minutes"),
        ("no-success", "no-success:1d", ["a/b"], "a/b has not succeeded for 1 day"),
        ("dead", "dead", ["a/b"], "a/b has dead letters"),
        (
            "queue-older",
            "queue-older:5m",
            ["a/b"],
            "queue a/b: a task waits for more than 5 minutes",
        ),
        (
            "gate-open",
            "gate-open:2h",
            ["raftcron/gate-3"],
            "gate 3 has held launches for more than 2 hours",
        ),
        ("backup-failing", "backup-failing:15m", [], "backups fail for more than 15 minutes"),
        ("replica-away", "replica-away:5m", ["raftcron/r2"], "replica r2 is away"),
        ("clock-off", "clock-off:2s", ["raftcron/r2"], "the clock of r2 is off"),
        (
            "certificate-ending",
            "certificate-ending:14d",
            ["raftcron/r1"],
            "the certificate of r1 ends soon",
        ),
        (
            "disk-filling",
            "disk-filling:90%",
            ["raftcron/r3"],
            "the disk of r3 is more than 90% full",
        ),
        ("of-the-future", "of-the-future", ["x"], "x: of-the-future"),
    ],
)
def test_every_kind_has_its_sentence(kind: str, when: str, subjects: list[str], said: str) -> None:
    assert sentence(alert(kind=kind, when=when, subjects=subjects)) == said
    note = of_alert(alert(kind=kind, when=when, subjects=subjects), CONSOLE)
    assert note.text.count("raftcron ") >= 2 or kind in OF_CELL
    assert note.link.startswith("https://cron.example.com/")


@pytest.mark.parametrize("kind", sorted(OF_CELL))
def test_an_alert_of_the_cell_needs_no_subject(kind: str) -> None:
    assert "  " not in sentence(alert(kind=kind, when=kind, subjects=[]))


def test_a_test_says_that_nothing_is_wrong() -> None:
    note = of_alert(alert(state="test", cell="default"), CONSOLE)
    assert note.title == "[raftcron] test of alerts"
    assert "Nothing is wrong" in note.text
    assert note.link == "https://cron.example.com"


@pytest.mark.parametrize("state", STATES)
def test_a_payload_with_little_in_it_is_still_told(state: str) -> None:
    note = of_alert(Alerted(number=1, state=state))
    assert note.title
    assert note.text.endswith("\n")


def test_evidence_of_any_shape_becomes_text() -> None:
    evidence = {
        "late_s": 3_700, "off_ms": 2_500, "used_percent": 91, "left_s": 90_000,
        "launches": [f"l{n}" for n in range(30)], "detail": "x" * 5_000, "more": {"a": [1]},
        "nothing": None, "is_it": True,
    }  # fmt: skip
    text = of_alert(alert(evidence=evidence)).text
    lines = ["Late by: 1h 1m", "Clock is off by: 2,500 ms", "Disk used: 91%", "Valid for: 1d 1h"]
    assert set(lines) <= {" ".join(line.split()) for line in text.split("\n")}
    assert "l19, and 10 more\n" in text
    assert "True\n" in text
    assert len(text) < 4_000


def test_lengths_are_short() -> None:
    assert [lasting(n) for n in (0, -5, 61, 3_600, 200_000)] == ["0s", "0s", "1m 1s", "1h", "2d 7h"]
    assert [spelled(s) for s in ("1d", "", "soon", "90%")] == ["1 day", "", "", ""]


def launch(**fields: Any) -> Launched:
    said = {"name": "acme/b@2026-11-20T15:00:00Z", "job": "acme/b", "state": "succeeded"}
    return Launched(**said | fields)


def test_a_reminder_says_that_it_is_still_so_and_the_newest_number() -> None:
    note = of_alert(alert(reminder=3, evidence={"failures": 85}))
    assert note.title == "[raftcron prod] STILL: acme/backup failed 85 times in a row"
    assert note.thread == of_alert(alert()).thread
    several = alert(reminder=3, count=2, subjects=["a/x", "a/y"], evidence={"failures": 85})
    assert "2 jobs failed 2 times in a row" in of_alert(several).title, "85 are of one of them"
    share = alert(when="failed:3/10", evidence={"failures": 9})
    assert "failed in 3 of its newest 10 launches" in of_alert(share).title


def test_a_mail_of_a_launch_has_what_it_printed() -> None:
    note = of_launch(launch(output_bytes=9, at=SINCE, command="b"), CONSOLE, "all well\n")
    assert note.title == "[raftcron] acme/b succeeded"
    assert note.text == (
        "acme/b succeeded.\n"
        "\n"
        "Launch:  acme/b@2026-11-20T15:00:00Z\n"
        "Ended:   2026-11-20 15:00:00 UTC\n"
        "Command: b\n"
        "\n"
        "Output:\n"
        "\n"
        "all well\n"
        "\n"
        "How to look:\n"
        "  raftcron logs acme/b@2026-11-20T15:00:00Z\n"
        "  https://cron.example.com/launches/acme/b@2026-11-20T15:00:00Z\n"
    )


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"state": "failed", "exit": 3}, "acme/b failed with exit code 3"),
        ({"state": "dead", "exit": 3}, "acme/b failed for good with exit code 3"),
        ({"state": "failed"}, "acme/b failed"),
        ({"state": "failed", "reason": "timeout", "exit": None}, "acme/b failed (timeout)"),
        ({"state": "lost"}, "acme/b was lost"),
        ({"state": "cancelled"}, "acme/b was cancelled"),
    ],
)
def test_a_mail_of_a_launch_says_how_it_ended(fields: dict[str, Any], said: str) -> None:
    assert of_launch(launch(**fields)).title == f"[raftcron] {said}"


def test_a_mail_says_how_much_of_the_output_it_has() -> None:
    assert "(the last 2 of 5,000 bytes)" in of_launch(launch(output_bytes=5_000), "", "ab").text
    assert "It printed 5,000 bytes." in of_launch(launch(output_bytes=5_000)).text
    gone = of_launch(launch(output_bytes=5_000), problem="HTTP 404").text
    assert "They could not be read: HTTP 404." in gone
