"""How fast a pprof becomes columns, against protobuf and a Python loop to the same columns.

    python bench/decoder.py [--files PROFILE…]

Each line: name value unit ratio baseline. CPU time, warm, interleaved, median of five.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from maar.pprof import gzip
from maar.pprof.columns import NONE, Columns
from maar.pprof.decode import decode, warm
from maar.pprof.encode import encode
from maar.pprof.plain import (
    PlainFunction,
    PlainLabel,
    PlainLine,
    PlainLocation,
    PlainMapping,
    PlainProfile,
    PlainSample,
)
from maar.pprof.schema import Profile
from maar.pprof.validate import validate

ROUNDS = 5
LIMIT = 256 << 20
RATIO_MIN = 5.0


def synthetic(samples: int, locations: int, seed: int = 4711) -> bytes:
    """A CPU profile like those of a service: deep shared stacks, inlined lines, long names."""
    random = Random(seed)
    words = [f"{random.getrandbits(24):06x}" for _ in range(400)]
    functions = [
        PlainFunction(
            name := f"github.com/shop/{random.choice(words)}.(*{random.choice(words)}).Handle{row}",
            name,
            f"/src/{random.choice(words)}/{random.choice(words)}/file{row % 300}.go",
            random.randrange(1, 900),
        )
        for row in range(locations * 4 // 5)
    ]
    return encode(
        PlainProfile(
            sample_types=[("samples", "count"), ("cpu", "nanoseconds")],
            samples=[
                PlainSample(
                    [random.randrange(locations) for _ in range(random.randrange(10, 60))],
                    (count := random.randrange(1, 20), count * 10_000_000),
                    (PlainLabel("thread", f"worker-{random.randrange(8)}"),),
                )
                for _ in range(samples)
            ],
            mappings=[PlainMapping(0x400000, 0x1400000, 0, "/bin/shop", "a1b2c3d4", True)],
            locations=[
                PlainLocation(
                    0,
                    0x400000 + random.getrandbits(24),
                    tuple(
                        PlainLine(random.randrange(len(functions)), random.randrange(1, 2000))
                        for _ in range(random.choice((1, 1, 1, 2)))
                    ),
                )
                for _ in range(locations)
            ],
            functions=functions,
            time_ns=1_700_000_000_000_000_000,
            duration_ns=10_000_000_000,
            period_type=("cpu", "nanoseconds"),
            period=10_000_000,
        )
    )


def loop(raw: bytes) -> tuple[list[bytes], dict[str, list[Any]]]:
    """The baseline: protobuf's own parser, then Python loops that fill the same columns."""
    message = Profile.FromString(raw)
    columns: dict[str, list[Any]] = {name: [] for name in Columns.__dataclass_fields__}
    put = {name: column.append for name, column in columns.items()}
    strings = list(message.string_table)
    location_rows = {location.id: row for row, location in enumerate(message.location)}
    function_rows = {function.id: row for row, function in enumerate(message.function)}
    mapping_rows = {mapping.id: row for row, mapping in enumerate(message.mapping)}
    for sample in message.sample:
        columns["value"].extend(sample.value)
        columns["sample_location"].extend([location_rows[ref] for ref in sample.location_id])
        put["sample_location_offset"](len(columns["sample_location"]))
        for label in sample.label:
            put["label_key"](label.key)
            put["label_str"](label.str)
            put["label_num"](label.num)
            put["label_num_unit"](label.num_unit)
        put["sample_label_offset"](len(columns["label_key"]))
    for location in message.location:
        put["location_address"](location.address)
        put["location_mapping"](mapping_rows.get(location.mapping_id, NONE))
        put["location_is_folded"](location.is_folded)
        for line in location.line:
            put["line_function"](function_rows.get(line.function_id, NONE))
            put["line_number"](line.line)
            put["line_column"](line.column)
        put["line_offset"](len(columns["line_function"]))
    for function in message.function:
        put["function_name"](function.name)
        put["function_system_name"](function.system_name)
        put["function_file"](function.filename)
        put["function_start_line"](function.start_line)
    for mapping in message.mapping:
        put["mapping_start"](mapping.memory_start)
        put["mapping_limit"](mapping.memory_limit)
        put["mapping_offset"](mapping.file_offset)
        put["mapping_file"](mapping.filename)
        put["mapping_build_id"](mapping.build_id)
    return strings, columns


def seconds(work: Callable[[bytes], object], raw: bytes, repeats: int) -> float:
    start = time.process_time()
    for _ in range(repeats):
        work(raw)
    return (time.process_time() - start) / repeats


def measure(name: str, packed: bytes) -> float:
    """Print the lines of one profile; the ratio of the decoder."""
    raw = gzip.gunzip(packed, limit=LIMIT)
    ways: dict[str, tuple[Callable[[bytes], object], bytes, int]] = {
        "loop": (loop, raw, 3),
        "decode": (decode, raw, 50),
        "validate": (validate, raw, 50),
        "gunzip": (lambda data: gzip.gunzip(data, limit=LIMIT), packed, 50),
    }
    times: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(ROUNDS):
        for way, (work, data, repeats) in ways.items():
            times[way].append(seconds(work, data, repeats))
    middle = {way: statistics.median(found) for way, found in times.items()}
    print(f"# {name}: {len(packed)} bytes of gzip, {len(raw)} raw, {validate(raw).samples} samples")
    baseline = "protobuf+loop"
    for way in ("loop", "decode", "validate", "gunzip"):
        ratio = middle["loop"] / middle[way]
        print(f"{name}.{way} {middle[way] * 1e3:.3f} ms {ratio:.1f} {baseline}")
    print(f"{name}.decode_rate {len(raw) / middle['decode'] / 1e6:.0f} MB/s-raw - -")
    push = middle["gunzip"] + middle["validate"]
    print(f"{name}.push_rate {len(packed) / push / 1e6:.0f} MB/s-gzip - gunzip+validate")
    return middle["loop"] / middle["decode"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", nargs="*", type=Path, default=[])
    files: list[Path] = parser.parse_args().files
    warm()
    ratios = [
        measure(f"synthetic_{samples}", gzip.compress(synthetic(samples, 1400)))
        for samples in (160, 1400)
    ]
    for file in files:
        measure(file.name, file.read_bytes())
    print(f"decoder {min(ratios):.1f} x {min(ratios):.1f} protobuf+loop")
    if min(ratios) < RATIO_MIN:
        print(f"the decoder must be at least {RATIO_MIN} times as fast as protobuf and a loop")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
