"""What a leader brings into object storage, and what it lets go: segments, snapshots, outputs."""
