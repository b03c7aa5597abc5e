"""What the log says, what the fold answers, and the policy: records and their bytes. Pure."""
