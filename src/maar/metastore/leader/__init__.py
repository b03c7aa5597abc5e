"""What only the leader does: appends entries, answers requests, cleans, adopts, delivers."""
