"""A file system that keeps the case of names and ignores it, as that of macOS: python caseless.py FOLDER MOUNT_POINT

Files are those of FOLDER. Ends when it is unmounted or killed. Needs mfusepy, libfuse and the right to mount.
"""

from __future__ import annotations

import errno
import os
import sys
import unicodedata
from typing import Any

import mfusepy


class Caseless(mfusepy.Operations):
    """Passes calls on to a folder, with the names that its files have."""

    use_ns = True

    def __init__(self, root: str) -> None:
        self._root = os.path.join(root, "files")
        self._removed = os.path.join(root, "removed")
        os.mkdir(self._root)
        os.mkdir(self._removed)

    def _real(self, path: str) -> str:
        # So libfuse renames a file that is deleted while it is open; its folder is to be empty.
        if (name := os.path.basename(path)).startswith(".fuse_hidden"):
            return os.path.join(self._removed, name)
        real = self._root
        for name in filter(None, path.split("/")):
            real = _child(real, name)
        return real

    def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
        status = os.lstat(self._real(path)) if fh is None else os.fstat(fh)
        names = ["mode", "nlink", "uid", "gid", "size", "ino", "blocks", "blksize"]
        times = {f"st_{name}": getattr(status, f"st_{name}_ns") for name in ("atime", "mtime", "ctime")}
        return {f"st_{name}": getattr(status, f"st_{name}") for name in names} | times

    def readdir(self, path: str, fh: int) -> list[tuple[str, dict[str, int], int]]:
        real = self._real(path)
        with os.scandir(real) as entries:
            found = {entry.name: entry.inode() for entry in entries}  # a file that has none is left out by readdir(3)
        return [(name, {"st_ino": inode}, 0) for name, inode in {".": 1, "..": 1, **found}.items()]

    def access(self, path: str, amode: int) -> int:
        if not os.access(self._real(path), amode):
            raise mfusepy.FuseOSError(errno.EACCES)
        return 0

    def readlink(self, path: str) -> str:
        return os.readlink(self._real(path))

    def mkdir(self, path: str, mode: int) -> int:
        return os.mkdir(self._real(path), mode) or 0

    def rmdir(self, path: str) -> int:
        return os.rmdir(self._real(path)) or 0

    def unlink(self, path: str) -> int:
        return os.unlink(self._real(path)) or 0

    def symlink(self, target: str, source: str) -> int:
        return os.symlink(source, self._real(target)) or 0

    def link(self, target: str, source: str) -> int:
        return os.link(self._real(source), self._real(target), follow_symlinks=False) or 0

    def mknod(self, path: str, mode: int, dev: int) -> int:
        return os.mknod(self._real(path), mode, dev) or 0

    def rename(self, old: str, new: str) -> int:
        source, target = self._real(old), self._real(new)
        if source == target:  # by the case of its name, perhaps
            target = os.path.join(os.path.dirname(target), os.path.basename(new))
        return os.rename(source, target) or 0

    def chmod(self, path: str, mode: int) -> int:
        return os.chmod(self._real(path), mode) or 0

    def chown(self, path: str, uid: int, gid: int) -> int:
        return os.lchown(self._real(path), uid, gid) or 0

    def utimens(self, path: str, times: tuple[int, int] | None = None) -> int:
        return os.utime(self._real(path), ns=times, follow_symlinks=False) or 0

    def statfs(self, path: str) -> dict[str, int]:
        found = os.statvfs(self._real(path))
        return {name: getattr(found, name) for name in dir(found) if name.startswith("f_") and name != "f_fsid"}

    def create(self, path: str, mode: int, fi: Any = None) -> int:
        return os.open(self._real(path), os.O_RDWR | os.O_CREAT, mode)

    def open(self, path: str, flags: int) -> int:
        return os.open(self._real(path), flags & ~(os.O_APPEND | os.O_CREAT | os.O_EXCL))

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        return os.pread(fh, size, offset)

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        return os.pwrite(fh, data, offset)

    def truncate(self, path: str, length: int, fh: int | None = None) -> int:
        return os.truncate(self._real(path) if fh is None else fh, length) or 0

    def flush(self, path: str, fh: int) -> int:
        return 0

    def fsync(self, path: str, datasync: int, fh: int) -> int:
        return os.fsync(fh) or 0

    def release(self, path: str, fh: int) -> int:
        return os.close(fh) or 0


def _child(folder: str, name: str) -> str:
    path = os.path.join(folder, name)
    if os.path.lexists(path):
        return path
    try:
        alike = (each for each in os.listdir(folder) if _key(each) == _key(name))
        return os.path.join(folder, next(alike, name))
    except OSError:
        return path


def _key(name: str) -> str:
    return unicodedata.normalize("NFC", name).casefold()


if __name__ == "__main__":
    options = {"use_ino": True, "attr_timeout": 0, "entry_timeout": 0, "allow_other": True, "default_permissions": True}
    mfusepy.FUSE(Caseless(sys.argv[1]), sys.argv[2], foreground=True, raw_fi=False, **options)
