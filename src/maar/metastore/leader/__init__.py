"""What only the leader does: append entries, answer requests, run background tasks."""
