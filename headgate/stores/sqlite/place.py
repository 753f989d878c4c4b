"""The file that a url names, and whether it is in a place that will do."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

from headgate.errors import ConfigError, StoreUnavailable

MINIMUM_SQLITE = (3, 37, 0)
SYNCHRONOUS = {"full", "normal"}
NETWORK_FILE_SYSTEMS = {
    "nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "ceph", "glusterfs", "lustre",
    "fuse.sshfs", "fuse.s3fs", "fuse.gcsfuse", "fuse.rclone", "fuse.glusterfs", "ncpfs", "gpfs",
}  # fmt: skip


def parse_url(url: str) -> tuple[Path | None, str]:
    """The file (None for memory) and the synchronous mode that a url names."""
    parts = urlsplit(url)
    options = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    synchronous = options.pop("synchronous", "full").lower()
    if synchronous not in SYNCHRONOUS:
        raise ConfigError(f"{url}: synchronous must be full or normal, not {synchronous!r}")
    if options:
        raise ConfigError(f"{url}: unknown option {sorted(options)[0]!r} (known: synchronous)")
    if parts.netloc:
        raise ConfigError(
            f"{url}: write sqlite:///relative.db or sqlite:////absolute/path.db (three or four"
            " slashes)"
        )
    path = unquote(parts.path)
    if path in (":memory:", "/:memory:"):
        return None, synchronous
    name = path.removeprefix("/")
    if not name or "\0" in name:
        raise ConfigError(f"{url}: names no file; write sqlite:///jobs.db")
    return Path(name).absolute(), synchronous


def check_library() -> None:
    if sqlite3.sqlite_version_info < MINIMUM_SQLITE:
        wanted = ".".join(map(str, MINIMUM_SQLITE))
        raise StoreUnavailable(
            f"this Python has SQLite {sqlite3.sqlite_version}; Headgate needs {wanted} or newer"
        )


def check_place(path: Path) -> None:
    """Refuse a missing folder, and file systems on which locks do not hold."""
    if not path.parent.is_dir():
        raise StoreUnavailable(f"{path}: the folder {path.parent} does not exist")
    if path.is_dir():
        raise StoreUnavailable(f"{path} is a folder; name a file in it")
    kind = file_system(path.parent.resolve())
    if kind in NETWORK_FILE_SYSTEMS:
        raise StoreUnavailable(
            f"{path} is on a network file system ({kind}), where SQLite's locks and the workers'"
            " are not reliable; use a local disk, or PostgreSQL for several machines"
        )


def file_system(folder: Path) -> str:
    """The type of the file system that holds `folder`; empty where that cannot be told."""
    try:
        mounts = Path("/proc/self/mounts").read_text().splitlines()
    except OSError:
        return ""
    best, kind = "", ""
    for line in mounts:
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        mount = fields[1].encode().decode("unicode_escape")
        inside = str(folder) == mount or str(folder).startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= len(best):
            best, kind = mount, fields[2]
    return kind
