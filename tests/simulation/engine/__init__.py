"""The real engine on a fake clock, a simulated network and disks that forget: runs by seed."""
