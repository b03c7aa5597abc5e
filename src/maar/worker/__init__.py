"""Poll, renew, run, report: the lease keeper around a JobRunner."""
