"""Fuzz the pprof readers: random profiles, other spellings of them, damaged bytes.

Whatever the bytes, validator and decoder must agree, raise MalformedProfile or TooLarge and nothing
else, and what they read must be what protobuf reads. Compiled code runs with bounds checks here, so
that a read outside of the bytes is an error and not luck.

    python bench/fuzz_pprof.py --seconds 60 [--seed 4711]
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from random import Random, SystemRandom

os.environ["NUMBA_BOUNDSCHECK"] = "1"
os.environ["NUMBA_CACHE_DIR"] = str(Path(__file__).parent / "__pycache__" / "boundscheck")
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from maar.model.errors import InvalidInput, MalformedProfile, TooLarge
from maar.pprof import folded, gzip
from maar.pprof.decode import decode, warm
from maar.pprof.encode import encode
from maar.pprof.limits import ProfileLimits
from maar.pprof.validate import validate
from support.load.pprof_scramble import mutate, random_profile, renumber, scramble
from support.oracles.pprof_columns import unpack
from support.oracles.pprof_reader import read_plain

NO_LIMITS = ProfileLimits(**dict.fromkeys(ProfileLimits.__struct_fields__, 1 << 62))


class Disagreement(Exception):
    """Two readers of the same bytes said different things."""


def examine(raw: bytes) -> bool:
    """Read the bytes in every way; whether they are a profile."""
    accepted = []
    for read in (lambda: validate(raw, NO_LIMITS), lambda: decode(raw)):
        try:
            read()
            accepted.append(True)
        except MalformedProfile as refusal:
            accepted.append(refusal.reason == "values")  # whole, but too much to add up
    if accepted[0] != accepted[1]:
        raise Disagreement(f"validator says {accepted[0]}, decoder says {accepted[1]}")
    try:
        validate(raw)
    except (MalformedProfile, TooLarge):
        pass
    if accepted[1] and unpack(decode(raw)) != read_plain(raw):
        raise Disagreement("the decoder and protobuf read different things")
    return accepted[1]


def one_round(random: Random) -> int:
    """A new profile, respelled and damaged; how many inputs were examined."""
    profile = random_profile(random, size=random.choice((2, 6, 30)))
    raw = renumber(encode(profile), random) if random.random() < 0.5 else encode(profile)
    spelled = scramble(raw, random)
    if not examine(spelled) or unpack(decode(spelled)) != profile:
        raise Disagreement("a valid profile was refused or read wrongly")
    for _ in range(20):
        examine(mutate(spelled, random))
    packed = gzip.compress(spelled)
    for _ in range(5):
        try:
            examine(gzip.gunzip(mutate(packed, random), limit=len(spelled)))
        except (MalformedProfile, TooLarge):
            pass
    for parse in (folded.parse_groups, folded.parse_lines):
        text = mutate(b"main;work 12\nmain;na\xeff 3\n\n", random)
        try:
            made = parse(text, kind=folded.CPU)
        except (InvalidInput, TooLarge):
            continue
        if not examine(made):
            raise Disagreement("folded stacks became a profile that cannot be read")
    return 28


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--seed", type=int, default=SystemRandom().getrandbits(32))
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}", flush=True)
    warm()
    seed, inputs = arguments.seed, 0
    end = time.monotonic() + arguments.seconds
    while time.monotonic() < end:
        try:
            inputs += one_round(Random(seed))
        except Exception as error:  # noqa: BLE001 - anything that escapes is the finding
            print(f"failed with --seed {seed}: {type(error).__name__}: {error}", flush=True)
            return 1
        seed += 1  # each round has a seed of its own, so that a finding replays at once
    print(f"{inputs} inputs in {seed - arguments.seed} rounds, nothing found")
    return 0


if __name__ == "__main__":
    sys.exit(main())
