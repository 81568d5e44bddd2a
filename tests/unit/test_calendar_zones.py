"""Zones by name, from the pinned data only."""

from __future__ import annotations

import zoneinfo

import pytest

from cron.calendar import zones
from cron.errors import ScheduleError


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("", "IANA"),
        ("Europe/berlin", "did you mean Europe/Berlin?"),
        ("europe/BERLIN", "did you mean Europe/Berlin?"),
        ("Berlin", "did you mean Europe/Berlin?"),
        ("new york", "did you mean America/New_York?"),
        ("America/NewYork", "America/New_York"),
        ("utc", "did you mean UTC?"),
        ("../../etc/passwd", "IANA"),
        ("Europe/../Europe/Berlin", "Europe/Berlin"),
        ("/usr/share/zoneinfo/Europe/Berlin", ""),
        ("Europe", ""),
        ("Europe/", ""),
        ("UTC+2", ""),
        ("CEST", ""),
        ("\0", "IANA"),
        ("\u00dcber/Stadt", "IANA"),
        ("x" * 10_000, "IANA"),
    ],
)
def test_a_name_that_is_no_zone_is_refused_with_close_ones(name, hint):
    with pytest.raises(ScheduleError) as caught:
        zones.zone(name)
    assert hint in caught.value.hint
    assert caught.value.hint


def test_zones_come_from_the_package_whatever_the_machine_has(tmp_path):
    (tmp_path / "Europe").mkdir()
    (tmp_path / "Europe" / "Vilnius").write_bytes(b"not a zone")
    zoneinfo.reset_tzpath(to=(str(tmp_path),))
    try:
        zones.zone.cache_clear()
        assert zones.zone("Europe/Vilnius").offset(29_474_640) == 120
        zones.pin()
        assert zoneinfo.TZPATH == ()
    finally:
        zones.pin()


def test_the_version_of_the_data_is_known():
    assert zones.tzdata_version() == "2026f"


def test_every_name_on_the_list_can_be_loaded():
    names = zones.zone_names()
    assert len(names) > 400
    for name in sorted(names):
        assert -26 * 60 < zones.zone(name).offset(29_474_640) < 26 * 60


def test_segments_follow_each_other_without_a_hole():
    zone = zones.zone("Africa/Casablanca")
    minute = 26_000_000
    while minute < 30_000_000:
        segment = zone.segment(minute)
        assert segment.start == minute or minute == 26_000_000
        assert segment.start < segment.end
        assert segment.gap_from <= segment.start + segment.offset
        assert zone.segment(segment.end - 1) is segment
        minute = segment.end


def test_a_gap_and_a_repeat_are_known_to_the_segment_behind_them():
    zone = zones.zone("America/New_York")
    spring = zone.segment(29_549_220)  # 2026-03-08T07:00Z
    assert spring.start == 29_549_220
    assert spring.start + spring.offset - spring.gap_from == 60
    autumn = zone.segment(29_891_880)  # 2026-11-01T06:00Z
    assert autumn.start == 29_891_880
    assert autumn.fresh_from - (autumn.start + autumn.offset) == 60


def test_a_date_that_never_was_is_no_gap():
    zone = zones.zone("Pacific/Apia")
    segment = zone.segment(22_088_760)  # a day behind the change
    assert segment.start == 22_087_320  # 2011-12-30T10:00Z
    assert segment.offset == 14 * 60
    assert segment.gap_from == segment.start + segment.offset
