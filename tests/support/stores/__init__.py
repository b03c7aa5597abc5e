"""Object stores: one in memory, and a real server of the S3 protocol."""
