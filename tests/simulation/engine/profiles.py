"""Kinds of runs: what the faults are, how large things are, and how often what happens."""

from __future__ import annotations

from typing import Final

import msgspec

SMALL: Final = (0, 40, 100)
MIXED: Final = (0, 100, 1_000, 1_000)
BIG: Final = (100, 1_000, 10_000, 100_000)

LINKS: Final = {"isolate": 3, "link": 2, "one_way": 2, "mend": 5, "loss": 1, "reset": 2} | {
    "latency": 1
}
LIVES: Final = {
    "kill": 3,
    "kill_two": 1,
    "kill_at": 2,
    "bounce": 1,
    "restart": 5,
    "pause": 3,
    "resume": 5,
    "stall_loop": 1,
    "stall_tick": 1,
}
POWER: Final = {"power_one": 2, "power_two": 2, "power_all": 2, "power_at": 5, "relapse": 4} | {
    "restart": 5
}
DISKS: Final = {"full": 1, "room": 2, "sync_error": 1, "slow_disk": 1, "fast_disk": 1}
STOPS: Final = {"pause": 1, "resume": 2}
PLAN: Final = {"transfer": 1, "snapshot": 1, "stop": 1}


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of run. `faults` weighs what the nemesis does, every `gap_s` on average. A `seeded`
    cell begins with a state on one disk, and disks of other lives of it are about. A cell that
    `grows_to` a number of replicas begins with one."""

    name: str
    faults: dict[str, int]
    gap_s: float = 1.5
    sizes: tuple[int, ...] = SMALL
    state_bytes: int = 1_000
    snapshot_entries: int = 100_000
    trailing_entries: int = 50
    seeded: bool = False
    grows_to: int = 0
    appends_per_s: float = 12.0
    burst: int = 4
    election_ms: tuple[int, int] = (800, 1_600)
    heartbeat_ms: int = 100
    bytes_per_s: float = 200e6


PROFILES: Final = {
    profile.name: profile
    for profile in (
        Profile(name="plain", faults=LINKS | LIVES | PLAN),
        Profile(
            name="snapshots",
            faults=LINKS | LIVES | PLAN | {"rot": 3, "isolate": 5, "power_at": 1},
            snapshot_entries=25,
            trailing_entries=5,
            state_bytes=900_000,
            bytes_per_s=20e6,
        ),
        Profile(
            name="big",
            faults=LINKS | LIVES | PLAN,
            sizes=BIG,
            burst=8,
            snapshot_entries=60,
            trailing_entries=20,
            bytes_per_s=20e6,
        ),
        Profile(
            name="power",
            gap_s=1.0,
            faults=LINKS | POWER | DISKS | STOPS | {"kill_at": 5, "one_link_way": 3},
            snapshot_entries=25,
            trailing_entries=10,
        ),
        Profile(
            name="replacements",
            faults=LINKS | LIVES | {"replace": 6, "zombie": 3, "wipe": 2, "power_one": 1},
            snapshot_entries=50,
            trailing_entries=10,
            state_bytes=200_000,
            bytes_per_s=500e3,
        ),
        Profile(
            name="churn",
            faults={"one_link_way": 4, "link": 2, "isolate": 3, "mend": 8, "reset": 2}
            | {"transfer": 6, "pause": 2, "resume": 5, "bounce": 2},
            gap_s=0.4,
            election_ms=(250, 500),
            heartbeat_ms=50,
            appends_per_s=25.0,
            burst=12,
        ),
        Profile(
            name="seeded",
            faults=LINKS | LIVES | {"haunt": 6, "replace": 2, "power_one": 2, "kill_at": 4},
            gap_s=1.2,
            seeded=True,
            snapshot_entries=40,
            trailing_entries=8,
            state_bytes=150_000,
            bytes_per_s=5e6,
        ),
        Profile(
            name="clocks",
            faults={"wall": 8, "isolate": 1, "one_link_way": 1, "mend": 3, "transfer": 1}
            | {"kill": 2, "restart": 4, "pause": 1, "resume": 2},
            gap_s=0.8,
            snapshot_entries=40,
            trailing_entries=8,
        ),
        Profile(
            name="laggards",
            faults={"isolate": 4, "link": 2, "mend": 4, "latency": 1}
            | {"kill": 2, "kill_two": 1, "restart": 4, "pause": 2, "resume": 3, "stall_loop": 1}
            | {"misread": 4},
            gap_s=1.2,
            sizes=(40, 100, 400, 2_000),
            appends_per_s=20.0,
            burst=8,
        ),
        Profile(
            name="growth",
            faults=LINKS | LIVES | {"power_one": 3, "power_at": 4, "kill_at": 5, "sync_error": 1}
            | {"transfer": 1, "snapshot": 2, "lose_new": 3},
            gap_s=1.0,
            grows_to=3,
            snapshot_entries=40,
            trailing_entries=8,
            state_bytes=100_000,
            bytes_per_s=2e6,
        ),
        Profile(name="one-way", faults={"one_way": 4, "one_link_way": 4, "mend": 4, "rate": 2}),
        Profile(
            name="mixed",
            faults=LINKS | LIVES | POWER | DISKS | PLAN | {"replace": 2, "zombie": 1, "rate": 2}
            | {"one_link_way": 1, "rot": 1, "wipe": 1},
            sizes=MIXED,
            snapshot_entries=50,
            trailing_entries=10,
            state_bytes=300_000,
        ),
    )
}  # fmt: skip


def profile_of(seed: int) -> Profile:
    """Return the profile that a seed stands for if none is named."""
    return list(PROFILES.values())[seed % len(PROFILES)]
