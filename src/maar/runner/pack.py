"""One archive with all that a task needs beside Spark and Python: for executors without maar.

It holds `lib/` (maar and what its tasks import, as installed here) and `bin/python`, which starts
the host's own Python with that on its path. Spark unpacks it (`spark.archives`) next to its tasks.
"""

from __future__ import annotations

import io
import os
import re
import secrets
import sys
import tarfile
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import NamedTuple

from isal import igzip

import maar
from maar.block.decode import to_tables
from maar.model.errors import InvalidInput

# What tasks import; PySpark itself comes with the executors' Spark. Their needs are added.
ROOTS = ("isal", "msgspec", "numba", "numpy", "obstore", "pyarrow", "xxhash")

_LEFT_OUT = {"tests", "include"}  # inside packages: a tenth of the whole
_NAME = re.compile(r"[A-Za-z0-9._-]+")
_PYTHON = """#!/bin/sh
# The Python {version} of this host, with what is packed beside this file.
here=$(cd "${{0%/*}}/.." && pwd)
for python in "$MAAR_PYTHON" python{version} python3 python; do
  if [ -n "$python" ] && "$python" -c 'import sys; sys.exit(sys.version_info[:2] != {exact})' 2>/dev/null
  then
    PYTHONPATH="$here/lib${{PYTHONPATH:+:$PYTHONPATH}}" exec "$python" "$@"
  fi
done
echo "maar's tasks need Python {version}, and this host has none on its PATH ($PATH); install it," \\
  "or name it with spark.executorEnv.MAAR_PYTHON" >&2
exit 127
"""  # noqa: E501


class PackedCode(NamedTuple):
    path: Path
    size: int
    distributions: tuple[str, ...]  # names and versions


def pack(output: Path) -> PackedCode:
    """Write the archive, or leave nothing behind."""
    to_tables.warm()  # compiled here, so that not every executor has to
    chosen = closure(ROOTS)
    half = output.with_name(f".{output.name}.{secrets.token_hex(4)}")
    try:
        with (
            igzip.open(half, "wb", compresslevel=1) as file,
            tarfile.open(fileobj=file, mode="w") as archive,
        ):
            _add_text(archive, "bin/python", launcher(), mode=0o755)
            for name, path in _files(chosen):
                archive.add(path, f"lib/{name}", recursive=False)
        os.replace(half, output)
    except OSError as error:
        raise InvalidInput(f"cannot write {output}: {error.strerror or error}") from error
    finally:
        half.unlink(missing_ok=True)
    named = tuple(f"{each.name} {each.version}" for each in chosen)
    return PackedCode(output, output.stat().st_size, (f"maar {maar.__version__}", *named))


def closure(roots: tuple[str, ...]) -> list[Distribution]:
    """The installed distributions of these names and of all that they need."""
    found: dict[str, Distribution] = {}
    wanted = list(roots)
    while wanted:
        name = wanted.pop()
        if name in found:
            continue
        try:
            found[name] = distribution(name)
        except PackageNotFoundError:
            if name in roots:
                raise InvalidInput(
                    f"{name} is not installed here, and maar's tasks need it"
                ) from None
            continue  # needed elsewhere: by another platform, or another Python
        wanted += [_name(need) for need in found[name].requires or () if "extra ==" not in need]
    return [found[name] for name in sorted(found)]


def launcher() -> str:
    """The archive's bin/python."""
    exact = sys.version_info[:2]
    return _PYTHON.format(version=".".join(map(str, exact)), exact=tuple(exact))


def _files(chosen: list[Distribution]) -> Iterator[tuple[str, Path]]:
    """Names below lib/, and where the files are here."""
    package = Path(maar.__file__).parent
    for path in sorted(package.rglob("*")):
        if path.is_file():
            yield str(path.relative_to(package.parent)), path
    for each in chosen:
        for file in each.files or ():
            inside = file.parts[0] != ".." and not _LEFT_OUT & set(file.parts[1:-1])
            path = Path(str(file.locate()))
            if inside and path.is_file():
                yield str(file), path


def _add_text(archive: tarfile.TarFile, name: str, text: str, *, mode: int) -> None:
    body = text.encode()
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(body), mode
    archive.addfile(entry, io.BytesIO(body))


def _name(requirement: str) -> str:
    match = _NAME.match(requirement)
    return match[0].lower() if match else requirement
