"""How much one profile may hold."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileLimits:
    """How much one profile may hold. Generous: real ones stay two orders of magnitude below."""

    samples: int = 1_000_000
    locations: int = 1_000_000
    functions: int = 1_000_000
    mappings: int = 65_536
    strings: int = 2_000_000
    sample_types: int = 64
    stack_depth: int = 4_096  # locations, and frames with the inlined ones
    frames: int = 16_000_000  # of all stacks; a location's lines count in every stack that has it
    text_bytes: int = 128 << 20  # of labels and lines; a string counts wherever it is referred to
    labels_per_sample: int = 100
    symbol_length: int = 65_535  # bytes of a function's name, system name or file
