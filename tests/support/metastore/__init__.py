"""Metastores in one process: a bare fold, a leader's decisions, replicas over one log."""
