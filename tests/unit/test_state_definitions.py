"""What a change did to the definition of a job: which fields, from what to what, within bounds."""

from __future__ import annotations

import msgspec

from cron import limits
from cron.job import Overlap, Schedule
from cron.service.access import _change_views
from cron.state.image import decode_state
from cron.state.imaging import encode_state
from launcher.protocol.work import WorkSpec
from tests.unit.alerts_rig import own, watched
from tests.unit.state_rig import StateRig, job

SIX = Schedule("0 6 * * *", "0 6 * * *", "Europe/Berlin")


def fields_of(rig: StateRig) -> list[tuple[str, str, str]]:
    """The fields of the newest change, as people are shown them."""
    (view,) = _change_views(rig.state.revisions[-1], None)
    return [(one.name, one.before, one.after) for one in view.fields]


def put(*jobs: object) -> StateRig:
    rig = StateRig()
    for one in jobs:
        rig.put(one)  # type: ignore[arg-type]
    return rig


def test_a_change_tells_which_fields_changed_and_how() -> None:
    rig = put(job(), job(schedule=SIX, overlap=Overlap.FORBID))
    assert fields_of(rig) == [
        ("schedule", "* * * * *", "0 6 * * *"),
        ("resolved", "* * * * *", "0 6 * * *"),
        ("zone", "UTC", "Europe/Berlin"),
        ("overlap", "allow", "forbid"),
    ]
    assert decode_state([encode_state(rig.state)]).revisions == rig.state.revisions


def test_a_change_that_its_short_text_does_not_show_is_kept() -> None:
    rig = put(job(), job(deadline_s=60))
    assert fields_of(rig) == [("deadline_s", "300", "60")]


def test_of_a_new_and_of_a_removed_job_all_is_told_that_is_not_usual() -> None:
    rig = put(job(schedule=SIX))
    new = [
        ("schedule", "", "0 6 * * *"),
        ("resolved", "", "0 6 * * *"),
        ("zone", "", "Europe/Berlin"),
        ("command", "", "backup"),
        ("deadline_s", "", "300"),
    ]
    assert fields_of(rig) == new
    rig.put(removed=("default/backup",))
    assert fields_of(rig) == [(name, after, before) for name, before, after in new]


def test_what_environment_variables_are_set_to_is_not_kept() -> None:
    def with_env(*env: tuple[str, str]) -> object:
        return job(work=WorkSpec(("/bin/sh", "-c", "x"), env=env))

    rig = put(
        with_env(("TOKEN", "geheim-1"), ("OLD", "geheim-2")),
        with_env(("TOKEN", "geheim-3"), ("NEW", "geheim-4")),
    )
    assert fields_of(rig) == [
        ("env.TOKEN", "set", "set to another value"),
        ("env.OLD", "set", ""),
        ("env.NEW", "", "set"),
    ]
    assert b"geheim" not in msgspec.msgpack.encode(rig.state.revisions)


def test_what_is_kept_of_one_change_is_bounded() -> None:
    long = "x" * 10_000
    many = [
        job(f"j{n}", work=WorkSpec(("/bin/sh", "-c", long + str(n)), user=f"u{n}"))
        for n in range(10)
    ]
    rig = StateRig()
    rig.put(*many)
    kept = [field for one in rig.state.revisions[-1].changed for field in one.fields]
    texts = [text for field in kept for text in field]
    assert max(map(len, texts)) <= limits.FIELD_CHARS_MAX
    assert sum(map(len, texts)) <= limits.FIELDS_CHARS_MAX
    assert kept, "as many as there is room for"


def test_alerts_of_a_job_are_fields_as_the_crontab_has_them() -> None:
    rig = watched()
    rig.put(job(alerts=own("failed:2", "ops", mail_to=("ada@example.org",))))
    assert fields_of(rig) == [
        ("alert", "", "failed:2"), ("to", "", "ops"), ("mailto", "", "ada@example.org")
    ]  # fmt: skip
