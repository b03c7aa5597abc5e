"""Converts the state when a new version of the log is activated, the same on every replica."""

from __future__ import annotations

from maar.metastore.records.effects import Effects
from maar.metastore.records.entries import VersionActivated
from maar.metastore.state.state import MetaState


def activate(state: MetaState, entry: VersionActivated) -> Effects:
    """Entries of the version may follow. What it keeps in another way is changed here, once."""
    state.version = max(state.version, entry.version)
    return ()
