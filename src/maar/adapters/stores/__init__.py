"""Object stores: a directory or an S3 bucket."""
