"""A small metastore and a runner of threads, for tests of the worker."""
