"""Which tests of whole cells are in `make test`: a story of each kind. The others are nightly."""

from __future__ import annotations

from typing import Final

SMOKES: Final[dict[str, tuple[str, ...]]] = {
    "test_backup": ("test_what_a_leader_stored_the_next_goes_on_with",),
    "test_dead_letters": ("test_a_poisoned_handler_is_mended_and_redriven_with_one_command",),
    "test_dev_cell": (
        "test_a_crontab_with_errors_ends_with_2_and_all_of_them",
        "test_kill_9_leaves_no_process_behind",
        "test_the_example_launches_within_seconds_and_for_ends_it",
        "test_with_no_restart_a_replica_stays_down_and_two_go_on",
    ),
    "test_dev_harness": ("test_ledger_and_witness_agree_over_the_death_of_a_leader",),
    "test_dev_storage": (),
    "test_drain": (),
    "test_engine_clocks": (),
    "test_engine_disk_full": (),
    "test_engine_kills": ("test_leaders_that_are_stopped_for_seconds_lose_nothing_acknowledged",),
    "test_engine_partitions": (
        "test_a_leader_cut_off_for_ten_seconds_costs_one_election_and_none_when_it_is_back",
    ),
    "test_engine_power": (),
    "test_engine_restarts": (),
    "test_engine_soak": (),
    "test_engine_sync_errors": (
        "test_one_failed_sync_ends_the_replica_though_the_next_would_succeed",
    ),
    "test_engine_upgrade": (),
    "test_failover_clock": (
        "test_a_leader_an_hour_ahead_that_compares_clocks_with_nobody_cannot_set_the_cells_time",
    ),
    "test_failover_executor": (
        "test_what_ran_on_an_executor_that_was_killed_is_lost_dead_and_not_run_again",
    ),
    "test_failover_leader": (
        "test_a_leader_that_stood_still_for_ten_seconds_starts_nothing_on_waking",
    ),
    "test_failover_quorum": (
        "test_without_a_majority_commands_say_so_in_time_and_nothing_is_half_done",
    ),
    "test_failover_story": ("test_a_failover_can_be_read_from_every_answer",),
    "test_flood": (),
    "test_gates": ("test_a_gate_that_pauses_holds_launches_until_it_is_opened",),
    "test_outputs": ("test_output_is_shown_when_its_executor_is_gone_for_good",),
    "test_parts": ("test_each_part_runs_once_though_the_leader_died_after_the_first",),
    "test_private": ("test_nobody_else_may_read_what_a_cell_writes",),
    "test_reads": (),
    "test_replace": (
        "test_a_dead_replica_is_replaced_under_load_with_two_commands",
        "test_a_refused_bootstrap_leaves_the_folder_as_it_was_so_that_it_may_join",
    ),
    "test_restore": ("test_all_disks_are_lost_and_nothing_that_ran_runs_again",),
    "test_snapshots_full": (),
    "test_snapshots_local": (
        "test_a_deleted_disk_comes_back_with_all_segments_and_the_same_digest",
    ),
    "test_snapshots_retiring": (),
    "test_tls_cell": ("test_a_cell_with_certificates_works_and_fails_over",),
    "test_worker_faults": (),
    "test_worker_kills": ("test_what_a_killed_worker_ran_is_tried_again_and_never_beside_itself",),
    "test_worker_memory": (),
    "test_worker_storm": (),
}
"""By file. A file that is not here has no tests that take a whole cell, or short ones alone."""
