"""What a new version of the log changes in a state that an older one made: the same everywhere."""

from __future__ import annotations

from maar.metastore.records.effects import Effects
from maar.metastore.records.entries import VersionActivated
from maar.metastore.state.state import MetaState


def activate(state: MetaState, entry: VersionActivated) -> Effects:
    """Entries of the version may follow. What it keeps in another way is changed here, once."""
    state.version = max(state.version, entry.version)
    return ()
