"""Many workers under faults, then an audit: `python -m support.soak`, or a short form in tests."""
