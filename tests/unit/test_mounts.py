"""Which file systems two hosts may write at once: a log in a file is not kept there."""

from __future__ import annotations

from pathlib import Path

import pytest

from maar.adapters.sqlite.mounts import file_system, over_network

MOUNTS = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
40 22 0:35 / /srv rw,relatime shared:2 - nfs4 filer:/srv rw,vers=4.2
41 40 8:17 / /srv/disk rw,relatime shared:3 - xfs /dev/sdb1 rw
42 22 0:36 / /mnt/my\\040share rw,relatime - cifs //filer/share rw
43 22 0:37 / /home/me/far rw,nosuid,nodev - fuse.sshfs me@far:/ rw
44 22 0:38 / /twice rw - nfs filer:/a rw
45 44 8:33 / /twice rw - ext4 /dev/sdc1 rw
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/lib/maar/log", "ext4"),
        ("/srv/maar/log", "nfs4"),
        ("/srv/disk/maar/log", "xfs"),
        ("/srvx/maar", "ext4"),
        ("/mnt/my share/log", "cifs"),
        ("/home/me/far/log", "fuse.sshfs"),
        ("/twice/log", "ext4"),
    ],
)
def test_a_path_is_on_the_nearest_mount_above_it(path: str, kind: str) -> None:
    assert file_system(MOUNTS, Path(path)) == kind


def test_a_system_that_tells_nothing_is_not_guessed_at() -> None:
    assert file_system("", Path("/var")) == ""
    assert file_system("what is this\n - \n", Path("/var")) == ""
    assert not over_network("")


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "smb3", "ceph", "fuse.sshfs", "fuse.s3fs"])
def test_file_systems_that_other_hosts_share_are_known(kind: str) -> None:
    assert over_network(kind)


@pytest.mark.parametrize(
    "kind", ["ext4", "xfs", "btrfs", "zfs", "overlay", "tmpfs", "fuseblk", "fuse.fuse-overlayfs"]
)
def test_disks_and_what_lies_over_them_are_local(kind: str) -> None:
    assert not over_network(kind)
