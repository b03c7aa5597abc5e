"""Spark's classes in an archive that the JVM maps: it starts with half the CPU.

`python -m maar.runner.class_archive` writes it for this installation. The JVM itself looks whether
an archive is of its own version and of these jars, and does without one that is not.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import msgspec

from maar.runner.settings import SparkSettings

STOP_S = 300.0  # the archive is written while the JVM ends


def place() -> Path:
    """Where the archive of this installation is, if somebody wrote one."""
    return Path(sys.prefix) / "share" / "maar" / "spark-classes.jsa"


def options() -> str:
    """What tells a JVM on this host to take its classes from the archive; '' without one."""
    archive = place()
    return f'"-XX:SharedArchiveFile={archive}" -Xlog:cds*=off' if archive.exists() else ""


def write() -> str:
    """Let Spark run a job such as plans are, and keep the classes that this took; says which."""
    from maar.runner.session import SparkHandle  # which asks us for options

    archive = place()
    half = archive.with_suffix(f".{os.getpid()}")  # nobody takes it before it is whole
    archive.parent.mkdir(parents=True, exist_ok=True)
    archive.unlink(missing_ok=True)  # a JVM that uses one writes none
    plain = SparkSettings(master="local[1]")
    java_options = f'{plain.java_options} "-XX:ArchiveClassesAtExit={half}" -Xlog:cds*=off'
    settings = msgspec.structs.replace(plain, java_options=java_options)
    with tempfile.TemporaryDirectory(prefix="maar-classes-") as directory:
        handle = SparkHandle(settings, Path(directory), None, jvm_leaves_s=STOP_S)
        try:
            assert handle.open().parallelize([1, 2], 2).map(str).collect() == ["1", "2"]
        finally:
            handle.close()
    if not half.exists():
        return "This JVM writes no archive of classes; Spark starts without one."
    os.replace(half, archive)
    return f"Spark's classes are in {archive}."


if __name__ == "__main__":
    sys.stdout.write(f"{write()}\n")
