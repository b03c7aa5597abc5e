"""What a process reports of itself: disks, readiness, metrics, copies that it could not read."""
