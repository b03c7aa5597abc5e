"""Which kind of file system a path is on, and whether other hosts may write there too."""

from __future__ import annotations

import re
from pathlib import Path

MOUNTS = Path("/proc/self/mountinfo")

NETWORK = frozenset(
    [
        "9p",
        "acfs",
        "afs",
        "beegfs",
        "ceph",
        "cifs",
        "coda",
        "davfs",
        "davfs2",
        "glusterfs",
        "gpfs",
        "lustre",
        "ncpfs",
        "nfs",
        "nfs4",
        "orangefs",
        "pvfs2",
        "smb2",
        "smb3",
        "smbfs",
        "vboxsf",
    ]
)
LOCAL_FUSE = frozenset(  # FUSE file systems on a disk of this host; all others may be remote
    [
        "bindfs",
        "cryfs",
        "encfs",
        "exfat",
        "fuse-overlayfs",
        "gocryptfs",
        "mergerfs",
        "ntfs",
        "ntfs-3g",
        "unionfs",
    ]
)
_ESCAPED = re.compile(r"\\([0-7]{3})")


def network_type(path: Path, mounts: Path = MOUNTS) -> str:
    """The type of the network file system that a path is on, or will be; '' when it is local, or
    when this system does not tell.
    """
    try:
        told = mounts.read_text(errors="surrogateescape")
    except OSError:
        return ""
    kind = file_system(told, path.absolute().resolve())
    return kind if over_network(kind) else ""


def over_network(kind: str) -> bool:
    """Whether a file system of this type may be shared between hosts."""
    family, _, name = kind.partition(".")
    return kind in NETWORK or (family == "fuse" and bool(name) and name not in LOCAL_FUSE)


def file_system(mounts: str, path: Path) -> str:
    """The type of the file system of an absolute path, by /proc/self/mountinfo; '' if unknown."""
    found, kind = Path(), ""
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        fields, kinds = before.split(" "), after.split(" ")
        if len(fields) < 5 or not kinds[0]:
            continue
        point = Path(_ESCAPED.sub(lambda octal: chr(int(octal[1], 8)), fields[4]))
        if path.is_relative_to(point) and len(point.parts) >= len(found.parts):
            found, kind = point, kinds[0]  # of two at one place, the later one hides the other
    return kind
