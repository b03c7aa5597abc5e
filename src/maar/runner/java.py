"""Whether this host has the Java that Spark needs.

It is apart from `session`, because whoever only checks need not load pyspark.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from maar.model.errors import InvalidInput, Unavailable

JAVA_MIN = 17
_JAVA_TIMEOUT_S = 20
_JAVA_VERSION = re.compile(r'version "(?:1\.)?(\d+)')


def check_java() -> None:
    """Check for Java first, so that its absence is a sentence and not a stack trace."""
    home = os.getenv("JAVA_HOME")  # not a setting of ours: it is where Spark's own scripts look
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    needs = f"Spark needs Java {JAVA_MIN} or newer to run maar's compaction"
    if java is None or not os.access(java, os.X_OK):
        where = f"JAVA_HOME is {home}, which has no bin/java" if home else "there is none on PATH"
        raise InvalidInput(f"{needs}, and {where}; install a JDK, such as OpenJDK {JAVA_MIN}")
    try:
        shown = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=_JAVA_TIMEOUT_S, check=False
        ).stderr
    except (OSError, subprocess.TimeoutExpired) as error:
        # Java is there: a host short of memory or CPU may recover.
        raise Unavailable(f"{needs}, and {java} does not run: {error}") from error
    version = java_version(shown)
    if version < JAVA_MIN:
        found = f"version {version}" if version else "no Java that we know"
        raise InvalidInput(f"{needs}, and {java} is {found}; install OpenJDK {JAVA_MIN}")


def java_version(shown: str) -> int:
    """The feature version in what `java -version` prints; 0 when there is none."""
    match = _JAVA_VERSION.search(shown)
    return int(match.group(1)) if match else 0
