"""What happens next on the leader: pure decisions over State and the time."""
