"""How much one profile may hold."""

from __future__ import annotations

from msgspec import Struct

from maar.model.bounds import Natural


class ProfileLimits(Struct, frozen=True, kw_only=True):
    """How much one profile may hold. Generous: real ones stay two orders of magnitude below."""

    samples: Natural = 1_000_000
    """Samples in one profile."""
    locations: Natural = 1_000_000
    """Locations in one profile."""
    functions: Natural = 1_000_000
    """Functions in one profile."""
    mappings: Natural = 65_536
    """Mappings in one profile."""
    strings: Natural = 2_000_000
    """Strings in one profile."""
    sample_types: Natural = 64
    """Value types in one profile."""
    stack_depth: Natural = 4_096
    """Locations in one stack, and frames with the inlined ones."""
    frames: Natural = 16_000_000
    """Frames of all stacks, with the inlined ones."""
    text_bytes: Natural = 128 << 20
    """Text of labels, lines and mappings, each string counted wherever it is referred to: frames
    without a name are called by their mapping's file.
    """
    labels_per_sample: Natural = 100
    """Labels on one sample."""
    symbol_length: Natural = 65_535
    """Bytes of a function's name, system name or file."""
